// Codecs of the messages between targets and draft workers: DraftRequest, DraftReply, HiddenStates.

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/hash.h"
#include "schemas/wire.h"

namespace specfabric::schemas {
namespace {

using wire::Checker;
using wire::Copy;
using wire::FlatBufferBuilder;
using wire::VerifiedTable;
using wire::View;

// The nodes below the root in draw order: parents[i] is the root (0) or an earlier node j < i
// (j + 1), which are the indices of a TokenTree.
void CheckTree(absl::Span<const int32_t> parents, absl::Span<const int32_t> tokens,
               absl::Span<const float> scores, Checker& check) {
  check.Size("parents", parents.size(), kMaxTreeNodes);
  check.Require(tokens.size() == parents.size(), "number of tokens", tokens.size(),
                "the number of parents");
  check.Require(scores.size() == parents.size(), "number of scores", scores.size(),
                "the number of parents");
  if (!check.ok()) return;
  for (size_t i = 0; i < parents.size(); ++i) {
    if (parents[i] >= 0 && static_cast<size_t>(parents[i]) <= i) continue;
    return check.Fail("parents", absl::StrCat(parents[i], " at node ", i),
                      "0 (the root) or 1 + an earlier node");
  }
  check.TokenIds("tokens", tokens);
  check.Finite("scores", scores);
}

// The one copy of a draft token on its way from the wire to the scheduler.
speculation::TokenTree TreeBelowRoot(absl::Span<const int32_t> parents,
                                     absl::Span<const int32_t> tokens,
                                     absl::Span<const float> scores) {
  speculation::TokenTree tree;
  const auto join = [](auto* to, auto root, auto below) {
    to->reserve(1 + below.size());
    to->push_back(root);
    to->insert(to->end(), below.begin(), below.end());
  };
  join(&tree.parents, -1, parents);
  join(&tree.tokens, base::kNoToken, tokens);
  join(&tree.scores, 0.0f, scores);
  return tree;
}

// The entries of the nodes below the root.
template <typename T>
absl::Span<const T> BelowRoot(const std::vector<T>& nodes) {
  return absl::MakeConstSpan(nodes).subspan(std::min<size_t>(1, nodes.size()));
}

std::vector<PrefixPoint> CheckedPrefixes(
    const flatbuffers::Vector<const wire::PrefixPoint*>* points, Checker& check) {
  std::vector<PrefixPoint> result;
  if (points == nullptr) return result;
  check.Size("known", points->size(), kMaxPrefixPoints);
  if (!check.ok()) return result;
  result.reserve(points->size());
  for (size_t i = 0; i < points->size(); ++i) {
    // Copied out, because the verifier aligns a vector's length but not its 8-byte elements.
    wire::PrefixPoint point;
    std::memcpy(&point, points->Data() + i * sizeof(point), sizeof(point));
    check.NonNegative("known", point.length());
    check.Require(result.empty() || point.length() < result.back().length, "known", point.length(),
                  "shorter than the one before it");
    result.push_back({point.length(), point.hash()});
  }
  return result;
}

std::vector<StateRun> CheckedRuns(const flatbuffers::Vector<const wire::StateRun*>* packed,
                                  Checker& check) {
  std::vector<StateRun> runs;
  if (packed == nullptr) return runs;
  check.Size("runs", packed->size(), kMaxStateRuns);
  if (!check.ok()) return runs;
  runs.reserve(packed->size());
  for (size_t i = 0; i < packed->size() && check.ok(); ++i) {
    wire::StateRun run;  // copied out, as the points of CheckedPrefixes are
    std::memcpy(&run, packed->Data() + i * sizeof(run), sizeof(run));
    check.NonNegative("first_position", run.first_position());
    check.Require(run.count() > 0, "count", run.count(), "at least 1");
    check.AtMost("first_position + count", int64_t{run.first_position()} + run.count(),
                 std::numeric_limits<int32_t>::max());
    runs.push_back({run.sequence(), run.first_position(), run.count()});
  }
  return runs;
}

}  // namespace

uint64_t SamplingTag(VerificationMethod verification, const base::SamplingParams& sampling) {
  uint64_t tag = base::Mix64(sampling.seed);
  for (uint32_t word :
       {static_cast<uint32_t>(verification), std::bit_cast<uint32_t>(sampling.temperature),
        static_cast<uint32_t>(sampling.top_k), std::bit_cast<uint32_t>(sampling.top_p),
        std::bit_cast<uint32_t>(sampling.min_p)}) {
    tag = base::Mix64(tag ^ base::Mix64(word));
  }
  return tag;
}

std::vector<uint8_t> Encode(const DraftRequest& m) {
  FlatBufferBuilder builder(256 + m.append_tokens.size() * sizeof(base::TokenId));
  const auto append_tokens = builder.CreateVector(m.append_tokens);
  const auto sampling = wire::ToWire(m.sampling);
  const auto trace = wire::ToWire(m.trace);
  return wire::Finish(
      builder, wire::CreateDraftRequest(
                   builder, m.target_incarnation, m.sequence, m.round, m.request_id, m.base_length,
                   m.base_hash, append_tokens, m.max_nodes, m.time_budget,
                   static_cast<uint8_t>(m.verification), &sampling, m.prompt_length, m.draw,
                   m.draft_probs_pool, m.draft_probs_bytes, m.max_depth, m.cost_per_second,
                   m.cost_per_row, m.trace.traced() ? &trace : nullptr, m.ahead));
}

template <>
absl::StatusOr<DraftRequest> Decode<DraftRequest>(absl::Span<const uint8_t> payload) {
  auto table = VerifiedTable<wire::DraftRequest>::Open(payload, "DraftRequest");
  if (!table.ok()) return table.status();
  const auto& t = *table;
  DraftRequest m;
  m.target_incarnation = t->target_incarnation();
  m.sequence = t->sequence();
  m.round = t->round();
  m.request_id = t->request_id();
  m.base_length = t->base_length();
  m.base_hash = t->base_hash();
  m.max_nodes = t->max_nodes();
  m.time_budget = t->time_budget();
  m.sampling = wire::FromWire(t->sampling());
  m.prompt_length = t->prompt_length();
  m.draw = t->draw();
  m.draft_probs_pool = t->draft_probs_pool();
  m.draft_probs_bytes = t->draft_probs_bytes();
  m.max_depth = t->max_depth();
  m.cost_per_second = t->cost_per_second();
  m.cost_per_row = t->cost_per_row();
  m.ahead = t->ahead();
  m.trace = wire::FromWire(t->trace());

  const auto append_tokens = View(t->append_tokens());
  Checker check("DraftRequest");
  check.NonNegative("base_length", m.base_length);
  check.TokenIds("append_tokens", append_tokens);
  check.AtMost("base_length + append_tokens",
               static_cast<uint64_t>(m.base_length) + append_tokens.size(),
               std::numeric_limits<int32_t>::max());
  if (m.max_nodes < 0 || m.max_nodes > kMaxTreeNodes) {
    check.Fail("max_nodes", m.max_nodes, absl::StrCat("in [0, ", kMaxTreeNodes, "]"));
  }
  check.NonNegative("max_depth", m.max_depth);
  check.NonNegative("time_budget", m.time_budget);
  check.Cost("cost_per_second", m.cost_per_second);
  check.Cost("cost_per_row", m.cost_per_row);
  check.AtMost("verification", t->verification(),
               static_cast<uint8_t>(VerificationMethod::kTypical));
  check.Sampling(m.sampling);
  check.NonNegative("prompt_length", m.prompt_length);
  if (!check.ok()) return check.status();
  m.verification = static_cast<VerificationMethod>(t->verification());
  m.append_tokens = Copy(append_tokens);
  return m;
}

std::vector<uint8_t> Encode(const DraftReply& m) {
  FlatBufferBuilder builder(256 + m.tree.tokens.size() * 12 + m.known.size() * 16);
  const auto write = [&builder](const auto& nodes) {
    const auto below = BelowRoot(nodes);
    return builder.CreateVector(below.data(), below.size());
  };
  const auto parents = write(m.tree.parents);
  const auto tokens = write(m.tree.tokens);
  const auto scores = write(m.tree.scores);
  std::vector<wire::PrefixPoint> points;
  points.reserve(m.known.size());
  for (const PrefixPoint& point : m.known) points.emplace_back(point.length, point.hash);
  const auto known = builder.CreateVectorOfStructs(points);
  return wire::Finish(builder, wire::CreateDraftReply(
                                   builder, m.target_incarnation, m.sequence, m.round, m.request_id,
                                   static_cast<uint8_t>(m.status), static_cast<uint8_t>(m.draw),
                                   parents, tokens, scores, m.draft_time, known, m.free_sessions,
                                   m.sampling_tag, m.draft_probs_rows, m.draft_probs_entries));
}

template <>
absl::StatusOr<DraftReply> Decode<DraftReply>(absl::Span<const uint8_t> payload) {
  auto table = VerifiedTable<wire::DraftReply>::Open(payload, "DraftReply");
  if (!table.ok()) return table.status();
  const auto& t = *table;
  const auto parents = View(t->parents());
  const auto tokens = View(t->tokens());
  const auto scores = View(t->scores());
  Checker check("DraftReply");
  check.AtMost("status", t->status(), static_cast<uint8_t>(DraftStatus::kDraining));
  check.AtMost("draw", t->draw(), static_cast<uint8_t>(SiblingDraw::kDeterministic));
  check.NonNegative("draft_time", t->draft_time());
  check.NonNegative("free_sessions", t->free_sessions());
  check.NonNegative("draft_probs_rows", t->draft_probs_rows());
  check.AtMost("draft_probs_rows", static_cast<uint64_t>(t->draft_probs_rows()), kMaxTreeNodes);
  check.NonNegative("draft_probs_entries", t->draft_probs_entries());
  CheckTree(parents, tokens, scores, check);
  std::vector<PrefixPoint> known = CheckedPrefixes(t->known(), check);
  if (!check.ok()) return check.status();
  DraftReply m;
  m.target_incarnation = t->target_incarnation();
  m.sequence = t->sequence();
  m.round = t->round();
  m.request_id = t->request_id();
  m.status = static_cast<DraftStatus>(t->status());
  m.draw = static_cast<SiblingDraw>(t->draw());
  m.tree = TreeBelowRoot(parents, tokens, scores);
  m.draft_time = t->draft_time();
  m.known = std::move(known);
  m.free_sessions = t->free_sessions();
  m.sampling_tag = t->sampling_tag();
  m.draft_probs_rows = t->draft_probs_rows();
  m.draft_probs_entries = t->draft_probs_entries();
  return m;
}

std::vector<uint8_t> Encode(const HiddenStates& m) {
  FlatBufferBuilder builder(64 + m.runs.size() * sizeof(wire::StateRun));
  std::vector<wire::StateRun> packed;
  packed.reserve(m.runs.size());
  for (const StateRun& run : m.runs) {
    packed.emplace_back(run.sequence, run.first_position, run.count);
  }
  const auto runs = builder.CreateVectorOfStructs(packed);
  return wire::Finish(builder,
                      wire::CreateHiddenStates(builder, m.target_incarnation, m.number, runs));
}

template <>
absl::StatusOr<HiddenStates> Decode<HiddenStates>(absl::Span<const uint8_t> payload) {
  auto table = VerifiedTable<wire::HiddenStates>::Open(payload, "HiddenStates");
  if (!table.ok()) return table.status();
  const auto& t = *table;
  Checker check("HiddenStates");
  std::vector<StateRun> runs = CheckedRuns(t->runs(), check);
  if (!check.ok()) return check.status();
  return HiddenStates{t->target_incarnation(), t->number(), std::move(runs)};
}

}  // namespace specfabric::schemas
