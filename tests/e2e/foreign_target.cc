// Two targets of one draft worker, of which one speaks in the other's name:
//
//   foreign_target DRAFT_ADDRESS MODEL_VOCABULARY
//
// The first opens a session; the second asks for it, and ends it; the first goes on. Exits with 0
// if the first got its trees as if nothing had been and the second no answer.

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>
#include <variant>

#include "base/clock.h"
#include "base/hash.h"
#include "base/queue.h"
#include "link/link.h"
#include "schemas/messages.h"
#include "speculation/verification_method.h"

namespace specfabric {
namespace {

using schemas::DraftReply;
using schemas::DraftRequest;

constexpr base::Nanos kTestTimeout = 20 * base::kSecond, kSilence = 500 * base::kMillisecond;
constexpr base::SequenceId kSequence = 7;

class Target {
 public:
  Target(uint64_t incarnation, const char* draft, int32_t vocabulary) {
    link::LinkOptions options;
    options.connect = {draft};
    options.hello.role = schemas::Role::kTarget;
    options.hello.incarnation = incarnation;
    options.hello.model = "foreign";
    options.hello.vocabulary = vocabulary;
    options.hello.context = 256;
    options.hello.verification_methods =
        1u << static_cast<int>(speculation::VerificationMethod::kCoupled);
    link::LinkHandler handler;
    handler.on_up = [this](link::PeerId peer, const schemas::Hello&, const std::string&) {
      draft_ = peer;
      up_.PushAlways(true);
    };
    handler.on_message = [this](link::PeerId, link::Message message) {
      if (auto* reply = std::get_if<DraftReply>(&message)) replies_.PushAlways(std::move(*reply));
    };
    auto link = link::Link::Create(std::move(options), std::move(handler));
    if (!link.ok()) Fail("no link");
    link_ = *std::move(link);
    if (!link_->Start().ok()) Fail("no link");
    if (up_.PopAll(base::Now() + kTestTimeout).empty()) Fail("the draft does not answer");
  }

  template <typename M>
  void Send(const M& message) {
    if (!link_->Send(draft_, message).ok()) Fail("a message was not sent");
  }
  std::vector<DraftReply> Replies(base::Nanos timeout) {
    return replies_.PopAll(base::Now() + timeout);
  }

  [[noreturn]] static void Fail(const char* what) {
    std::fprintf(stderr, "foreign_target: %s\n", what);
    std::exit(1);
  }

 private:
  base::BoundedQueue<bool> up_{8};
  base::BoundedQueue<DraftReply> replies_{8};
  std::atomic<link::PeerId> draft_{0};
  std::unique_ptr<link::Link> link_;
};

DraftRequest Request(uint64_t incarnation, uint32_t round, int32_t base, uint64_t hash,
                     std::vector<base::TokenId> append) {
  DraftRequest request;
  request.target_incarnation = incarnation;
  request.sequence = kSequence;
  request.round = request.request_id = round;
  request.base_length = base;
  request.base_hash = hash;
  request.append_tokens = std::move(append);
  request.max_nodes = 4;
  request.time_budget = base::kSecond;
  return request;
}

void Expect(bool met, const char* what) {
  if (!met) Target::Fail(what);
}

int Main(int argc, char** argv) {
  if (argc != 3) Target::Fail("usage: foreign_target DRAFT_ADDRESS MODEL_VOCABULARY");
  constexpr uint64_t kOwn = 11, kOther = 12;
  Target own(kOwn, argv[1], std::atoi(argv[2])), other(kOther, argv[1], std::atoi(argv[2]));
  const std::vector<base::TokenId> text = {1, 2, 3};
  own.Send(Request(kOwn, 1, 0, base::kEmptyPrefixHash, text));
  auto replies = own.Replies(kTestTimeout);
  Expect(replies.size() == 1 && replies[0].status == schemas::DraftStatus::kOk, "no session");

  other.Send(schemas::EndSession{.target_incarnation = kOwn, .sequence = kSequence});
  other.Send(Request(kOwn, 2, 0, base::kEmptyPrefixHash, {9}));
  Expect(other.Replies(kSilence).empty(), "another target was answered");

  const uint64_t hash = base::ExtendPrefixHash(base::kEmptyPrefixHash, text);
  own.Send(Request(kOwn, 2, 3, hash, {4}));
  replies = own.Replies(kTestTimeout);
  Expect(replies.size() == 1 && replies[0].status == schemas::DraftStatus::kOk,
         "another target ended the session");
  return 0;
}

}  // namespace
}  // namespace specfabric

int main(int argc, char** argv) { return specfabric::Main(argc, argv); }
