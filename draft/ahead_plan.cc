#include "draft/ahead_plan.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "speculation/fan_out.h"

namespace specfabric::draft {
namespace {

// A next root of a fan-out comes before everything else.
constexpr float kFirst = 1e3f;

bool Worse(const AheadNode& a, const AheadNode& b) { return a.key < b.key; }

}  // namespace

absl::StatusOr<AheadPolicy> ParseAheadPolicy(std::string_view text) {
  if (text == "off") return AheadPolicy::kOff;
  if (text == "likeliest") return AheadPolicy::kLikeliest;
  if (text == "geometric") return AheadPolicy::kGeometric;
  if (text == "uniform") return AheadPolicy::kUniform;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", std::string(text),
                   "\" is no way to draft ahead; allowed: likeliest, geometric, uniform, off"));
}

void AheadPlan::Start(const AheadOptions& options, const SpeculationCache& speculation_cache,
                      double acceptance) {
  Stop();
  if (options.policy == AheadPolicy::kOff) return;
  options_ = options;
  left_ = options.nodes;
  least_key_ = std::log(options.least_chance);
  int32_t levels = 0;
  for (int node = 0; node < speculation_cache.size(); ++node) {
    if (speculation_cache.sent(node))
      levels = std::max(levels, speculation::DepthOf(speculation_cache.tree(), node));
  }
  // Half is for next roots, the rest for what is below them.
  if (options.policy == AheadPolicy::kGeometric) {
    quotas_ = speculation::WholeFanOut(acceptance, options.falloff, levels, options.nodes / 2);
  } else if (options.policy == AheadPolicy::kUniform) {
    quotas_ = speculation::UniformFanOut(levels, options.nodes / 2);
  }
  for (int node = 0; node < speculation_cache.size(); ++node) Offer(speculation_cache, node);
}

void AheadPlan::Stop() {
  heap_.clear();
  quotas_.clear();
}

AheadNode AheadPlan::Take() {
  std::pop_heap(heap_.begin(), heap_.end(), Worse);
  const AheadNode node = heap_.back();
  heap_.pop_back();
  if (--left_ == 0) heap_.clear();
  return node;
}

void AheadPlan::OnRun(const SpeculationCache& speculation_cache, int node) {
  if (left_ > 0) Offer(speculation_cache, node);
}

int32_t* AheadPlan::Quota(const SpeculationCache& speculation_cache, int node) {
  if (quotas_.empty() || !speculation_cache.sent(node)) return nullptr;
  return &quotas_[speculation::DepthOf(speculation_cache.tree(), node)];
}

// The children of the node that were not run.
void AheadPlan::Offer(const SpeculationCache& speculation_cache, int node) {
  int32_t* quota = Quota(speculation_cache, node);
  for (const Candidate& candidate : speculation_cache.candidates(node)) {
    const int child = speculation_cache.Child(node, candidate.scored.token);
    if (child >= 0 && speculation_cache.run(child)) continue;
    float key = speculation_cache.path(node) + candidate.logprob;
    // A draft token that was sent but not run is no next root, unless the target trims it.
    if (quota != nullptr && (child < 0 || !speculation_cache.sent(child))) {
      if (*quota == 0) continue;
      --*quota;
      key += kFirst;
    }
    if (key < least_key_) return;  // and so are those after it
    Push({node, candidate.scored.token, candidate.logprob, key});
  }
}

void AheadPlan::Push(const AheadNode& node) {
  heap_.push_back(node);
  std::push_heap(heap_.begin(), heap_.end(), Worse);
}

}  // namespace specfabric::draft
