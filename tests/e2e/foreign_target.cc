// Two targets of one draft worker, of which one speaks in the other's name:
//
//   foreign_target DRAFT_ADDRESS MODEL_VOCABULARY
//
// The first opens a session; the second asks for it, and ends it; the first goes on. Exits with 0
// if the first got its trees as if nothing had been and the second no answer.

#include <cstdlib>
#include <vector>

#include "base/clock.h"
#include "base/hash.h"
#include "schemas/messages.h"
#include "tests/e2e/played_target.h"

namespace specfabric {
namespace {

constexpr base::Nanos kSilence = 500 * base::kMillisecond;

int Main(int argc, char** argv) {
  if (argc != 3) Fail("usage: foreign_target DRAFT_ADDRESS MODEL_VOCABULARY");
  constexpr uint64_t kOwn = 11, kOther = 12;
  PlayedTarget own(kOwn, argv[1], std::atoi(argv[2])), other(kOther, argv[1], std::atoi(argv[2]));
  const std::vector<base::TokenId> text = {1, 2, 3};
  own.Send(AskFor(kOwn, 1, text));
  auto replies = own.Replies();
  Expect(replies.size() == 1 && replies[0].status == schemas::DraftStatus::kOk, "no session");

  other.Send(schemas::EndSession{.target_incarnation = kOwn, .sequence = kSequence});
  other.Send(AskFor(kOwn, 2, {9}));
  Expect(other.Replies(kSilence).empty(), "another target was answered");

  const uint64_t hash = base::ExtendPrefixHash(base::kEmptyPrefixHash, text);
  own.Send(AskFor(kOwn, 2, {4}, 3, hash));
  replies = own.Replies();
  Expect(replies.size() == 1 && replies[0].status == schemas::DraftStatus::kOk,
         "another target ended the session");
  return 0;
}

}  // namespace
}  // namespace specfabric

int main(int argc, char** argv) { return specfabric::Main(argc, argv); }
