// Codecs of the messages between gateways and targets: Submit, TokensBatch.

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

Offset<wire::Tokens> WriteTokens(const Tokens& m, FlatBufferBuilder& builder) {
  const auto tokens = builder.CreateVector(m.tokens);
  const auto logprobs = WriteLogprobs(m.logprobs, builder);
  const auto prompt_logprobs = WriteLogprobs(m.prompt_logprobs, builder);
  const auto error = builder.CreateString(m.error);
  const auto accepted_at = builder.CreateVector(m.accepted_at);
  return wire::CreateTokens(builder, m.request_id, m.attempt, m.first_index, tokens, logprobs,
                            prompt_logprobs, static_cast<uint8_t>(m.finish), error, m.rounds,
                            m.drafted, m.accepted, accepted_at,
                            static_cast<uint8_t>(m.verification), m.cached_tokens);
}

Tokens CheckedTokens(const wire::Tokens& t, Checker& check) {
  const auto tokens = View(t.tokens());
  const auto error = View(t.error());
  check.NonNegative("first_index", t.first_index());
  check.TokenIds("tokens", tokens);
  check.AtMost("finish", t.finish(), static_cast<uint8_t>(schemas::Finish::kDraining));
  check.Text("error", error, kMaxErrorBytes);
  check.NonNegative("rounds", t.rounds());
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
  m.rounds = t.rounds();
  m.drafted = t.drafted();
  m.accepted = t.accepted();
  m.accepted_at = Copy(accepted_at);
  m.verification = static_cast<VerificationMethod>(t.verification());
  m.cached_tokens = t.cached_tokens();
  return m;
}

// Of the lists of one entry, as they lie in the buffer.
size_t BytesOf(const wire::Tokens& t) {
  return sizeof(int32_t) * (View(t.tokens()).size() + View(t.accepted_at()).size()) +
         View(t.error()).size() + BytesOf(t.logprobs()) + BytesOf(t.prompt_logprobs());
}

constexpr uint8_t kNoVerificationMethod = 255;

}  // namespace

std::vector<uint8_t> Encode(const Submit& m) {
  FlatBufferBuilder builder(256 + (m.prompt.size() + m.generated.size() + m.stop_ids.size()) *
                                      sizeof(base::TokenId));
  const auto prompt = builder.CreateVector(m.prompt);
  const auto generated = builder.CreateVector(m.generated);
  const auto stop_ids = builder.CreateVector(m.stop_ids);
  const auto sampling = wire::ToWire(m.sampling);
  const auto trace = wire::ToWire(m.trace);
  const wire::RuleLists rules = wire::WriteRules(m.rules, builder);
  return wire::Finish(
      builder,
      wire::CreateSubmit(
          builder, m.request_id, m.attempt, prompt, generated, &sampling, m.max_tokens, stop_ids,
          m.score_prompt, m.logprobs, m.speculate, m.rules.presence_penalty,
          m.rules.frequency_penalty, m.rules.repetition_penalty, rules.bias_ids, rules.bias_values,
          m.rules.min_tokens, rules.suppressed_token_ids,
          m.verification ? static_cast<uint8_t>(*m.verification) : kNoVerificationMethod,
          m.tpot_slo, m.tenant, m.cache_salt, m.priority, m.trace.traced() ? &trace : nullptr));
}

template <>
absl::StatusOr<Submit> Decode<Submit>(absl::Span<const uint8_t> payload) {
  auto table = VerifiedTable<wire::Submit>::Open(payload, "Submit");
  if (!table.ok()) return table.status();
  const auto& t = *table;
  Submit m;
  m.request_id = t->request_id();
  m.attempt = t->attempt();
  m.sampling = wire::FromWire(t->sampling());
  m.max_tokens = t->max_tokens();
  m.score_prompt = t->score_prompt();
  m.logprobs = t->logprobs();
  m.speculate = t->speculate();

  const auto prompt = View(t->prompt());
  const auto generated = View(t->generated());
  const auto stop_ids = View(t->stop_ids());
  Checker check("Submit");
  check.TokenIds("prompt", prompt);
  check.TokenIds("generated", generated);
  check.Size("stop_ids", stop_ids.size(), kMaxStopIds);
  check.TokenIds("stop_ids", stop_ids);
  check.Sampling(m.sampling);
  check.NonNegative("max_tokens", m.max_tokens);
  if (m.logprobs < -1 || m.logprobs > kMaxTopLogprobs) {
    check.Fail("logprobs", m.logprobs, absl::StrCat("in [-1, ", kMaxTopLogprobs, "]"));
  }
  m.tenant = t->tenant();
  m.cache_salt = t->cache_salt();
  m.priority = t->priority();
  m.trace = wire::FromWire(t->trace());
  check.Require(m.priority >= -kMaxPriority && m.priority <= kMaxPriority, "priority", m.priority,
                "in [-100, 100]");
  m.tpot_slo = t->tpot_slo();
  check.NonNegative("tpot_slo", m.tpot_slo);
  m.rules = wire::CheckedRules(*t.operator->(), check);
  if (t->verification() != kNoVerificationMethod) {
    check.AtMost("verification", t->verification(),
                 static_cast<uint8_t>(VerificationMethod::kTypical));
    m.verification = static_cast<VerificationMethod>(t->verification());
  }
  if (!check.ok()) return check.status();
  m.prompt = Copy(prompt);
  m.generated = Copy(generated);
  m.stop_ids = Copy(stop_ids);
  return m;
}

std::vector<uint8_t> Encode(const TokensBatch& m) {
  FlatBufferBuilder builder(256 * (m.sequences.size() + 1));
  std::vector<Offset<wire::Tokens>> sequences;
  sequences.reserve(m.sequences.size());
  for (const Tokens& tokens : m.sequences) sequences.push_back(WriteTokens(tokens, builder));
  return wire::Finish(builder, wire::CreateTokensBatchDirect(builder, &sequences));
}

template <>
absl::StatusOr<TokensBatch> Decode<TokensBatch>(absl::Span<const uint8_t> payload) {
  auto table = VerifiedTable<wire::TokensBatch>::Open(payload, "TokensBatch");
  if (!table.ok()) return table.status();
  Checker check("TokensBatch");
  TokensBatch m;
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
