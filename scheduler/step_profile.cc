#include "scheduler/step_profile.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "scheduler/plan_rows.h"
#include "scheduler/policy/step_time.h"
#include "scheduler/sequence.h"

namespace specfabric::scheduler {
namespace {

constexpr int32_t kMostRows = 512;  // of more, arithmetic bounds the time on every device

int32_t Trees(const SchedulerOptions& options, int32_t rows) {
  return std::min(options.max_sequences, (rows + kProfileTree - 1) / kProfileTree);
}

int32_t LargestTree(const SchedulerOptions& options, int32_t rows) {
  const int32_t trees = Trees(options, rows);
  return (rows + trees - 1) / trees;
}

int32_t BlocksOf(const SchedulerOptions& options, int32_t rows) {
  return (rows + options.block_size - 1) / options.block_size;
}

bool Fits(const SchedulerOptions& options, int32_t rows) {
  const int32_t largest = LargestTree(options, rows);
  return rows <= options.max_step_tokens && largest <= options.max_tree_nodes &&
         largest < options.max_context &&
         Trees(options, rows) * BlocksOf(options, largest) <= options.kv_blocks;
}

}  // namespace

std::vector<int32_t> ProfileSizes(const SchedulerOptions& options) {
  std::vector<int32_t> sizes = StepTime::Sizes(kMostRows);
  while (!sizes.empty() && !Fits(options, sizes.back())) sizes.pop_back();
  return sizes;
}

StepPlan ProfileStep(const SchedulerOptions& options, int32_t rows, uint64_t number) {
  SPECFABRIC_CHECK(Fits(options, rows));
  const int32_t trees = Trees(options, rows);
  // Different tokens, since experts are chosen by them.
  const auto token = [&](int32_t row) { return (row * 7919 + 1) % options.vocabulary; };
  StepPlan plan;
  plan.step = number;
  int32_t block = 0;
  for (int32_t t = 0; t < trees; ++t) {
    const int32_t first = plan.rows(), left = rows - first;
    const int32_t size = (left + trees - t - 1) / (trees - t);
    SequenceRequest request;
    request.id = t + 1;
    request.prompt = {token(first)};
    request.max_tokens = options.max_context;
    Sequence sequence(std::move(request), options.max_context);
    sequence.draft.tree = speculation::TokenTree::Root(token(first));
    for (int32_t node = 1; node < size; ++node) {
      sequence.draft.tree.Add(node - 1, token(first + node), 0);
    }
    sequence.blocks.resize(BlocksOf(options, size));
    std::iota(sequence.blocks.begin(), sequence.blocks.end(), block);
    block += static_cast<int32_t>(sequence.blocks.size());
    std::vector<int32_t> nodes(size - 1);
    std::iota(nodes.begin(), nodes.end(), 1);
    PlanTree(nodes, options.block_size, &sequence, &plan);
  }
  return plan;
}

}  // namespace specfabric::scheduler
