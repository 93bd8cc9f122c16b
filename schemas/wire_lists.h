#ifndef SPECFABRIC_SCHEMAS_WIRE_LISTS_H_
#define SPECFABRIC_SCHEMAS_WIRE_LISTS_H_

// What several messages hold alike: lists of log-probabilities, and the rules of a request. Private
// to schemas/.

#include <vector>

#include "schemas/wire.h"

namespace specfabric::schemas::wire {

// An empty list is an absent table.
flatbuffers::Offset<Logprobs> WriteLogprobs(const std::vector<base::TokenLogprobs>& list,
                                            FlatBufferBuilder& builder);
std::vector<base::TokenLogprobs> CheckedLogprobs(const Logprobs* table, const char* field,
                                                 Checker& check);
// As they lie in the buffer.
size_t BytesOf(const Logprobs* table);

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
  const auto barred = View(t.barred_ids());
  check.Size("barred_ids", barred.size(), kMaxStopIds);
  check.TokenIds("barred_ids", barred);
  const auto ids = View(t.bias_ids());
  const auto values = View(t.bias_values());
  check.Size("bias_ids", ids.size(), kMaxLogitBias);
  check.TokenIds("bias_ids", ids);
  check.Require(values.size() == ids.size(), "number of bias_values", values.size(),
                "the number of bias_ids");
  if (!check.ok()) return rules;
  rules.barred_ids = Copy(barred);
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
