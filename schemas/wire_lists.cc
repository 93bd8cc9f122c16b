#include "schemas/wire_lists.h"

namespace specfabric::schemas::wire {

using flatbuffers::Offset;

Offset<Logprobs> WriteLogprobs(const std::vector<base::TokenLogprobs>& list,
                               FlatBufferBuilder& builder) {
  if (list.empty()) return 0;
  std::vector<int32_t> tokens, top_tokens;
  std::vector<float> values, top_values;
  std::vector<uint16_t> top_counts;
  for (const base::TokenLogprobs& entry : list) {
    tokens.push_back(entry.token);
    values.push_back(entry.logprob);
    top_counts.push_back(static_cast<uint16_t>(entry.top.size()));
    for (const auto& [token, value] : entry.top) {
      top_tokens.push_back(token);
      top_values.push_back(value);
    }
  }
  return CreateLogprobsDirect(builder, &tokens, &values, &top_counts, &top_tokens, &top_values);
}

std::vector<base::TokenLogprobs> CheckedLogprobs(const Logprobs* table, const char* field,
                                                 Checker& check) {
  if (table == nullptr) return {};
  const auto tokens = View(table->tokens());
  const auto values = View(table->values());
  const auto top_counts = View(table->top_counts());
  const auto top_tokens = View(table->top_tokens());
  const auto top_values = View(table->top_values());
  check.TokenIds(field, tokens);
  check.Finite(field, values);
  check.Finite(field, top_values);
  uint64_t total = 0;
  for (uint16_t count : top_counts) {
    check.Size(field, count, kMaxTopLogprobs);
    total += count;
  }
  check.Require(values.size() == tokens.size() && top_counts.size() == tokens.size() &&
                    top_tokens.size() == total && top_values.size() == total,
                field, "arrays of unequal length", "one entry a token");
  for (base::TokenId token : top_tokens) {
    check.Require(token >= 0, field, token, "token ids of at least 0");
  }
  if (!check.ok()) return {};

  std::vector<base::TokenLogprobs> result(tokens.size());
  size_t next = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    result[i].token = tokens[i];
    result[i].logprob = values[i];
    result[i].top.reserve(top_counts[i]);
    for (const size_t end = next + top_counts[i]; next < end; ++next) {
      result[i].top.emplace_back(top_tokens[next], top_values[next]);
    }
  }
  return result;
}

void CheckAscending(const char* field, absl::Span<const int32_t> indices, size_t size,
                    Checker& check) {
  int64_t least = 0;
  for (int32_t index : indices) {
    check.Require(index >= least && index < static_cast<int64_t>(size), field, index,
                  absl::StrCat("ascending, in [0, ", size, ")"));
    if (!check.ok()) return;
    least = int64_t{index} + 1;
  }
}

RuleLists WriteRules(const base::LogitRules& rules, FlatBufferBuilder& builder) {
  std::vector<base::TokenId> ids;
  std::vector<float> values;
  for (const base::LogitBias& bias : rules.bias) {
    ids.push_back(bias.token);
    values.push_back(bias.value);
  }
  return {.bias_ids = builder.CreateVector(ids),
          .bias_values = builder.CreateVector(values),
          .suppressed_token_ids = builder.CreateVector(rules.suppressed_token_ids)};
}

size_t BytesOf(const Logprobs* t) {
  if (t == nullptr) return 0;
  return sizeof(int32_t) * (View(t->tokens()).size() + View(t->values()).size() +
                            View(t->top_tokens()).size() + View(t->top_values()).size()) +
         sizeof(uint16_t) * View(t->top_counts()).size();
}

}  // namespace specfabric::schemas::wire
