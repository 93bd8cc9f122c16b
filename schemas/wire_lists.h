#ifndef SPECFABRIC_SCHEMAS_WIRE_LISTS_H_
#define SPECFABRIC_SCHEMAS_WIRE_LISTS_H_

// What several messages hold alike: lists of log-probabilities, and the rules of a request. Private
// to schemas/.

#include <vector>

#include "base/logit_rules.h"
#include "schemas/wire.h"

namespace specfabric::schemas::wire {

// An empty list is an absent table.
flatbuffers::Offset<Logprobs> WriteLogprobs(const std::vector<base::TokenLogprobs>& list,
                                            FlatBufferBuilder& builder);
std::vector<base::TokenLogprobs> CheckedLogprobs(const Logprobs* table, const char* field,
                                                 Checker& check);
// As they lie in the buffer.
size_t BytesOf(const Logprobs* table);

// Indices into something of `size` entries: ascending, none twice.
void CheckAscending(const char* field, absl::Span<const int32_t> indices, size_t size,
                    Checker& check);

// The lists that rules are made of, for a table that has the fields of Submit.
struct RuleLists {
  flatbuffers::Offset<flatbuffers::Vector<int32_t>> bias_ids;
  flatbuffers::Offset<flatbuffers::Vector<float>> bias_values;
  flatbuffers::Offset<flatbuffers::Vector<int32_t>> suppressed_token_ids;
};
RuleLists WriteRules(const base::LogitRules& rules, FlatBufferBuilder& builder);

// Of entries that each may have lists of their own: no more than `most`, and none shares its lists
// with others, which would make a small message large in memory. bytes_of: of an entry's lists, as
// they lie in the payload.
template <typename Entry, typename BytesOfEntry>
void CheckEntries(const char* field, const flatbuffers::Vector<flatbuffers::Offset<Entry>>& entries,
                  size_t most, absl::Span<const uint8_t> payload, BytesOfEntry bytes_of,
                  Checker& check) {
  check.Size(field, entries.size(), most);
  size_t bytes = 0;
  for (const Entry* entry : entries) {
    if (!check.ok()) return;
    bytes += bytes_of(*entry);
    check.Require(bytes <= payload.size(), field, "entries that share their lists",
                  "entries with lists of their own");
  }
}

// Of a table that has the fields of Submit that rules are made of.
template <typename Table>
base::LogitRules CheckedRules(const Table& t, Checker& check) {
  base::LogitRules rules;
  rules.presence_penalty = t.presence_penalty();
  rules.frequency_penalty = t.frequency_penalty();
  rules.repetition_penalty = t.repetition_penalty();
  rules.min_tokens = t.min_tokens();
  const auto penalty = [&](const char* field, float value) {
    check.Require(value >= -2 && value <= 2, field, value, "in [-2, 2]");
  };
  penalty("presence_penalty", rules.presence_penalty);
  penalty("frequency_penalty", rules.frequency_penalty);
  check.Require(std::isfinite(rules.repetition_penalty) && rules.repetition_penalty > 0,
                "repetition_penalty", rules.repetition_penalty, "finite and above 0");
  check.NonNegative("min_tokens", rules.min_tokens);
  const auto suppressed = View(t.suppressed_token_ids());
  check.Size("suppressed_token_ids", suppressed.size(), kMaxStopIds);
  check.TokenIds("suppressed_token_ids", suppressed);
  const auto ids = View(t.bias_ids());
  const auto values = View(t.bias_values());
  check.Size("bias_ids", ids.size(), kMaxLogitBias);
  check.TokenIds("bias_ids", ids);
  check.Require(values.size() == ids.size(), "number of bias_values", values.size(),
                "the number of bias_ids");
  if (!check.ok()) return rules;
  rules.suppressed_token_ids = Copy(suppressed);
  for (size_t i = 0; i < ids.size(); ++i) {
    check.Require(i == 0 || ids[i] > ids[i - 1], "bias_ids", ids[i], "above the one before it");
    check.Require(values[i] >= -100 && values[i] <= 100, "bias_values", values[i],
                  "in [-100, 100]");
    rules.bias.push_back({ids[i], values[i]});
  }
  return rules;
}

}  // namespace specfabric::schemas::wire

#endif  // SPECFABRIC_SCHEMAS_WIRE_LISTS_H_
