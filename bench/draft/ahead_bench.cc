// What drafting ahead hits, by policy, and what a reply then takes of the draft's time: a draft
// model drafts along texts that the target wrote. Between two rounds it has all the time that its
// budget needs, so that policies are compared by what they run, not by how quick the machine is.
//
//   specfabric generate --model=models/target --prompt=... --json >> texts.jsonl
//   ahead_bench --model=models/draft --texts=texts.jsonl [--tree=1,1,1,1] [--nodes=40]

#include <gflags/gflags.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/clock.h"
#include "base/hash.h"
#include "draft/draft_engine.h"
#include "model/parallel/communicator.h"
#include "nlohmann/json.hpp"
#include "speculation/merge.h"

DEFINE_string(model, "models/draft", "checkpoint folder of the draft");
DEFINE_string(texts, "", "what `specfabric generate --json` printed, an answer a line");
DEFINE_string(tree, "1,1,1,1", "what is sent in a round, as the draft's --tree");
DEFINE_int32(nodes, 40, "run ahead in a round; fan-outs keep half of them for next roots");

namespace specfabric::draft {
namespace {

using base::TokenId;

constexpr int kBlocks = 256;

struct Tally {
  int64_t rounds = 0, hits = 0, accepted = 0;
  std::vector<double> ready_us;  // from request to reply, where no pass was needed
  std::array<std::array<int64_t, 2>, kOutcomeLevels> by_accepted = {};  // misses, hits
};

absl::StatusOr<std::vector<std::vector<TokenId>>> ReadTexts() {
  std::ifstream file(FLAGS_texts);
  if (!file) return absl::NotFoundError("--texts=" + FLAGS_texts + ": cannot be read");
  std::vector<std::vector<TokenId>> texts;
  for (std::string line; std::getline(file, line);) {
    const auto answer = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!answer.is_object() || !answer.contains("token_ids")) {
      return absl::InvalidArgumentError("--texts=" + FLAGS_texts + ": a line has no token_ids");
    }
    texts.push_back(answer["token_ids"].get<std::vector<TokenId>>());
  }
  if (texts.empty()) return absl::InvalidArgumentError("--texts=" + FLAGS_texts + ": no line");
  return texts;
}

class Follower {
 public:
  Follower(const DraftEngineOptions& options, std::unique_ptr<model::RankModel> model)
      : engine_(
            options, std::move(model), /*draft_rows=*/nullptr,
            [](const transport::Fence&) -> absl::StatusOr<transport::Lease> {
              return absl::UnavailableError("no draft probabilities are asked for");
            },
            [this](uint64_t, schemas::DraftReply reply, OutgoingDraftProbs) {
              answered_at_ = base::Now();
              reply_ = std::move(reply);
              replied_ = true;
            }) {}

  // Drafts along the text from its second token on, and accepts what is right.
  absl::Status Follow(base::SequenceId sequence, const std::vector<TokenId>& text, Tally* tally) {
    size_t held = 0, committed = 1;
    for (uint32_t round = 1; committed + 1 < text.size(); ++round) {
      schemas::DraftRequest request;
      request.target_incarnation = 1;
      request.sequence = sequence;
      request.round = round;
      request.base_length = static_cast<int32_t>(held);
      request.base_hash =
          base::ExtendPrefixHash(base::kEmptyPrefixHash, absl::MakeConstSpan(text.data(), held));
      request.append_tokens.assign(text.begin() + held, text.begin() + committed);
      request.max_nodes = speculation::kMaxVerifyNodes - 1;
      request.time_budget = base::kSecond;
      if (absl::Status asked = Ask(request, tally); !asked.ok()) return asked;
      held = committed;
      committed += 1 + Accepted(text, committed);
      while (engine_.can_go_ahead()) {
        if (absl::Status ran = engine_.Step(); !ran.ok()) return ran;
      }
    }
    engine_.EndSession({1, sequence});
    return absl::OkStatus();
  }

  void Count(Tally* tally) const {
    const auto& outcomes = engine_.stats().outcomes;
    for (int level = 0; level < kOutcomeLevels; ++level) {
      for (int outcome = 0; outcome < kOutcomes; ++outcome) {
        const bool hit = outcome == static_cast<int>(Outcome::kHit);
        const auto count = static_cast<int64_t>(outcomes[level][outcome]);
        tally->by_accepted[level][hit] += count;
        tally->rounds += count;
        tally->hits += hit ? count : 0;
        tally->accepted += level * count;
      }
    }
  }

 private:
  absl::Status Ask(const schemas::DraftRequest& request, Tally* tally) {
    replied_ = false;
    const uint64_t before = engine_.stats().replies_without_pass;
    const base::Nanos asked = base::Now();
    engine_.Accept(1, request, asked);
    while (!replied_) {
      if (absl::Status ran = engine_.Step(); !ran.ok()) return ran;
    }
    if (reply_.status != schemas::DraftStatus::kOk) return absl::InternalError("refused");
    if (engine_.stats().replies_without_pass > before) {
      tally->ready_us.push_back(static_cast<double>(answered_at_ - asked) / 1e3);
    }
    return absl::OkStatus();
  }

  int32_t Accepted(const std::vector<TokenId>& text, size_t committed) const {
    return speculation::AgreesWith(reply_.tree, absl::MakeConstSpan(text).subspan(committed))
        .levels;
  }

  DraftEngine engine_;
  schemas::DraftReply reply_;
  bool replied_ = false;
  base::Nanos answered_at_ = 0;
};

void Print(const char* policy, Tally tally) {
  std::sort(tally.ready_us.begin(), tally.ready_us.end());
  const auto rounds = static_cast<double>(std::max<int64_t>(1, tally.rounds));
  std::printf("%-11s %7ld %9.2f %9.3f %8zu %9.1f  ", policy, static_cast<long>(tally.rounds),
              static_cast<double>(tally.accepted) / rounds,
              static_cast<double>(tally.hits) / rounds, tally.ready_us.size(),
              tally.ready_us.empty() ? 0.0 : tally.ready_us[tally.ready_us.size() / 2]);
  for (const auto& [misses, hits] : tally.by_accepted) {
    if (misses + hits > 0) std::printf(" %.2f", static_cast<double>(hits) / (misses + hits));
  }
  std::printf("\n");
}

absl::Status Main() {
  const auto texts = ReadTexts();
  if (!texts.ok()) return texts.status();
  auto growth = speculation::GrowthPolicy::Parse(FLAGS_tree);
  if (!growth.ok()) return growth.status();
  std::printf("%-11s %7s %9s %9s %8s %9s   %s\n", "policy", "rounds", "accepted", "hit rate",
              "ready", "median us", "hit rate by draft tokens accepted");
  for (const char* name : {"off", "uniform", "geometric", "likeliest"}) {
    const auto communicators = model::MakeThreadCommunicators(1);
    model::RankOptions rank = {.kv_blocks = kBlocks};
    auto model = model::RankModel::Load(FLAGS_model, rank, communicators[0].get());
    if (!model.ok()) return model.status();
    DraftEngineOptions options;
    options.sessions = {.kv_blocks = kBlocks, .context = (*model)->config().context};
    options.growth = *growth;
    options.ahead.policy = *ParseAheadPolicy(name);
    options.ahead.nodes = FLAGS_nodes;
    options.ahead.least_chance = 0;
    Follower follower(options, *std::move(model));
    Tally tally;
    base::SequenceId sequence = 0;
    for (const std::vector<TokenId>& text : *texts) {
      if (absl::Status s = follower.Follow(++sequence, text, &tally); !s.ok()) return s;
    }
    follower.Count(&tally);
    Print(name, std::move(tally));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace specfabric::draft

int main(int argc, char** argv) {
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  const absl::Status status = specfabric::draft::Main();
  if (status.ok()) return 0;
  std::fprintf(stderr, "ahead_bench: %s\n", std::string(status.message()).c_str());
  return 1;
}
