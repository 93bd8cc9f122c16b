#ifndef SPECFABRIC_TESTS_SCHEMAS_RANDOM_MESSAGES_H_
#define SPECFABRIC_TESTS_SCHEMAS_RANDOM_MESSAGES_H_

// Random valid messages of every type, and their fields as comparable values.

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "schemas/messages.h"

namespace specfabric::schemas {

using Rng = std::mt19937_64;

inline int32_t RandomInt(Rng& rng, int32_t low, int32_t high) {
  return std::uniform_int_distribution<int32_t>(low, high)(rng);
}
inline float RandomFloat(Rng& rng, float low, float high) {
  return std::uniform_real_distribution<float>(low, high)(rng);
}
inline std::vector<base::TokenId> RandomTokens(Rng& rng, int32_t most) {
  std::vector<base::TokenId> tokens(RandomInt(rng, 0, most));
  for (auto& token : tokens) token = RandomInt(rng, 0, INT32_MAX);
  return tokens;
}
inline std::string RandomText(Rng& rng, int32_t most) {
  std::string text(RandomInt(rng, 0, most), ' ');
  for (char& c : text) c = static_cast<char>(RandomInt(rng, 0x20, 0x7E));
  return text;
}
inline base::SamplingParams RandomSampling(Rng& rng) {
  base::SamplingParams s;
  s.temperature = RandomInt(rng, 0, 3) == 0 ? 0.0f : RandomFloat(rng, 0.0f, 2.0f);
  s.top_k = RandomInt(rng, 0, 1000);
  s.top_p = RandomFloat(rng, 0.01f, 1.0f);
  s.min_p = RandomFloat(rng, 0.0f, 0.9f);
  s.seed = rng();
  return s;
}
inline base::TraceContext RandomTrace(Rng& rng) {
  if (RandomInt(rng, 0, 1) == 0) return {};
  return {rng(), rng(), rng()};
}
inline std::vector<base::TokenLogprobs> RandomLogprobs(Rng& rng, int32_t most) {
  std::vector<base::TokenLogprobs> list(RandomInt(rng, 0, most));
  for (auto& entry : list) {
    entry.token = RandomInt(rng, 0, INT32_MAX);
    entry.logprob = RandomFloat(rng, -30.0f, 0.0f);
    entry.top.resize(RandomInt(rng, 0, 20));
    for (auto& [token, value] : entry.top) {
      token = RandomInt(rng, 0, INT32_MAX);
      value = RandomFloat(rng, -30.0f, 0.0f);
    }
  }
  return list;
}

inline base::LogitRules RandomRules(Rng& rng) {
  base::LogitRules rules;
  rules.presence_penalty = RandomFloat(rng, -2.0f, 2.0f);
  rules.frequency_penalty = RandomFloat(rng, -2.0f, 2.0f);
  rules.repetition_penalty = RandomFloat(rng, 0.1f, 3.0f);
  rules.min_tokens = RandomInt(rng, 0, INT32_MAX);
  rules.suppressed_token_ids = RandomTokens(rng, 8);
  base::TokenId id = 0;
  for (int32_t i = RandomInt(rng, 0, 20); i > 0; --i) {
    rules.bias.push_back({id, RandomFloat(rng, -100.0f, 100.0f)});
    id += RandomInt(rng, 1, 1000);
  }
  return rules;
}

template <typename M>
M RandomMessage(Rng& rng);

template <>
inline Hello RandomMessage<Hello>(Rng& rng) {
  Hello m;
  m.protocol = static_cast<uint32_t>(rng());
  m.role = static_cast<Role>(RandomInt(rng, 0, 4));
  m.incarnation = rng();
  m.model = RandomText(rng, kMaxNameBytes);
  m.tokenizer_fingerprint = rng();
  m.numerics_fingerprint = rng();
  m.vocabulary = RandomInt(rng, 0, INT32_MAX);
  m.context = RandomInt(rng, 0, INT32_MAX);
  m.verification_methods = static_cast<uint32_t>(rng());
  m.capacity = RandomInt(rng, 0, INT32_MAX);
  m.build = RandomText(rng, kMaxNameBytes);
  m.state_layers.resize(RandomInt(rng, 0, kMaxStateLayers));
  for (int32_t& layer : m.state_layers) layer = RandomInt(rng, 0, INT32_MAX);
  m.state_rows = RandomInt(rng, 1, INT32_MAX);
  m.state_pool = static_cast<uint8_t>(rng());
  m.chooses_verification = rng() % 2 == 1;
  return m;
}
template <>
inline HiddenStates RandomMessage<HiddenStates>(Rng& rng) {
  HiddenStates m = {rng(), static_cast<uint32_t>(rng()), {}};
  m.runs.resize(RandomInt(rng, 0, 20));
  for (StateRun& run : m.runs) {
    run = {rng(), RandomInt(rng, 0, INT32_MAX / 2), RandomInt(rng, 1, INT32_MAX / 2)};
  }
  return m;
}
template <>
inline Drain RandomMessage<Drain>(Rng&) {
  return {};
}
template <>
inline EndSession RandomMessage<EndSession>(Rng& rng) {
  return {rng(), rng()};
}
template <>
inline Cancel RandomMessage<Cancel>(Rng& rng) {
  return {rng(), static_cast<uint32_t>(rng())};
}
template <>
inline DraftRequest RandomMessage<DraftRequest>(Rng& rng) {
  DraftRequest m;
  m.target_incarnation = rng();
  m.sequence = rng();
  m.round = static_cast<uint32_t>(rng());
  m.request_id = rng();
  m.base_length = RandomInt(rng, 0, 1 << 20);
  m.base_hash = rng();
  m.append_tokens = RandomTokens(rng, 300);
  m.max_nodes = RandomInt(rng, 0, kMaxTreeNodes);
  m.time_budget = static_cast<base::Nanos>(rng() >> 1);
  m.verification = static_cast<VerificationMethod>(RandomInt(rng, 0, 3));
  m.sampling = RandomSampling(rng);
  m.prompt_length = RandomInt(rng, 0, 1 << 20);
  m.draw = static_cast<uint32_t>(rng());
  m.draft_probs_pool = static_cast<uint8_t>(RandomInt(rng, 0, 255));
  m.draft_probs_bytes = static_cast<uint32_t>(rng());
  m.max_depth = RandomInt(rng, 0, 1 << 20);
  m.cost_per_second = static_cast<float>(RandomInt(rng, 0, 1 << 20)) / 8;
  m.cost_per_row = static_cast<float>(RandomInt(rng, 0, 64)) / 64;
  m.ahead = RandomInt(rng, 0, 1) == 1;
  m.trace = RandomTrace(rng);
  return m;
}
template <>
inline DraftReply RandomMessage<DraftReply>(Rng& rng) {
  DraftReply m;
  m.target_incarnation = rng();
  m.sequence = rng();
  m.round = static_cast<uint32_t>(rng());
  m.request_id = rng();
  m.status = static_cast<DraftStatus>(RandomInt(rng, 0, 5));
  m.draw = static_cast<SiblingDraw>(RandomInt(rng, 0, 3));
  const int32_t nodes = RandomInt(rng, 0, kMaxTreeNodes);
  for (int32_t i = 0; i < nodes; ++i) {
    const int32_t parent = RandomInt(rng, 0, i), token = RandomInt(rng, 0, INT32_MAX);
    m.tree.Add(parent, token, RandomFloat(rng, -30.0f, 0.0f));
  }
  m.draft_time = static_cast<base::Nanos>(rng() >> 1);
  int32_t length = RandomInt(rng, 0, 1 << 20);
  for (int32_t i = RandomInt(rng, 0, 20); i > 0 && length >= 0; --i) {
    m.known.push_back({length, rng()});
    length -= RandomInt(rng, 1, 64);
  }
  m.free_sessions = RandomInt(rng, 0, 1000);
  m.sampling_tag = rng();
  m.draft_probs_rows = RandomInt(rng, 0, kMaxTreeNodes);
  m.draft_probs_entries = RandomInt(rng, 0, INT32_MAX);
  return m;
}
template <>
inline Submit RandomMessage<Submit>(Rng& rng) {
  Submit m;
  m.request_id = rng();
  m.sequence.attempt = static_cast<uint32_t>(rng());
  m.sequence.prompt = RandomTokens(rng, 500);
  m.sequence.generated = RandomTokens(rng, 100);
  m.sequence.sampling = RandomSampling(rng);
  m.sequence.rules = RandomRules(rng);
  m.sequence.max_tokens = RandomInt(rng, 0, INT32_MAX);
  m.sequence.stop_ids = RandomTokens(rng, 8);
  m.sequence.score_prompt = RandomInt(rng, 0, 1) == 1;
  m.sequence.logprobs = RandomInt(rng, -1, kMaxTopLogprobs);
  m.sequence.speculate = RandomInt(rng, 0, 1) == 1;
  m.sequence.max_draft_tokens = RandomInt(rng, 0, kMaxDraftTokens);
  if (RandomInt(rng, 0, 1) == 1) m.sequence.drafter = RandomText(rng, kMaxNameBytes);
  if (RandomInt(rng, 0, 1) == 1)
    m.verification = static_cast<VerificationMethod>(RandomInt(rng, 0, 3));
  m.sequence.tenant = rng();
  m.sequence.cache_salt = rng();
  m.sequence.priority = RandomInt(rng, -kMaxPriority, kMaxPriority);
  m.sequence.tpot_slo = static_cast<base::Nanos>(rng() >> 1);
  if (RandomInt(rng, 0, 1) == 1) {
    const auto language = RandomInt(rng, 0, base::kGrammarLanguages - 1);
    m.sequence.grammar = {static_cast<base::GrammarLanguage>(language),
                          "start:\n\t" + RandomText(rng, 300)};
    m.sequence.rules.masked = true;
  }
  return m;
}
inline Tokens RandomSequence(Rng& rng) {
  Tokens m;
  m.request_id = rng();
  m.attempt = static_cast<uint32_t>(rng());
  m.first_index = RandomInt(rng, 0, INT32_MAX);
  m.tokens = RandomTokens(rng, 64);
  m.logprobs = RandomLogprobs(rng, 16);
  m.prompt_logprobs = RandomLogprobs(rng, 16);
  m.finish = static_cast<Finish>(RandomInt(rng, 0, 7));
  m.error = RandomText(rng, 300);
  Speculation& totals = m.speculation;
  totals.rounds = RandomInt(rng, 0, INT32_MAX);
  totals.drafted_rounds = RandomInt(rng, 0, INT32_MAX);
  totals.drafted = RandomInt(rng, 0, INT32_MAX);
  totals.accepted = RandomInt(rng, 0, INT32_MAX);
  totals.accepted_at.resize(RandomInt(rng, 0, kMaxTreeNodes));
  for (int64_t& count : totals.accepted_at) count = RandomInt(rng, 0, INT32_MAX);
  totals.verification = static_cast<VerificationMethod>(RandomInt(rng, 0, 3));
  m.cached_tokens = RandomInt(rng, 0, INT32_MAX);
  return m;
}
template <>
inline TokensBatch RandomMessage<TokensBatch>(Rng& rng) {
  TokensBatch m;
  for (int32_t i = RandomInt(rng, 1, 5); i > 0; --i) m.sequences.push_back(RandomSequence(rng));
  if (RandomInt(rng, 0, 1) == 1) {
    TargetLoad& load = m.load.emplace();
    load.running = RandomInt(rng, 0, 64);
    load.waiting = RandomInt(rng, 0, 1 << 20);
    load.kv_blocks = RandomInt(rng, 0, 1 << 20);
    load.kv_blocks_used = RandomInt(rng, 0, load.kv_blocks);
    load.block_size = RandomInt(rng, 1, 64);
    load.drafts = int64_t{RandomInt(rng, 0, 1 << 30)} << 20;
    load.drafted = int64_t{RandomInt(rng, 0, 1 << 30)} << 20;
    load.accepted = int64_t{RandomInt(rng, 0, 1 << 30)} << 20;
    for (int32_t i = RandomInt(rng, 0, kMaxTreeNodes); i > 0; --i) {
      load.accepted_at.push_back(int64_t{RandomInt(rng, 0, 1 << 30)} << 20);
    }
  }
  return m;
}

template <>
inline GroupPart RandomMessage<GroupPart>(Rng& rng) {
  GroupPart m;
  m.ranks = RandomInt(rng, 1, kMaxRanks);
  m.pipeline_stages = RandomInt(rng, 1, 4);
  m.ranks = (m.ranks + 3) / 4 * m.pipeline_stages;
  m.first_rank = RandomInt(rng, 0, m.ranks - 1);
  m.rank_count = RandomInt(rng, 1, m.ranks - m.first_rank);
  m.cuda = RandomInt(rng, 0, 1) == 1;
  m.bfloat16 = RandomInt(rng, 0, 1) == 1;
  m.kv_blocks = RandomInt(rng, 1, 1 << 26);
  m.block_size = RandomInt(rng, 1, 256);
  m.batch_invariant = RandomInt(rng, 0, 1) == 1;
  m.reference = RandomInt(rng, 0, 1) == 1;
  m.cuda_graphs = RandomInt(rng, 0, 1) == 1;
  m.flash_attention = RandomInt(rng, 0, 1) == 1;
  m.max_rows = RandomInt(rng, 0, 1 << 16);
  m.join_timeout = RandomInt(rng, 1, 1 << 30);
  m.typical_epsilon = RandomFloat(rng, 0.0f, 1.0f);
  m.typical_delta = RandomFloat(rng, 0.0f, 1.0f);
  return m;
}
template <>
inline GroupReady RandomMessage<GroupReady>(Rng& rng) {
  return {rng()};
}
// A tree of which every row chooses, or a prefill of which some rows are scored.
inline void AddSequence(Rng& rng, scheduler::StepPlan* plan) {
  scheduler::PlanSequence s;
  s.id = rng();
  s.kind = static_cast<scheduler::RowsKind>(RandomInt(rng, 0, 1));
  const bool tree = s.kind == scheduler::RowsKind::kTree;
  s.kv_len = RandomInt(rng, 0, 1 << 20);
  s.first_row = plan->rows();
  s.row_count = RandomInt(rng, 1, 64);
  s.first_block = static_cast<int32_t>(plan->blocks.size());
  s.block_count = RandomInt(rng, 0, 20);
  s.first_logit = static_cast<int32_t>(plan->logit_rows.size());
  for (int32_t i = 0; i < s.row_count; ++i) {
    if (tree || RandomInt(rng, 0, 2) == 0) {
      plan->logit_rows.push_back(plan->rows());
      plan->score_tokens.push_back(RandomInt(rng, -1, INT32_MAX));
    }
    plan->tokens.push_back(RandomInt(rng, 0, INT32_MAX));
    plan->positions.push_back(RandomInt(rng, 0, INT32_MAX));
    plan->parents.push_back(i == 0 ? -1 : RandomInt(rng, 0, i - 1));
    plan->ancestors.push_back(rng());
    if (tree) s.draft_row.push_back(RandomInt(rng, -1, kMaxTreeNodes - 1));
  }
  for (int32_t i = 0; i < s.block_count; ++i) plan->blocks.push_back(RandomInt(rng, 0, INT32_MAX));
  s.logit_count = static_cast<int32_t>(plan->logit_rows.size()) - s.first_logit;
  s.samples = RandomInt(rng, 0, 1) == 1;
  s.logprobs = RandomInt(rng, -1, kMaxTopLogprobs);
  s.sampling = RandomSampling(rng);
  s.prompt_size = RandomInt(rng, 0, 1 << 20);
  s.verification = static_cast<VerificationMethod>(RandomInt(rng, 0, 3));
  s.draw = static_cast<SiblingDraw>(RandomInt(rng, 0, 3));
  s.draw_number = static_cast<uint32_t>(rng());
  s.rules = RandomRules(rng);
  s.rules.masked = RandomInt(rng, 0, 1) == 1;
  for (base::TokenId token : RandomTokens(rng, 20)) {
    s.counts.push_back({token, RandomInt(rng, 0, 1000)});
  }
  plan->sequences.push_back(std::move(s));
}
template <>
inline Step RandomMessage<Step>(Rng& rng) {
  Step m;
  m.plan.step = rng();
  for (int32_t i = RandomInt(rng, 1, 4); i > 0; --i) AddSequence(rng, &m.plan);
  for (int32_t i = RandomInt(rng, 0, 9); i > 0; --i) {
    m.plan.moves.push_back({RandomInt(rng, 0, INT32_MAX), RandomInt(rng, 0, INT32_MAX)});
  }
  for (int32_t s = 0; s < static_cast<int32_t>(m.plan.sequences.size()); ++s) {
    if (RandomInt(rng, 0, 1) == 0) continue;
    StepDraftProbs draft_probs{
        s, RandomInt(rng, 1, kMaxTreeNodes), RandomInt(rng, 1, INT32_MAX), {}};
    draft_probs.bytes.resize(RandomInt(rng, 0, 100));
    for (uint8_t& byte : draft_probs.bytes) byte = static_cast<uint8_t>(rng());
    m.draft_probs.push_back(std::move(draft_probs));
  }
  return m;
}
inline std::vector<int32_t> RandomAscending(Rng& rng, int32_t most) {
  std::vector<int32_t> list;
  for (int32_t i = 0; i < most; ++i) {
    if (RandomInt(rng, 0, 1) == 1) list.push_back(i);
  }
  return list;
}
template <>
inline StepDone RandomMessage<StepDone>(Rng& rng) {
  StepDone m;
  m.step = rng();
  m.error = RandomText(rng, 300);
  m.chosen_logits = RandomAscending(rng, 40);
  for (size_t i = 0; i < m.chosen_logits.size(); ++i) {
    m.chosen.push_back(RandomInt(rng, 0, INT32_MAX));
  }
  m.logprobs = RandomLogprobs(rng, 16);
  for (size_t i = 0; i < m.logprobs.size(); ++i) m.scored_logits.push_back(3 * i);
  for (int32_t sequence : RandomAscending(rng, 8)) {
    StepTree tree{sequence, {}};
    for (int32_t i = RandomInt(rng, 0, 20); i > 0; --i) {
      tree.accepted.path.push_back(RandomInt(rng, 1, 63));
      tree.accepted.tokens.push_back(RandomInt(rng, 0, INT32_MAX));
    }
    tree.accepted.finite = RandomInt(rng, 0, 3) > 0;
    if (tree.accepted.finite) tree.accepted.tokens.push_back(RandomInt(rng, 0, INT32_MAX));
    m.trees.push_back(std::move(tree));
  }
  m.not_finite_logits = RandomAscending(rng, 40);
  return m;
}
template <>
inline Collective RandomMessage<Collective>(Rng& rng) {
  Collective m;
  m.op = rng();
  m.parts.resize(RandomInt(rng, 0, 8));
  for (auto& part : m.parts) {
    part.resize(RandomInt(rng, 0, 100));
    for (uint8_t& byte : part) byte = static_cast<uint8_t>(rng());
  }
  return m;
}

// Every field of a message, so that two messages are equal exactly when their Fields are.
inline auto Fields(const base::TokenLogprobs& e) { return std::tuple(e.token, e.logprob, e.top); }
inline auto Fields(const base::LogitBias& b) { return std::tuple(b.token, b.value); }
inline auto Fields(const sampling::TokenCount& c) { return std::tuple(c.token, c.output); }
inline auto Fields(const scheduler::SlotMove& m) { return std::tuple(m.from, m.to); }
inline auto Fields(const PrefixPoint& p) { return std::tuple(p.length, p.hash); }
template <typename T>
auto Fields(const std::vector<T>& list) {
  std::vector<decltype(Fields(list[0]))> result;
  std::transform(list.begin(), list.end(), std::back_inserter(result),
                 [](const T& entry) { return Fields(entry); });
  return result;
}
inline auto Fields(const Hello& m) {
  return std::tuple(m.protocol, m.role, m.incarnation, m.model, m.tokenizer_fingerprint,
                    m.numerics_fingerprint, m.vocabulary, m.context, m.verification_methods,
                    m.capacity, m.build, m.state_layers, m.state_rows, m.state_pool,
                    m.chooses_verification);
}
inline auto Fields(const Drain&) { return std::tuple(); }
inline auto Fields(const StateRun& r) { return std::tuple(r.sequence, r.first_position, r.count); }
inline auto Fields(const HiddenStates& m) {
  return std::tuple(m.target_incarnation, m.number, Fields(m.runs));
}
inline auto Fields(const EndSession& m) { return std::tuple(m.target_incarnation, m.sequence); }
inline auto Fields(const Cancel& m) { return std::tuple(m.request_id, m.attempt); }
inline auto Fields(const base::SamplingParams& s) {
  return std::tuple(s.temperature, s.top_k, s.top_p, s.min_p, s.seed);
}
inline auto Fields(const base::LogitRules& r) {
  return std::tuple(r.presence_penalty, r.frequency_penalty, r.repetition_penalty, Fields(r.bias),
                    r.min_tokens, r.suppressed_token_ids, r.masked);
}
inline auto Fields(const DraftRequest& m) {
  return std::tuple(m.target_incarnation, m.sequence, m.round, m.request_id, m.base_length,
                    m.base_hash, m.append_tokens, m.max_nodes, m.time_budget, m.verification,
                    Fields(m.sampling), m.prompt_length, m.draw, m.draft_probs_pool,
                    m.draft_probs_bytes, m.max_depth, m.cost_per_second, m.cost_per_row, m.ahead,
                    m.trace.trace_high, m.trace.trace_low, m.trace.span);
}
inline auto Fields(const DraftReply& m) {
  return std::tuple(m.target_incarnation, m.sequence, m.round, m.request_id, m.status, m.draw,
                    m.tree.parents, m.tree.tokens, m.tree.scores, m.draft_time, Fields(m.known),
                    m.free_sessions, m.sampling_tag, m.draft_probs_rows, m.draft_probs_entries);
}
inline auto Fields(const Submit& m) {
  const SequenceRequest& q = m.sequence;
  return std::tuple(m.request_id, q.attempt, q.prompt, q.generated, Fields(q.sampling),
                    q.max_tokens, q.stop_ids, q.score_prompt, q.logprobs, q.speculate,
                    q.max_draft_tokens, q.drafter, Fields(q.rules), m.verification, q.tpot_slo,
                    q.tenant, q.cache_salt, q.priority, q.grammar.language, q.grammar.source);
}
inline auto Fields(const Tokens& m) {
  const Speculation& totals = m.speculation;
  return std::tuple(m.request_id, m.attempt, m.first_index, m.tokens, Fields(m.logprobs),
                    Fields(m.prompt_logprobs), m.finish, m.error, totals.rounds,
                    totals.drafted_rounds, totals.drafted, totals.accepted, totals.accepted_at,
                    totals.verification, m.cached_tokens);
}
inline auto Fields(const TargetLoad& m) {
  return std::tuple(m.running, m.waiting, m.kv_blocks, m.kv_blocks_used, m.block_size, m.drafts,
                    m.drafted, m.accepted, m.accepted_at);
}
inline auto Fields(const TokensBatch& m) {
  return std::tuple(Fields(m.sequences), m.load.has_value(), Fields(m.load.value_or(TargetLoad())));
}
inline auto Fields(const GroupPart& m) {
  return std::tuple(m.ranks, m.pipeline_stages, m.first_rank, m.rank_count, m.cuda, m.bfloat16,
                    m.kv_blocks, m.block_size, m.batch_invariant, m.reference, m.cuda_graphs,
                    m.flash_attention, m.max_rows, m.join_timeout, m.typical_epsilon,
                    m.typical_delta);
}
inline auto Fields(const GroupReady& m) { return std::tuple(m.numerics_fingerprint); }
inline auto Fields(const StepDraftProbs& w) {
  return std::tuple(w.sequence, w.rows, w.entries, w.bytes);
}
}  // namespace specfabric::schemas

namespace specfabric::scheduler {
// Where a list of them looks for it.
inline auto Fields(const PlanSequence& s) {
  return std::tuple(s.id, s.kind, s.kv_len, s.first_row, s.row_count, s.first_block, s.block_count,
                    s.first_logit, s.logit_count, s.samples, s.logprobs,
                    schemas::Fields(s.sampling), s.prompt_size, s.verification, s.draw,
                    s.draw_number, s.draft_row, schemas::Fields(s.rules),
                    schemas::Fields(s.counts));
}
}  // namespace specfabric::scheduler

namespace specfabric::schemas {
inline auto Fields(const Step& m) {
  const scheduler::StepPlan& p = m.plan;
  return std::tuple(p.step, p.tokens, p.positions, p.parents, p.ancestors, Fields(p.sequences),
                    p.blocks, p.logit_rows, p.score_tokens, Fields(p.moves), Fields(m.draft_probs));
}
inline auto Fields(const StepTree& t) {
  return std::tuple(t.sequence, t.accepted.path, t.accepted.tokens, t.accepted.finite);
}
inline auto Fields(const StepDone& m) {
  return std::tuple(m.step, m.error, m.chosen_logits, m.chosen, m.scored_logits, Fields(m.logprobs),
                    Fields(m.trees), m.not_finite_logits);
}
inline auto Fields(const Collective& m) { return std::tuple(m.op, m.parts); }

}  // namespace specfabric::schemas

#endif  // SPECFABRIC_TESTS_SCHEMAS_RANDOM_MESSAGES_H_
