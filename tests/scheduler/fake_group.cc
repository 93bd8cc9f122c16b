#include "tests/scheduler/fake_group.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "speculation/tree.h"

namespace specfabric::scheduler {

using base::TokenId;

TokenId NextToken(const std::vector<TokenId>& prefix, int32_t vocabulary) {
  return static_cast<TokenId>(base::ExtendPrefixHash(base::kEmptyPrefixHash, prefix) % vocabulary);
}

Expected RunAlone(const SequenceRequest& request, const SchedulerOptions& options) {
  Expected expected;
  std::vector<TokenId> text = request.prompt;
  text.insert(text.end(), request.generated.begin(), request.generated.end());
  const size_t limit =
      std::min<size_t>(request.prompt.size() + request.max_tokens, options.max_context);
  while (text.size() < limit) {
    const TokenId token = NextToken(text, options.vocabulary);
    text.push_back(token);
    expected.output.push_back(token);
    if (std::count(request.stop_ids.begin(), request.stop_ids.end(), token) > 0) {
      expected.finish = FinishReason::kStop;
      break;
    }
  }
  return expected;
}

FakeGroup::FakeGroup(const SchedulerOptions& options, bool apply_moves)
    : options_(options),
      apply_moves_(apply_moves),
      cache_(static_cast<size_t>(options.kv_blocks) * options.block_size) {}

void FakeGroup::Error(const std::string& what) {
  if (errors_.size() < 20) errors_.push_back(what);
}

StepResult FakeGroup::Execute(const StepPlan& plan, const Scheduler& scheduler) {
  CheckShape(plan);
  CheckOwnership(plan, scheduler);
  CheckWrites(plan);
  CheckMoves(plan);
  if (!errors_.empty() && errors_.front().starts_with("shape")) return {};
  if (apply_moves_) Move(plan);
  // All rows of a step are written before any is read, as a forward pass does layer by layer.
  for (const PlanSequence& part : plan.sequences) {
    for (int i = 0; i < part.row_count; ++i) {
      const int row = part.first_row + i;
      cache_[Physical(plan, part, part.kv_len + i)] = {plan.tokens[row], plan.positions[row]};
    }
  }
  StepResult result;
  result.step = plan.step;
  for (const PlanSequence& part : plan.sequences) {
    result.sequences.push_back(Run(plan, part, scheduler));
  }
  return result;
}

void FakeGroup::CheckShape(const StepPlan& plan) {
  const size_t rows = plan.tokens.size();
  if (plan.positions.size() != rows || plan.parents.size() != rows ||
      plan.ancestors.size() != rows || plan.logit_rows.size() != plan.score_tokens.size()) {
    Error("shape: arrays differ in length");
  }
  if (plan.rows() == 0 || plan.rows() > options_.max_step_tokens) {
    Error(absl::StrCat("shape: ", plan.rows(), " rows of ", options_.max_step_tokens));
  }
  if (!std::is_sorted(plan.logit_rows.begin(), plan.logit_rows.end())) {
    Error("shape: logit rows do not ascend");
  }
  int row = 0, block = 0, logit = 0;
  std::set<base::SequenceId> ids;
  for (const PlanSequence& part : plan.sequences) {
    if (part.first_row != row || part.first_block != block || part.first_logit != logit) {
      Error("shape: parts are not adjacent");
    }
    row += part.row_count;
    block += part.block_count;
    logit += part.logit_count;
    if (!ids.insert(part.id).second) Error("shape: a sequence is planned twice");
    if (part.row_count < 1) Error("shape: no rows");
    if (part.kv_len + part.row_count > part.block_count * options_.block_size) {
      Error("shape: rows beyond the blocks");
    }
    if (part.kind == RowsKind::kTree &&
        (part.row_count > options_.max_tree_nodes || part.logit_count != part.row_count)) {
      Error("shape: tree rows");
    }
    for (int i = 0; i < part.logit_count; ++i) {
      const int at = plan.logit_rows[part.first_logit + i];
      if (at < part.first_row || at >= part.first_row + part.row_count) {
        Error("shape: logit row of another sequence");
      }
    }
  }
  if (row != plan.rows() || block != static_cast<int>(plan.blocks.size()) ||
      logit != static_cast<int>(plan.logit_rows.size())) {
    Error("shape: parts do not add up");
  }
}

// Records the owners of all blocks, of the sequences in the plan and those seen before, and
// compares them with the plan.
void FakeGroup::CheckOwnership(const StepPlan& plan, const Scheduler& scheduler) {
  for (base::SequenceId id : plan.preempted) {
    if (scheduler.Blocks(id) == nullptr || !scheduler.Blocks(id)->empty()) {
      Error(absl::StrCat("sequence ", id, " was preempted and has blocks"));
    }
  }
  for (const PlanSequence& part : plan.sequences) {
    owned_[part.id] = *scheduler.Blocks(part.id);
    const Blocks& owned = owned_[part.id];
    if (part.block_count > static_cast<int>(owned.size()) ||
        !std::equal(owned.begin(), owned.begin() + part.block_count,
                    plan.blocks.begin() + part.first_block)) {
      Error(absl::StrCat("sequence ", part.id, " is planned with blocks that it does not have"));
    }
  }
  owners_.clear();
  for (auto& [id, blocks] : owned_) {
    if (scheduler.Blocks(id) == nullptr) {
      Error(absl::StrCat("sequence ", id, " is gone, and its end was not reported"));
      continue;
    }
    blocks = *scheduler.Blocks(id);
    if (std::set<int32_t>(blocks.begin(), blocks.end()).size() != blocks.size()) {
      Error(absl::StrCat("sequence ", id, " has a block twice"));
    }
    for (int32_t block : blocks) {
      if (block < 0 || block >= options_.kv_blocks) Error(absl::StrCat("no such block: ", block));
      ++owners_[block];
    }
  }
}

// A row writes into a block of one owner. Shared blocks are full, and lie before the slots that
// their owners write.
void FakeGroup::CheckWrites(const StepPlan& plan) {
  for (const PlanSequence& part : plan.sequences) {
    for (int32_t block = part.kv_len / options_.block_size; block < part.block_count; ++block) {
      if (owners_[plan.blocks[part.first_block + block]] != 1) {
        Error(absl::StrCat("sequence ", part.id, " writes a block that others own too"));
      }
    }
  }
}

// A move stays within the blocks of one planned sequence, and writes no shared block.
void FakeGroup::CheckMoves(const StepPlan& plan) {
  for (const SlotMove& move : plan.moves) {
    const int32_t from = move.from / options_.block_size, to = move.to / options_.block_size;
    const auto has = [](const Blocks& blocks, int32_t block) {
      return std::find(blocks.begin(), blocks.end(), block) != blocks.end();
    };
    const bool sound =
        std::any_of(plan.sequences.begin(), plan.sequences.end(), [&](const PlanSequence& part) {
          return has(owned_[part.id], from) && has(owned_[part.id], to);
        });
    if (!sound) Error("a move outside the blocks of one planned sequence");
    if (owners_[to] != 1) Error("a move writes a block that others own too");
    if (move.from == move.to) Error("a move to itself");
  }
}

void FakeGroup::Move(const StepPlan& plan) {
  for (const SlotMove& move : plan.moves) cache_[move.to] = cache_[move.from];
}

int32_t FakeGroup::Physical(const StepPlan& plan, const PlanSequence& part, int32_t slot) const {
  return plan.blocks[part.first_block + slot / options_.block_size] * options_.block_size +
         slot % options_.block_size;
}

// The tokens that row `row` of the sequence attends to, by position, from the cache.
std::vector<TokenId> FakeGroup::Visible(const StepPlan& plan, const PlanSequence& part, int row) {
  std::vector<int32_t> slots;
  for (int32_t slot = 0; slot < part.kv_len; ++slot) slots.push_back(slot);
  for (int i = 0; i <= row; ++i) {
    const bool seen =
        part.kind == RowsKind::kPrefill || (plan.ancestors[part.first_row + row] >> i & 1) != 0;
    if (seen) slots.push_back(part.kv_len + i);
  }
  std::vector<TokenId> tokens;
  for (int32_t slot : slots) {
    const Slot& entry = cache_[Physical(plan, part, slot)];
    if (entry.position != static_cast<int32_t>(tokens.size())) {
      Error(absl::StrCat("sequence ", part.id, " slot ", slot, " has position ", entry.position,
                         " and should have ", tokens.size()));
    }
    tokens.push_back(entry.token);
  }
  return tokens;
}

SequenceResult FakeGroup::Run(const StepPlan& plan, const PlanSequence& part,
                              const Scheduler& scheduler) {
  const std::vector<TokenId>& committed = *scheduler.Committed(part.id);
  const std::vector<TokenId> first = Visible(plan, part, 0);
  if (first.size() > committed.size() ||
      !std::equal(first.begin(), first.end(), committed.begin())) {
    Error(absl::StrCat("the cache of sequence ", part.id, " is not its committed prefix"));
  }
  SequenceResult result;
  result.id = part.id;
  const auto logprobs = [](TokenId token) {
    return base::TokenLogprobs{
        .token = token, .logprob = -1.0f - static_cast<float>(token), .top = {}};
  };
  if (part.kind == RowsKind::kPrefill) {
    for (int i = 0; i < part.logit_count; ++i) {
      const TokenId scored = plan.score_tokens[part.first_logit + i];
      if (scored != base::kNoToken) result.prompt_logprobs.push_back(logprobs(scored));
    }
    if (part.samples) {
      if (plan.logit_rows[part.first_logit + part.logit_count - 1] !=
          part.first_row + part.row_count - 1) {
        Error("the last row of a prefill has no logits");
      }
      result.accepted.tokens = {
          NextToken(Visible(plan, part, part.row_count - 1), options_.vocabulary)};
    }
  } else {
    speculation::TokenTree tree;
    std::vector<TokenId> chosen;
    for (int i = 0; i < part.row_count; ++i) {
      tree.parents.push_back(plan.parents[part.first_row + i]);
      tree.tokens.push_back(plan.tokens[part.first_row + i]);
      tree.scores.push_back(0.0f);
      chosen.push_back(NextToken(Visible(plan, part, i), options_.vocabulary));
    }
    if (!Validate(tree, options_.max_tree_nodes, options_.vocabulary).ok()) {
      Error("an invalid tree was planned");
      return result;
    }
    result.accepted = WalkCoupled(tree, chosen);
  }
  if (part.logprobs >= 0) {
    for (TokenId token : result.accepted.tokens) result.logprobs.push_back(logprobs(token));
  }
  return result;
}

}  // namespace specfabric::scheduler
