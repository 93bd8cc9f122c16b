// A draft worker without a model that answers every request at once, in a way of its own:
//
//   hostile_draft WAY VOCABULARY
//
// Prints the address that it listens on, and serves until its standard input ends. Its tree has up
// to ten nodes ("2,2,1", as far as the request allows), its draft tokens are uniform, drawn without
// replacement; where the verification method reads q it sends the uniform distribution beside
// them. So `uniform` is a right answer, and what the other ways do wrong is all that is wrong with
// them.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/bfloat16.h"
#include "base/clock.h"
#include "base/queue.h"
#include "link/link.h"
#include "schemas/messages.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"
#include "speculation/draft_probs.h"
#include "speculation/verification_method.h"

namespace specfabric {
namespace {

using link::PeerId;
using schemas::DraftReply;
using schemas::DraftRequest;
using speculation::SiblingDraw;

constexpr int kWidths[] = {2, 2, 1};
constexpr int kLargeRows = 65;  // more than any target takes
constexpr int kSessions = 1024;
constexpr int kSlots = 256;
constexpr base::Nanos kLate = 300 * base::kMillisecond;

// One answer: a reply, and the tensors beside it.
struct Answer {
  DraftReply reply;
  int replies = 1;
  base::Nanos replies_after = 0;               // the request
  std::vector<std::vector<uint16_t>> tensors;  // draft_probs, as they go out
  base::Nanos tensors_after = 0;               // the reply
};

using Way = std::function<void(const DraftRequest&, Answer*)>;

class UniformDrafter {
 public:
  explicit UniformDrafter(int32_t vocabulary) : vocabulary_(vocabulary) {}

  Answer Propose(const DraftRequest& request) {
    Answer answer;
    DraftReply& reply = answer.reply;
    reply.target_incarnation = request.target_incarnation;
    reply.sequence = request.sequence;
    reply.round = request.round;
    reply.request_id = request.request_id;
    reply.sampling_tag = schemas::SamplingTag(request.verification, request.sampling);
    reply.free_sessions = kSessions;
    const bool with_draft_probs =
        speculation::NeedsDraftRows(request.verification, SiblingDraw::kWithoutReplacement);
    reply.draw = with_draft_probs ? SiblingDraw::kWithoutReplacement : SiblingDraw::kCoupledTopK;
    const int rows = Grow(request.max_nodes, &reply);
    if (!with_draft_probs || rows == 0) return answer;
    reply.draft_probs_rows = rows;
    reply.draft_probs_entries = vocabulary_;
    answer.tensors.emplace_back(static_cast<size_t>(rows) * vocabulary_,
                                base::RoundToBFloat16(1.0f));
    return answer;
  }

 private:
  // Adds nodes to the reply, in draw order. Returns how many have children, the root among them.
  int Grow(int max_nodes, DraftReply* reply) {
    std::vector<int32_t> level = {0};
    int with_children = 0;
    for (int width : kWidths) {
      std::vector<int32_t> next;
      for (int32_t parent : level) {
        std::vector<base::TokenId> drawn;
        while (static_cast<int>(drawn.size()) < width && reply->tree.size() <= max_nodes) {
          const base::TokenId token = Draw();
          if (std::find(drawn.begin(), drawn.end(), token) != drawn.end()) continue;
          drawn.push_back(token);
          next.push_back(reply->tree.Add(parent, token, -1.0f));
        }
        with_children += !drawn.empty();
      }
      level = std::move(next);
    }
    return with_children;
  }

  base::TokenId Draw() {
    return std::uniform_int_distribution<base::TokenId>(0, vocabulary_ - 1)(random_);
  }

  const int32_t vocabulary_;
  std::mt19937_64 random_{20260101};
};

void SetDraftProbs(float value, Answer* answer) {
  for (auto& tensor : answer->tensors) {
    std::fill(tensor.begin(), tensor.end(), base::RoundToBFloat16(value));
  }
}

// What each way does to a right answer. Those that are about draft_probs do nothing where none are
// asked for.
std::map<std::string, Way> Ways(int32_t vocabulary) {
  std::map<std::string, Way> ways;
  ways["uniform"] = [](const DraftRequest&, Answer*) {};
  ways["ids_out_of_range"] = [vocabulary](const DraftRequest&, Answer* answer) {
    const base::TokenId outside[] = {vocabulary, std::numeric_limits<base::TokenId>::max()};
    auto& tokens = answer->reply.tree.tokens;
    for (size_t node = 1; node < tokens.size(); ++node) tokens[node] = outside[(node - 1) % 2];
  };
  ways["negative_ids"] = [](const DraftRequest&, Answer* answer) {
    for (base::TokenId& token : answer->reply.tree.tokens) token = base::kNoToken;
  };
  ways["too_many_nodes"] = [](const DraftRequest& request, Answer* answer) {
    speculation::TokenTree& tree = answer->reply.tree;
    while (tree.size() <= request.max_nodes + 1) tree.Add(0, 0, -1.0f);
  };
  // Beyond what a message may hold.
  ways["far_too_many_nodes"] = [](const DraftRequest&, Answer* answer) {
    speculation::TokenTree& tree = answer->reply.tree;
    tree = speculation::TokenTree::Root(base::kNoToken);
    while (tree.size() <= schemas::kMaxTreeNodes + 1) tree.Add(0, 0, -1.0f);
  };
  ways["bad_parents"] = [](const DraftRequest&, Answer* answer) {
    speculation::TokenTree& tree = answer->reply.tree;
    if (tree.size() > 1) tree.parents[1] = 1;
  };
  ways["other_draw"] = [](const DraftRequest&, Answer* answer) {
    SiblingDraw& draw = answer->reply.draw;
    draw = draw == SiblingDraw::kCoupledTopK ? SiblingDraw::kWithReplacement
                                             : SiblingDraw::kCoupledTopK;
  };
  ways["other_tag"] = [](const DraftRequest&, Answer* answer) { ++answer->reply.sampling_tag; };
  ways["other_round"] = [](const DraftRequest&, Answer* answer) { ++answer->reply.round; };
  ways["other_incarnation"] = [](const DraftRequest&, Answer* answer) {
    ++answer->reply.target_incarnation;
  };
  ways["twice"] = [](const DraftRequest&, Answer* answer) { answer->replies = 2; };
  ways["silent"] = [](const DraftRequest&, Answer* answer) {
    answer->replies = 0;
    answer->tensors.clear();
  };
  ways["slow"] = [](const DraftRequest&, Answer* answer) { answer->replies_after = kLate; };
  // High scores for tokens that are as wrong as any.
  ways["certain"] = [](const DraftRequest&, Answer* answer) {
    for (float& score : answer->reply.tree.scores) score = 0.0f;
  };
  ways["no_tensor"] = [](const DraftRequest&, Answer* answer) { answer->tensors.clear(); };
  ways["no_rows"] = [](const DraftRequest&, Answer* answer) { answer->reply.draft_probs_rows = 0; };
  ways["short_tensor"] = [](const DraftRequest&, Answer* answer) {
    for (auto& tensor : answer->tensors) tensor.pop_back();
  };
  // Too large for the target's slots.
  ways["large_tensor"] = [](const DraftRequest&, Answer* answer) {
    for (auto& tensor : answer->tensors)
      tensor.resize(tensor.size() / answer->reply.draft_probs_rows * kLargeRows);
  };
  ways["nan_draft_probs"] = [](const DraftRequest&, Answer* answer) {
    SetDraftProbs(std::numeric_limits<float>::quiet_NaN(), answer);
  };
  ways["negative_draft_probs"] = [](const DraftRequest&, Answer* answer) {
    for (auto& tensor : answer->tensors) tensor.back() = base::RoundToBFloat16(-1.0f);
  };
  ways["zero_draft_probs"] = [](const DraftRequest&, Answer* answer) {
    SetDraftProbs(0.0f, answer);
  };
  // The first row excludes the first draft token.
  ways["excluded_draft_token"] = [](const DraftRequest&, Answer* answer) {
    for (auto& tensor : answer->tensors) tensor[answer->reply.tree.tokens[1]] = 0;
  };
  // Always the same draft token, where the draft probabilities say that all are equally likely: the
  // output distribution changes.
  ways["lie"] = [](const DraftRequest&, Answer* answer) {
    for (base::TokenId& token : answer->reply.tree.tokens) token = 0;
  };
  ways["two_tensors"] = [](const DraftRequest&, Answer* answer) {
    if (!answer->tensors.empty()) answer->tensors.push_back(answer->tensors[0]);
  };
  ways["late_tensor"] = [](const DraftRequest&, Answer* answer) { answer->tensors_after = kLate; };
  return ways;
}

struct Request {
  PeerId peer = 0;
  DraftRequest request;
};

// What is to be sent at a later time: replies, or a tensor.
struct Late {
  base::Nanos time = 0;
  Request to;
  Answer answer;
};

class HostileDraft {
 public:
  HostileDraft(int32_t vocabulary, Way way) : drafter_(vocabulary), way_(std::move(way)) {
    link::LinkOptions options;
    options.listen = "127.0.0.1:0";
    options.hello.role = schemas::Role::kDraft;
    options.hello.model = "hostile";
    options.hello.vocabulary = vocabulary;
    options.hello.context = 1 << 20;
    options.hello.verification_methods = (1u << speculation::kVerificationMethods) - 1;
    options.hello.capacity = kSessions;
    link::LinkHandler handler;
    handler.on_message = [this](PeerId peer, link::Message message) {
      auto* request = std::get_if<DraftRequest>(&message);
      if (request != nullptr) inbox_.PushAlways({peer, std::move(*request)});
    };
    auto link = link::Link::Create(std::move(options), std::move(handler));
    Check(link.status());
    link_ = *std::move(link);
    const size_t bytes = size_t{kLargeRows} * vocabulary * sizeof(uint16_t);
    auto pool = link_->AddPool(0, {transport::MemoryKind::kHost, bytes, kSlots});
    Check(pool.status());
    pool_ = *std::move(pool);
    Check(link_->Start());
    thread_ = std::thread([this] { Run(); });
  }

  ~HostileDraft() {
    inbox_.Close();
    thread_.join();
  }

  const std::string& listen_address() const { return link_->listen_address(); }

 private:
  static void Check(const absl::Status& status) {
    if (status.ok()) return;
    std::fprintf(stderr, "hostile_draft: %s\n", status.ToString().c_str());
    std::exit(1);
  }

  void Run() {
    while (!inbox_.closed()) {
      for (Request& request : inbox_.PopAll(late_.empty() ? base::kForever : late_[0].time)) {
        Reply(std::move(request));
      }
      SendDue(base::Now());
    }
  }

  // What cannot be sent is a miss for the target, as if this draft were slow.
  void Reply(Request request) {
    Answer answer = drafter_.Propose(request.request);
    way_(request.request, &answer);
    Answer tensors = {.reply = {}, .replies = 0, .tensors = std::exchange(answer.tensors, {})};
    const base::Nanos now = base::Now();
    const base::Nanos replies_at = now + answer.replies_after;
    const base::Nanos tensors_at = replies_at + answer.tensors_after;
    late_.push_back({replies_at, request, std::move(answer)});
    late_.push_back({tensors_at, std::move(request), std::move(tensors)});
    SendDue(now);
  }

  void SendDue(base::Nanos now) {
    std::stable_sort(late_.begin(), late_.end(),
                     [](const Late& a, const Late& b) { return a.time < b.time; });
    const auto end = std::find_if(late_.begin(), late_.end(),
                                  [now](const Late& late) { return late.time > now; });
    for (auto late = late_.begin(); late != end; ++late) {
      for (int i = 0; i < late->answer.replies; ++i) {
        link_->Send(late->to.peer, late->answer.reply).IgnoreError();
      }
      for (const auto& draft_probs : late->answer.tensors) SendTensor(late->to, draft_probs);
    }
    late_.erase(late_.begin(), end);
  }

  void SendTensor(const Request& to, const std::vector<uint16_t>& draft_probs) {
    const DraftRequest& request = to.request;
    const transport::Fence fence = {request.target_incarnation, request.round};
    auto lease = pool_->Acquire(fence);
    if (!lease.ok()) return;
    const uint32_t bytes = static_cast<uint32_t>(draft_probs.size() * sizeof(uint16_t));
    std::copy_n(reinterpret_cast<const uint8_t*>(draft_probs.data()), bytes, lease->data());
    link_
        ->SendTensor(to.peer, schemas::TensorType::kDraftProbs,
                     {fence, request.draft_probs_pool, request.sequence}, *std::move(lease), bytes)
        .IgnoreError();
  }

  base::BoundedQueue<Request> inbox_{1 << 14};
  UniformDrafter drafter_;
  const Way way_;
  std::vector<Late> late_;  // the earliest first
  std::unique_ptr<link::Link> link_;
  std::shared_ptr<transport::SlotPool> pool_;
  std::thread thread_;
};

int Main(int argc, char** argv) {
  const int32_t vocabulary = argc == 3 ? std::atoi(argv[2]) : 0;
  const std::map<std::string, Way> ways = Ways(vocabulary);
  const auto way = ways.find(argc == 3 ? argv[1] : "");
  if (way == ways.end() || vocabulary < 2) {
    std::fprintf(stderr, "usage: hostile_draft WAY VOCABULARY; ways:");
    for (const auto& [name, unused] : ways) std::fprintf(stderr, " %s", name.c_str());
    std::fprintf(stderr, "; vocabulary: from 2\n");
    return 2;
  }
  spdlog::set_default_logger(spdlog::stderr_logger_mt("hostile_draft"));
  HostileDraft draft(vocabulary, way->second);
  std::printf("%s\n", draft.listen_address().c_str());
  std::fflush(stdout);
  char ignored;
  while (read(STDIN_FILENO, &ignored, 1) > 0) {
  }
  return 0;
}

}  // namespace
}  // namespace specfabric

int main(int argc, char** argv) { return specfabric::Main(argc, argv); }
