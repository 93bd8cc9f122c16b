// Runs a target and a drafter that reads its hidden states, and prints what the drafter computes,
// for comparison with another implementation. Not a test by itself.
//
//   drafter_logits --target DIR --drafter DIR --ids 1,2,3,4 --chain 5,6 --tree 7,8,9 --parents
//   -1,0,0
//
// The target reads all ids but the last, the drafter all but the first, each beside the state of
// the one before; then the chain behind them, and the tree instead of the chain, level by level.
// A line for the layers that are read, and two for each row, in this order: logits, and the state
// that the row hands on.

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
    const std::vector<int32_t>& layers = drafter_.config().states->layers;
    std::printf("layers %s\n", absl::StrJoin(layers, " ").c_str());
    if (absl::Status kept = target.rank(0).KeepStates(layers); !kept.ok()) return kept;
    Batch read;
    AddChain(&read, {ids.begin(), ids.end() - 1}, 0, Blocks());
    if (absl::StatusOr<LogitRows> rows = target.Forward(read); !rows.ok()) return rows.status();
    Batch batch;
    AddChain(&batch, {ids.begin() + 1, ids.end()}, 0, Blocks());
    batch.states.resize(static_cast<size_t>(batch.rows()) * drafter_.config().hidden);
    absl::Status fused =
        drafter_.rank(0).FuseStates(target.rank(0).states(), batch.rows(), batch.states.data());
    if (!fused.ok()) return fused;
    kv_len_ = batch.rows();
    return Forward(batch, &last_);
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
    options.target_dir = FLAGS_target;
    return options;
  }

 private:
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
  for (const auto* list : {&ids, &chain, &tree, &parents}) {
    if (!list->ok()) return list->status();
  }
  if (ids->size() < 2 || tree->size() != parents->size()) {
    return absl::InvalidArgumentError("allowed: at least two --ids, as many --parents as --tree");
  }
  absl::StatusOr<TestGroup> target = TestGroup::Load(FLAGS_target, Run::RunOptions(), 1);
  if (!target.ok()) return target.status();
  absl::StatusOr<TestGroup> drafter = TestGroup::Load(FLAGS_drafter, Run::RunOptions(), 1);
  if (!drafter.ok()) return drafter.status();
  Run run(*std::move(drafter));
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
