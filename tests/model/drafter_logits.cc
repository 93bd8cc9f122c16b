// Runs a target and a drafter that reads its hidden states, and prints what the drafter computes,
// for comparison with another implementation. Not a test by itself.
//
//   drafter_logits --target DIR --drafter DIR --ids 1,2,3,4 --chain 5,6 --tree 7,8,9 --parents
//   -1,0,0
//   drafter_logits --target DIR --drafter DIR --ids 1,2,3,4,5,6 --anchors 2,5 --chain 7,8,9
//
// The target reads all ids but the last, the drafter all but the first, each beside the state of
// the one before; then the chain behind them, and the tree instead of the chain, level by level.
// A line for the layers that are read, and two for each row, in this order: logits, and the state
// that the row hands on.
//
// A block drafter runs a block for each anchor, a position of --ids, one after the other: it reads
// the states of the positions before it, those since the anchor before in one pass. The chain is
// what is drafted, but for the last level. A line `logits` for each level of a block, and one
// `confidence` for all if the drafter has such a head.

#include <gflags/gflags.h>

#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/model/group.h"

DEFINE_string(target, "", "checkpoint folder of the target");
DEFINE_string(drafter, "", "checkpoint folder of the drafter");
DEFINE_string(ids, "", "comma-separated token ids, at least two");
DEFINE_string(chain, "", "token ids to draft one after the other");
DEFINE_string(tree, "", "token ids of a tree's nodes, level by level");
DEFINE_string(anchors, "", "of a block drafter: ascending positions of --ids");
DEFINE_string(parents, "", "the parent of each node, -1 for the first");

namespace specfabric::model {
namespace {

absl::StatusOr<std::vector<int32_t>> ParseList(const std::string& flag, const std::string& text) {
  std::vector<int32_t> values;
  for (absl::string_view part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    if (absl::SimpleAtoi(part, &values.emplace_back())) continue;
    return absl::InvalidArgumentError(absl::StrCat("--", flag, ": not a list of integers"));
  }
  return values;
}

void PrintRow(const char* what, absl::Span<const float> values) {
  std::printf("%s", what);
  for (float value : values) std::printf(" %.9g", value);
  std::printf("\n");
}

class Run {
 public:
  explicit Run(TestGroup drafter) : drafter_(std::move(drafter)) {}

  // Fills prefix_ and prefix_states_.
  absl::Status ReadPrefix(TestGroup& target, const std::vector<int32_t>& ids) {
    absl::StatusOr<std::vector<float>> states = FusedStates(target, ids);
    if (!states.ok()) return states.status();
    Batch batch;
    AddChain(&batch, {ids.begin() + 1, ids.end()}, 0, Blocks());
    batch.states = *std::move(states);
    kv_len_ = batch.rows();
    return Forward(batch, &last_);
  }

  absl::Status RunBlocks(TestGroup& target, const std::vector<int32_t>& ids,
                         const std::vector<int32_t>& anchors, const std::vector<int32_t>& path) {
    absl::StatusOr<std::vector<float>> states = FusedStates(target, ids);
    if (!states.ok()) return states.status();
    const size_t hidden = drafter_.config().hidden;
    for (const int32_t anchor : anchors) {
      Batch context;
      AddChain(&context, {ids.begin() + kv_len_, ids.begin() + anchor}, kv_len_, Blocks());
      context.states.assign(states->begin() + kv_len_ * hidden, states->begin() + anchor * hidden);
      absl::Status status = drafter_.rank(0).WriteContext(context);
      kv_len_ = anchor;
      if (status.ok()) status = Block(ids[anchor], path);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Chain(const std::vector<int32_t>& ids) {
    std::vector<float> state = last_;
    for (size_t i = 0; i < ids.size(); ++i) {
      Batch batch;
      AddChain(&batch, {ids[i]}, kv_len_ + static_cast<int32_t>(i), Blocks());
      batch.states = state;
      if (absl::Status status = Forward(batch, &state); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Tree(const std::vector<int32_t>& ids, const std::vector<int32_t>& parents) {
    Batch whole;  // for positions and masks
    AddTree(&whole, ids, parents, kv_len_, Blocks());
    std::vector<std::vector<float>> states(ids.size());
    for (size_t node = 0; node < ids.size(); ++node) {
      Batch batch;
      AddTree(&batch, {ids[node]}, {-1}, kv_len_, Blocks());
      batch.positions[0] = whole.positions[node];
      batch.ancestors[0] = whole.ancestors[node];
      batch.sequences[0].tree_first = static_cast<int32_t>(node);
      batch.states = node == 0 ? last_ : states[parents[node]];
      if (absl::Status status = Forward(batch, &states[node]); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  static std::vector<int32_t> Blocks() {
    std::vector<int32_t> blocks(RunOptions().kv_blocks);
    std::iota(blocks.rbegin(), blocks.rend(), 0);
    return blocks;
  }
  static RankOptions RunOptions() {
    RankOptions options;
    options.dtype = DataType::kFloat32;
    options.kv_blocks = 16;
    return options;
  }

 private:
  // Those of all positions but the last: [positions][hidden]
  absl::StatusOr<std::vector<float>> FusedStates(TestGroup& target,
                                                 const std::vector<int32_t>& ids) {
    const std::vector<int32_t>& layers = drafter_.config().states->layers;
    std::printf("layers %s\n", absl::StrJoin(layers, " ").c_str());
    if (absl::Status kept = target.rank(0).KeepStates(layers); !kept.ok()) return kept;
    Batch read;
    AddChain(&read, {ids.begin(), ids.end() - 1}, 0, Blocks());
    if (absl::StatusOr<LogitRows> rows = target.Forward(read); !rows.ok()) return rows.status();
    std::vector<float> fused(static_cast<size_t>(read.rows()) * drafter_.config().hidden);
    absl::Status status =
        drafter_.rank(0).FuseStates(target.rank(0).states(), read.rows(), fused.data());
    if (!status.ok()) return status;
    return fused;
  }

  absl::Status Block(int32_t anchor, const std::vector<int32_t>& path) {
    const BlockDrafter& block = *drafter_.config().states->block;
    if (static_cast<int32_t>(path.size()) + 1 != block.levels()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--chain has ", path.size(), " tokens; allowed: ", block.levels() - 1));
    }
    std::vector<int32_t> tokens(block.rows, drafter_.config().mask_token);
    tokens[0] = anchor;
    Batch batch;
    AddChain(&batch, tokens, kv_len_, Blocks());
    batch.sequences[0].block = true;
    batch.logit_rows.resize(block.levels());
    std::iota(batch.logit_rows.begin(), batch.logit_rows.end(), block.from_anchor ? 0 : 1);
    const absl::StatusOr<LogitRows> rows = drafter_.Forward(batch);
    if (!rows.ok()) return rows.status();
    if (!block.sequential()) {
      for (const std::vector<float>& row : *rows) PrintRow("logits", row);
      return absl::OkStatus();
    }
    std::vector<float> state(block.markov == MarkovKind::kRecurrent ? block.markov_rank : 0);
    std::vector<float> confidences;
    for (int32_t level = 0; level < block.levels(); ++level) {
      const BlockNode node = {level, level == 0 ? anchor : path[level - 1]};
      RankModel& model = drafter_.rank(0);
      const absl::StatusOr<LogitShard> logits = model.ContinueBlock({node}, state);
      if (!logits.ok()) return logits.status();
      PrintRow("logits", logits->row(0));
      if (!state.empty()) state.assign(model.next_states().begin(), model.next_states().end());
      for (const float said : model.confidences()) confidences.push_back(said);
    }
    if (!confidences.empty()) PrintRow("confidence", confidences);
    return absl::OkStatus();
  }

  // Prints all rows, and stores the last one's state.
  absl::Status Forward(const Batch& batch, std::vector<float>* state) {
    const absl::StatusOr<LogitRows> rows = drafter_.Forward(batch);
    if (!rows.ok()) return rows.status();
    const absl::Span<const float> states = drafter_.rank(0).next_states();
    const size_t hidden = drafter_.config().hidden;
    for (size_t row = 0; row < rows->size(); ++row) {
      PrintRow("logits", (*rows)[row]);
      PrintRow("state", states.subspan(row * hidden, hidden));
    }
    state->assign(states.end() - hidden, states.end());
    return absl::OkStatus();
  }

  TestGroup drafter_;
  int32_t kv_len_ = 0;
  std::vector<float> last_;  // the state that the prefix hands on
};

absl::Status RunFlags() {
  absl::StatusOr<std::vector<int32_t>> ids = ParseList("ids", FLAGS_ids);
  absl::StatusOr<std::vector<int32_t>> chain = ParseList("chain", FLAGS_chain);
  absl::StatusOr<std::vector<int32_t>> tree = ParseList("tree", FLAGS_tree);
  absl::StatusOr<std::vector<int32_t>> parents = ParseList("parents", FLAGS_parents);
  absl::StatusOr<std::vector<int32_t>> anchors = ParseList("anchors", FLAGS_anchors);
  for (const auto* list : {&ids, &chain, &tree, &parents, &anchors}) {
    if (!list->ok()) return list->status();
  }
  if (ids->size() < 2 || tree->size() != parents->size()) {
    return absl::InvalidArgumentError("allowed: at least two --ids, as many --parents as --tree");
  }
  for (const int32_t anchor : *anchors) {
    if (anchor > 0 && anchor < static_cast<int32_t>(ids->size())) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("anchor ", anchor, "; allowed: 1 to ", ids->size() - 1));
  }
  RankOptions options = Run::RunOptions();
  absl::StatusOr<TestGroup> target = TestGroup::Load(FLAGS_target, options, 1);
  if (!target.ok()) return target.status();
  options.target_dir = FLAGS_target;
  absl::StatusOr<TestGroup> drafter = TestGroup::Load(FLAGS_drafter, options, 1);
  if (!drafter.ok()) return drafter.status();
  Run run(*std::move(drafter));
  if (!anchors->empty()) return run.RunBlocks(*target, *ids, *anchors, *chain);
  absl::Status status = run.ReadPrefix(*target, *ids);
  if (status.ok()) status = run.Chain(*chain);
  if (status.ok()) status = run.Tree(*tree, *parents);
  return status;
}

}  // namespace
}  // namespace specfabric::model

int main(int argc, char** argv) {
  gflags::ParseCommandLineFlags(&argc, &argv, /*remove_flags=*/true);
  const absl::Status status = specfabric::model::RunFlags();
  if (!status.ok()) {
    std::fprintf(stderr, "drafter_logits: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
