// Codecs of the messages between the processes of a target group, except Step (codec_step.cc):
// GroupPart, GroupReady, StepDone, Collective.

#include <algorithm>

#include "schemas/wire.h"
#include "schemas/wire_lists.h"

namespace specfabric::schemas {
namespace {

using flatbuffers::Offset;
using wire::Checker;
using wire::Copy;
using wire::FlatBufferBuilder;
using wire::VerifiedTable;
using wire::View;

std::vector<StepTree> CheckedTrees(const wire::StepDone& t, Checker& check) {
  const auto sequences = View(t.tree_sequences());
  const auto depths = View(t.tree_depths());
  const auto paths = View(t.paths());
  const auto tokens = View(t.tree_tokens());
  wire::CheckAscending("tree_sequences", sequences, kMaxBatchSequences, check);
  check.TokenIds("tree_tokens", tokens);
  for (int32_t node : paths) check.Require(node > 0, "paths", node, "nodes below the root");
  const auto not_finite = View(t.trees_not_finite());
  wire::CheckAscending("trees_not_finite", not_finite, sequences.size(), check);
  size_t nodes = 0;
  for (uint8_t depth : depths) nodes += depth;
  check.Require(depths.size() == sequences.size() && paths.size() == nodes &&
                    tokens.size() + not_finite.size() == nodes + depths.size(),
                "trees", "arrays of unequal length",
                "a path each, and a token more where logits are finite");
  if (!check.ok()) return {};
  std::vector<StepTree> trees(sequences.size());
  for (int32_t i : not_finite) trees[i].accepted.finite = false;
  size_t node = 0, token = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    speculation::Accepted& accepted = trees[i].accepted;
    const size_t count = depths[i] + (accepted.finite ? 1 : 0);
    trees[i].sequence = sequences[i];
    accepted.path = Copy(paths.subspan(node, depths[i]));
    accepted.tokens = Copy(tokens.subspan(token, count));
    node += depths[i];
    token += count;
  }
  return trees;
}

}  // namespace

std::vector<uint8_t> Encode(const GroupPart& m) {
  FlatBufferBuilder builder(128);
  return wire::Finish(builder, wire::CreateGroupPart(
                                   builder, m.ranks, m.first_rank, m.rank_count, m.cuda, m.bfloat16,
                                   m.kv_blocks, m.block_size, m.batch_invariant, m.reference,
                                   m.typical_epsilon, m.typical_delta, m.pipeline_stages,
                                   m.cuda_graphs, m.flash_attention, m.max_rows, m.join_timeout));
}

template <>
absl::StatusOr<GroupPart> Decode<GroupPart>(absl::Span<const uint8_t> payload) {
  auto table = VerifiedTable<wire::GroupPart>::Open(payload, "GroupPart");
  if (!table.ok()) return table.status();
  const auto& t = *table;
  Checker check("GroupPart");
  check.Require(t->ranks() >= 1 && t->ranks() <= kMaxRanks, "ranks", t->ranks(), "in [1, 64]");
  check.Require(t->pipeline_stages() >= 1 && t->ranks() % std::max(t->pipeline_stages(), 1) == 0,
                "pipeline_stages", t->pipeline_stages(), "a divisor of the ranks");
  check.NonNegative("first_rank", t->first_rank());
  check.Require(t->max_rows() >= 0 && t->max_rows() <= kMaxStepRows, "max_rows", t->max_rows(),
                "in [0, 65536]");
  check.Require(t->rank_count() >= 1, "rank_count", t->rank_count(), "at least 1");
  check.Require(int64_t{t->first_rank()} + t->rank_count() <= t->ranks(), "first_rank + rank_count",
                t->first_rank(), "within the group");
  check.Require(t->join_timeout() >= 1 && t->join_timeout() <= kMaxJoinTimeout, "join_timeout",
                t->join_timeout(), "in nanoseconds, at most a day");
  check.Require(t->kv_blocks() >= (t->cuda() ? 0 : 1), "kv_blocks", t->kv_blocks(),
                "at least 1, or 0 on GPUs");
  check.Require(t->block_size() >= 1 && t->block_size() <= 256, "block_size", t->block_size(),
                "in [1, 256]");
  for (double share : {t->typical_epsilon(), t->typical_delta()}) {
    check.Require(share >= 0 && share <= 1, "typical", share, "in [0, 1]");
  }
  if (!check.ok()) return check.status();
  GroupPart m;
  m.ranks = t->ranks();
  m.pipeline_stages = t->pipeline_stages();
  m.first_rank = t->first_rank();
  m.rank_count = t->rank_count();
  m.cuda = t->cuda();
  m.bfloat16 = t->bfloat16();
  m.kv_blocks = t->kv_blocks();
  m.block_size = t->block_size();
  m.batch_invariant = t->batch_invariant();
  m.reference = t->reference();
  m.cuda_graphs = t->cuda_graphs();
  m.flash_attention = t->flash_attention();
  m.max_rows = t->max_rows();
  m.join_timeout = t->join_timeout();
  m.typical_epsilon = t->typical_epsilon();
  m.typical_delta = t->typical_delta();
  return m;
}

std::vector<uint8_t> Encode(const GroupReady& m) {
  FlatBufferBuilder builder(64);
  return wire::Finish(builder, wire::CreateGroupReady(builder, m.numerics_fingerprint));
}

template <>
absl::StatusOr<GroupReady> Decode<GroupReady>(absl::Span<const uint8_t> payload) {
  auto table = VerifiedTable<wire::GroupReady>::Open(payload, "GroupReady");
  if (!table.ok()) return table.status();
  return GroupReady{(*table)->numerics_fingerprint()};
}

std::vector<uint8_t> Encode(const StepDone& m) {
  FlatBufferBuilder builder(1024);
  std::vector<int32_t> sequences, paths, tokens, not_finite;
  std::vector<uint8_t> depths;
  for (const StepTree& tree : m.trees) {
    const speculation::Accepted& accepted = tree.accepted;
    if (!accepted.finite) not_finite.push_back(static_cast<int32_t>(sequences.size()));
    sequences.push_back(tree.sequence);
    depths.push_back(static_cast<uint8_t>(accepted.path.size()));
    paths.insert(paths.end(), accepted.path.begin(), accepted.path.end());
    tokens.insert(tokens.end(), accepted.tokens.begin(), accepted.tokens.end());
  }
  const auto error = builder.CreateString(m.error);
  const auto chosen_logits = builder.CreateVector(m.chosen_logits);
  const auto chosen = builder.CreateVector(m.chosen);
  const auto scored_logits = builder.CreateVector(m.scored_logits);
  const auto logprobs = wire::WriteLogprobs(m.logprobs, builder);
  const auto tree_sequences = builder.CreateVector(sequences);
  const auto tree_depths = builder.CreateVector(depths);
  const auto tree_paths = builder.CreateVector(paths);
  const auto tree_tokens = builder.CreateVector(tokens);
  const auto not_finite_logits = builder.CreateVector(m.not_finite_logits);
  const auto trees_not_finite = builder.CreateVector(not_finite);
  return wire::Finish(
      builder, wire::CreateStepDone(builder, m.step, error, chosen_logits, chosen, scored_logits,
                                    logprobs, tree_sequences, tree_depths, tree_paths, tree_tokens,
                                    not_finite_logits, trees_not_finite));
}

template <>
absl::StatusOr<StepDone> Decode<StepDone>(absl::Span<const uint8_t> payload) {
  auto table = VerifiedTable<wire::StepDone>::Open(payload, "StepDone");
  if (!table.ok()) return table.status();
  const auto& t = *table;
  Checker check("StepDone");
  const auto chosen_logits = View(t->chosen_logits());
  const auto chosen = View(t->chosen());
  const auto scored_logits = View(t->scored_logits());
  check.Text("error", View(t->error()), kMaxErrorBytes);
  wire::CheckAscending("chosen_logits", chosen_logits, kMaxStepRows, check);
  wire::CheckAscending("scored_logits", scored_logits, kMaxStepRows, check);
  wire::CheckAscending("not_finite_logits", View(t->not_finite_logits()), kMaxStepRows, check);
  check.TokenIds("chosen", chosen);
  check.Require(chosen.size() == chosen_logits.size(), "number of chosen", chosen.size(),
                "the number of chosen_logits");
  StepDone m;
  m.logprobs = wire::CheckedLogprobs(t->logprobs(), "logprobs", check);
  check.Require(m.logprobs.size() == scored_logits.size(), "number of logprobs", m.logprobs.size(),
                "the number of scored_logits");
  m.trees = CheckedTrees(*t.operator->(), check);
  if (!check.ok()) return check.status();
  m.step = t->step();
  m.error = View(t->error());
  m.chosen_logits = Copy(chosen_logits);
  m.chosen = Copy(chosen);
  m.scored_logits = Copy(scored_logits);
  m.not_finite_logits = Copy(View(t->not_finite_logits()));
  return m;
}

std::vector<uint8_t> Encode(const Collective& m) {
  size_t bytes = 64;
  for (const auto& part : m.parts) bytes += part.size() + 64;
  FlatBufferBuilder builder(bytes);
  std::vector<Offset<wire::Part>> parts;
  for (const auto& part : m.parts) {
    parts.push_back(wire::CreatePart(builder, builder.CreateVector(part)));
  }
  return wire::Finish(builder, wire::CreateCollectiveDirect(builder, m.op, &parts));
}

template <>
absl::StatusOr<Collective> Decode<Collective>(absl::Span<const uint8_t> payload) {
  auto table = VerifiedTable<wire::Collective>::Open(payload, "Collective");
  if (!table.ok()) return table.status();
  Collective m;
  m.op = (*table)->op();
  const auto* parts = (*table)->parts();
  if (parts == nullptr) return m;
  Checker check("Collective");
  wire::CheckEntries(
      "parts", *parts, kMaxRanks, payload,
      [](const wire::Part& part) { return View(part.data()).size(); }, check);
  if (!check.ok()) return check.status();
  for (const wire::Part* part : *parts) m.parts.push_back(Copy(View(part->data())));
  return m;
}

}  // namespace specfabric::schemas
