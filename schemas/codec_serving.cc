// Codecs of the messages between gateways and targets: Submit, TokensBatch.

#include <algorithm>

#include "schemas/wire.h"
#include "schemas/wire_lists.h"

namespace specfabric::schemas {
namespace {

using flatbuffers::Offset;
using wire::BytesOf;
using wire::CheckedLogprobs;
using wire::Checker;
using wire::Copy;
using wire::FlatBufferBuilder;
using wire::VerifiedTable;
using wire::View;
using wire::WriteLogprobs;

// The counts of one sequence are limited by its context, so they fit 32 bits.
int32_t Count(int64_t count) { return static_cast<int32_t>(count); }

Offset<wire::Tokens> WriteTokens(const Tokens& m, FlatBufferBuilder& builder) {
  const auto tokens = builder.CreateVector(m.tokens);
  const auto logprobs = WriteLogprobs(m.logprobs, builder);
  const auto prompt_logprobs = WriteLogprobs(m.prompt_logprobs, builder);
  const auto error = builder.CreateString(m.error);
  const Speculation& speculation = m.speculation;
  int32_t* counts = nullptr;
  const auto accepted_at =
      builder.CreateUninitializedVector(speculation.accepted_at.size(), &counts);
  std::transform(speculation.accepted_at.begin(), speculation.accepted_at.end(), counts, Count);
  return wire::CreateTokens(
      builder, m.request_id, m.attempt, m.first_index, tokens, logprobs, prompt_logprobs,
      static_cast<uint8_t>(m.finish), error, Count(speculation.rounds), Count(speculation.drafted),
      Count(speculation.accepted), accepted_at, static_cast<uint8_t>(speculation.verification),
      m.cached_tokens, Count(speculation.drafted_rounds));
}

Tokens CheckedTokens(const wire::Tokens& t, Checker& check) {
  const auto tokens = View(t.tokens());
  const auto error = View(t.error());
  check.NonNegative("first_index", t.first_index());
  check.TokenIds("tokens", tokens);
  check.AtMost("finish", t.finish(), static_cast<uint8_t>(schemas::Finish::kDraining));
  check.Text("error", error, kMaxErrorBytes);
  check.NonNegative("rounds", t.rounds());
  check.NonNegative("drafted_rounds", t.drafted_rounds());
  check.NonNegative("drafted", t.drafted());
  check.NonNegative("accepted", t.accepted());
  const auto accepted_at = View(t.accepted_at());
  check.Size("accepted_at", accepted_at.size(), kMaxTreeNodes);
  for (int32_t count : accepted_at) check.NonNegative("accepted_at", count);
  check.AtMost("verification", t.verification(),
               static_cast<uint8_t>(VerificationMethod::kTypical));
  check.NonNegative("cached_tokens", t.cached_tokens());
  Tokens m;
  m.logprobs = CheckedLogprobs(t.logprobs(), "logprobs", check);
  m.prompt_logprobs = CheckedLogprobs(t.prompt_logprobs(), "prompt_logprobs", check);
  if (!check.ok()) return m;
  m.request_id = t.request_id();
  m.attempt = t.attempt();
  m.first_index = t.first_index();
  m.tokens = Copy(tokens);
  m.finish = static_cast<schemas::Finish>(t.finish());
  m.error = error;
  m.speculation = {t.rounds(),
                   t.drafted(),
                   t.accepted(),
                   {accepted_at.begin(), accepted_at.end()},
                   static_cast<VerificationMethod>(t.verification()),
                   t.drafted_rounds()};
  m.cached_tokens = t.cached_tokens();
  return m;
}

// Bytes that the lists of one entry take in the buffer.
size_t BytesOf(const wire::Tokens& t) {
  return sizeof(int32_t) * (View(t.tokens()).size() + View(t.accepted_at()).size()) +
         View(t.error()).size() + BytesOf(t.logprobs()) + BytesOf(t.prompt_logprobs());
}

constexpr uint8_t kNoVerificationMethod = 255;
static_assert(kMaxDraftTokens == 63, "the default of Submit.max_draft_tokens");

Offset<wire::TargetLoad> WriteLoad(const TargetLoad& load, FlatBufferBuilder& builder) {
  const auto accepted_at = builder.CreateVector(load.accepted_at);
  return wire::CreateTargetLoad(builder, load.running, load.waiting, load.kv_blocks,
                                load.kv_blocks_used, load.block_size, load.drafts, load.drafted,
                                load.accepted, accepted_at);
}

TargetLoad CheckedLoad(const wire::TargetLoad& t, Checker& check) {
  check.NonNegative("running", t.running());
  check.NonNegative("waiting", t.waiting());
  check.NonNegative("kv_blocks", t.kv_blocks());
  check.NonNegative("kv_blocks_used", t.kv_blocks_used());
  check.AtMost("kv_blocks_used", t.kv_blocks_used(), t.kv_blocks());
  check.NonNegative("block_size", t.block_size());
  check.NonNegative("drafts", t.drafts());
  check.NonNegative("drafted", t.drafted());
  check.NonNegative("accepted", t.accepted());
  const auto accepted_at = View(t.accepted_at());
  check.Size("accepted_at", accepted_at.size(), kMaxTreeNodes);
  if (!check.ok()) return {};
  for (const int64_t count : accepted_at) check.NonNegative("accepted_at", count);
  return {t.running(), t.waiting(), t.kv_blocks(), t.kv_blocks_used(), t.block_size(),
          t.drafts(),  t.drafted(), t.accepted(),  Copy(accepted_at)};
}

}  // namespace

void Speculation::Add(const Speculation& other) {
  rounds += other.rounds;
  drafted_rounds += other.drafted_rounds;
  drafted += other.drafted;
  accepted += other.accepted;
  if (accepted_at.size() < other.accepted_at.size()) accepted_at.resize(other.accepted_at.size());
  for (size_t i = 0; i < other.accepted_at.size(); ++i) accepted_at[i] += other.accepted_at[i];
  // Methods are ordered by their guarantee: the same tokens, the same distribution, neither.
  verification = std::max(verification, other.verification);
}

std::vector<uint8_t> Encode(const Submit& m) {
  const SequenceRequest& q = m.sequence;
  FlatBufferBuilder builder(256 + (q.prompt.size() + q.generated.size() + q.stop_ids.size()) *
                                      sizeof(base::TokenId));
  const auto prompt = builder.CreateVector(q.prompt);
  const auto generated = builder.CreateVector(q.generated);
  const auto stop_ids = builder.CreateVector(q.stop_ids);
  const auto sampling = wire::ToWire(q.sampling);
  const auto trace = wire::ToWire(m.trace);
  const auto grammar = builder.CreateString(q.grammar.source);
  const auto drafter = builder.CreateString(q.drafter);
  const wire::RuleLists rules = wire::WriteRules(q.rules, builder);
  return wire::Finish(
      builder,
      wire::CreateSubmit(
          builder, m.request_id, q.attempt, prompt, generated, &sampling, q.max_tokens, stop_ids,
          q.score_prompt, q.logprobs, q.speculate, q.rules.presence_penalty,
          q.rules.frequency_penalty, q.rules.repetition_penalty, rules.bias_ids, rules.bias_values,
          q.rules.min_tokens, rules.suppressed_token_ids,
          m.verification ? static_cast<uint8_t>(*m.verification) : kNoVerificationMethod,
          q.tpot_slo, q.tenant, q.cache_salt, q.priority, m.trace.traced() ? &trace : nullptr,
          static_cast<uint8_t>(q.grammar.language), grammar, q.max_draft_tokens, drafter));
}

template <>
absl::StatusOr<Submit> Decode<Submit>(absl::Span<const uint8_t> payload) {
  auto table = VerifiedTable<wire::Submit>::Open(payload, "Submit");
  if (!table.ok()) return table.status();
  const auto& t = *table;
  Submit m;
  SequenceRequest& q = m.sequence;
  m.request_id = t->request_id();
  q.attempt = t->attempt();
  q.sampling = wire::FromWire(t->sampling());
  q.max_tokens = t->max_tokens();
  q.score_prompt = t->score_prompt();
  q.logprobs = t->logprobs();
  q.speculate = t->speculate();
  q.max_draft_tokens = t->max_draft_tokens();

  const auto prompt = View(t->prompt());
  const auto generated = View(t->generated());
  const auto stop_ids = View(t->stop_ids());
  const auto grammar = View(t->grammar());
  const auto drafter = View(t->drafter());
  Checker check("Submit");
  check.TokenIds("prompt", prompt);
  check.TokenIds("generated", generated);
  check.Size("stop_ids", stop_ids.size(), kMaxStopIds);
  check.TokenIds("stop_ids", stop_ids);
  check.Sampling(q.sampling);
  check.NonNegative("max_tokens", q.max_tokens);
  if (q.logprobs < -1 || q.logprobs > kMaxTopLogprobs) {
    check.Fail("logprobs", q.logprobs, absl::StrCat("in [-1, ", kMaxTopLogprobs, "]"));
  }
  check.Require(q.max_draft_tokens >= 0 && q.max_draft_tokens <= kMaxDraftTokens,
                "max_draft_tokens", q.max_draft_tokens, "in [0, 63]");
  check.Text("drafter", drafter, kMaxNameBytes);
  q.tenant = t->tenant();
  q.cache_salt = t->cache_salt();
  q.priority = t->priority();
  m.trace = wire::FromWire(t->trace());
  check.Require(q.priority >= -kMaxPriority && q.priority <= kMaxPriority, "priority", q.priority,
                "in [-100, 100]");
  q.tpot_slo = t->tpot_slo();
  check.NonNegative("tpot_slo", q.tpot_slo);
  q.rules = wire::CheckedRules(*t.operator->(), check);
  check.AtMost("grammar_language", t->grammar_language(), base::kGrammarLanguages - 1);
  check.Size("grammar", grammar.size(), base::kMaxGrammarBytes);
  if (t->verification() != kNoVerificationMethod) {
    check.AtMost("verification", t->verification(),
                 static_cast<uint8_t>(VerificationMethod::kTypical));
    m.verification = static_cast<VerificationMethod>(t->verification());
  }
  if (!check.ok()) return check.status();
  q.grammar = {static_cast<base::GrammarLanguage>(t->grammar_language()), std::string(grammar)};
  q.rules.masked = !q.grammar.empty();
  q.drafter = drafter;
  q.prompt = Copy(prompt);
  q.generated = Copy(generated);
  q.stop_ids = Copy(stop_ids);
  return m;
}

std::vector<uint8_t> Encode(const TokensBatch& m) {
  FlatBufferBuilder builder(256 * (m.sequences.size() + 1));
  std::vector<Offset<wire::Tokens>> sequences;
  sequences.reserve(m.sequences.size());
  for (const Tokens& tokens : m.sequences) sequences.push_back(WriteTokens(tokens, builder));
  Offset<wire::TargetLoad> load;
  if (m.load) load = WriteLoad(*m.load, builder);
  return wire::Finish(builder, wire::CreateTokensBatchDirect(builder, &sequences, load));
}

template <>
absl::StatusOr<TokensBatch> Decode<TokensBatch>(absl::Span<const uint8_t> payload) {
  auto table = VerifiedTable<wire::TokensBatch>::Open(payload, "TokensBatch");
  if (!table.ok()) return table.status();
  Checker check("TokensBatch");
  TokensBatch m;
  if (const auto* load = (*table)->load()) m.load = CheckedLoad(*load, check);
  if (!check.ok()) return check.status();
  const auto* sequences = (*table)->sequences();
  if (sequences == nullptr) return m;
  wire::CheckEntries(
      "sequences", *sequences, kMaxBatchSequences, payload,
      [](const wire::Tokens& tokens) { return BytesOf(tokens); }, check);
  if (!check.ok()) return check.status();
  m.sequences.reserve(sequences->size());
  for (const wire::Tokens* tokens : *sequences) {
    if (!check.ok()) return check.status();
    m.sequences.push_back(CheckedTokens(*tokens, check));
  }
  if (!check.ok()) return check.status();
  return m;
}

}  // namespace specfabric::schemas
