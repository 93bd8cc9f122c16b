#ifndef SPECFABRIC_DRAFT_AHEAD_PLAN_H_
#define SPECFABRIC_DRAFT_AHEAD_PLAN_H_

// Which nodes a draft runs ahead of the outcome, while the target verifies the tree it was sent:
// those likeliest to be needed by the next one. A node is needed if its whole path is accepted or
// chosen, so the most likely one under the calibrated chances is next; fan-outs give every number
// of accepted draft tokens its share of next roots first. Owned by the session; pure.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "draft/speculation_cache.h"

namespace specfabric::draft {

enum class AheadPolicy : uint8_t { kOff, kLikeliest, kGeometric, kUniform };

// "off", "likeliest", "geometric" or "uniform"; InvalidArgument says what is allowed.
absl::StatusOr<AheadPolicy> ParseAheadPolicy(std::string_view text);

struct AheadOptions {
  AheadPolicy policy = AheadPolicy::kLikeliest;
  int32_t nodes = 200;  // run ahead between two commits of a sequence, at most
  int32_t rows = 4;     // of one pass, or one for each sequence that drafts ahead if those are more
  float least_chance = 0.003f;  // of being needed, below which a node gets no row
  double falloff = 1.0;  // kGeometric: F candidates miss the next token with chance F^-falloff
};

// A node to be run: the child of `parent` with this token.
struct AheadNode {
  int32_t parent = 0;
  base::TokenId token = base::kNoToken;
  float logprob = 0.0f;
  float key = 0.0f;  // higher first
};

class AheadPlan {
 public:
  // A tree was sent. acceptance: the recent acceptance rate of a draft token; for the geometric
  // fan-out.
  void Start(const AheadOptions& options, const SpeculationCache& speculation_cache,
             double acceptance);
  void Stop();

  bool any() const { return !heap_.empty(); }
  float best() const { return heap_.front().key; }
  AheadNode Take();
  // The node was run, and has its candidates.
  void OnRun(const SpeculationCache& speculation_cache, int node);

 private:
  void Offer(const SpeculationCache& speculation_cache, int node);
  void Push(const AheadNode& node);
  int32_t* Quota(const SpeculationCache& speculation_cache, int node);

  AheadOptions options_;
  float least_key_ = 0;
  int32_t left_ = 0;             // nodes that may still be run
  std::vector<int32_t> quotas_;  // of next roots, by accepted draft tokens; empty: none
  std::vector<AheadNode> heap_;  // the best in front
};

}  // namespace specfabric::draft

#endif  // SPECFABRIC_DRAFT_AHEAD_PLAN_H_
