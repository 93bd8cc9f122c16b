#include "sampling/logit_changer.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <limits>

#include "base/finite.h"

namespace specfabric::sampling {
namespace {

// Of tokens that cannot be chosen: finite, since logits that are not tell of a broken model.
constexpr float kExcludedLogit = std::numeric_limits<float>::lowest();

// A function of the count alone, so that it does not matter which part of the text was committed
// when the row was computed.
float Penalised(float logit, const base::LogitRules& rules, int32_t occurrences) {
  if (!base::IsFinite(logit)) return logit;
  logit = logit > 0 ? logit / rules.repetition_penalty : logit * rules.repetition_penalty;
  if (occurrences > 0) {
    logit -= rules.frequency_penalty * static_cast<float>(occurrences);
    logit -= rules.presence_penalty;
  }
  return std::clamp(logit, kExcludedLogit, -kExcludedLogit);
}

bool IsAllowed(absl::Span<const uint32_t> mask, base::TokenId token) {
  return (mask[token / 32] >> (token % 32) & 1) != 0;
}

// Whether the mask allows a token that is not in the list, in which none is twice.
bool AllowsOthers(absl::Span<const uint32_t> mask, const std::vector<base::TokenId>& list) {
  int allowed = 0, listed = 0;
  for (uint32_t word : mask) allowed += std::popcount(word);
  for (base::TokenId token : list) listed += IsAllowed(mask, token) ? 1 : 0;
  return allowed > listed;
}

}  // namespace

TokenCount& TokenCounts::At(base::TokenId token) {
  const auto [it, is_new] = index_.try_emplace(token, static_cast<int32_t>(list_.size()));
  if (is_new) list_.push_back({token, 0});
  return list_[it->second];
}

void LogitChanger::Count(base::TokenId token, int32_t occurrences) {
  int32_t& count = counts_[token];
  if (count == 0) {
    count = 1;
    seen_.push_back(token);
  }
  count += occurrences;
}

void LogitChanger::Open(const base::LogitRules& rules, absl::Span<const TokenCount> committed) {
  counts_.resize(vocabulary_, 0);
  for (base::TokenId token : seen_) counts_[token] = 0;
  seen_.clear();
  rules_ = &rules;
  if (!rules.penalises()) return;
  for (const TokenCount& entry : committed) Count(entry.token, entry.output);
}

void LogitChanger::Exclude(base::TokenId token) {
  if (base::IsFinite(changed_[token])) changed_[token] = kExcludedLogit;
}

void LogitChanger::Penalise(absl::Span<const base::TokenId> path) {
  const size_t committed = seen_.size();
  for (base::TokenId token : path) Count(token, 1);
  for (base::TokenId token : seen_) {
    changed_[token] = Penalised(changed_[token], *rules_, counts_[token] - 1);
  }
  // Back to the committed text, for the next branch.
  for (base::TokenId token : path) --counts_[token];
  for (size_t i = committed; i < seen_.size(); ++i) counts_[seen_[i]] = 0;
  seen_.resize(committed);
}

absl::Span<const float> LogitChanger::Change(absl::Span<const float> row,
                                             absl::Span<const base::TokenId> path,
                                             int32_t output_size, absl::Span<const uint32_t> mask) {
  assert(row.size() == static_cast<size_t>(vocabulary_));
  assert(mask.empty() || mask.size() * 32 >= row.size());
  changed_.assign(row.begin(), row.end());
  for (const base::LogitBias& bias : rules_->bias) changed_[bias.token] += bias.value;
  if (rules_->penalises()) Penalise(path);
  if (!mask.empty()) {
    for (base::TokenId token = 0; token < vocabulary_; ++token) {
      if (!IsAllowed(mask, token)) Exclude(token);
    }
  }
  const std::vector<base::TokenId>& suppressed = rules_->suppressed_token_ids;
  if (rules_->SuppressesAt(output_size) && (mask.empty() || AllowsOthers(mask, suppressed))) {
    for (base::TokenId token : suppressed) Exclude(token);
  }
  return changed_;
}

std::vector<double> ChangedLogitsReference(absl::Span<const float> row,
                                           const base::LogitRules& rules,
                                           absl::Span<const base::TokenId> prompt,
                                           absl::Span<const base::TokenId> output,
                                           const std::vector<bool>& allowed) {
  const auto is_suppressed = [&](base::TokenId token) {
    return std::find(rules.suppressed_token_ids.begin(), rules.suppressed_token_ids.end(), token) !=
           rules.suppressed_token_ids.end();
  };
  bool others = allowed.empty();
  for (size_t token = 0; token < allowed.size(); ++token) {
    others |= allowed[token] && !is_suppressed(static_cast<base::TokenId>(token));
  }
  std::vector<double> logits(row.begin(), row.end());
  for (base::TokenId token = 0; token < static_cast<base::TokenId>(row.size()); ++token) {
    const auto count_in = [&](absl::Span<const base::TokenId> text) {
      int count = 0;
      for (base::TokenId other : text) count += other == token;
      return count;
    };
    const int in_prompt = count_in(prompt), in_output = count_in(output);
    double& logit = logits[token];
    if (!std::isfinite(logit)) continue;
    for (const base::LogitBias& bias : rules.bias) {
      if (bias.token == token) logit += bias.value;
    }
    if (in_prompt + in_output > 0) {
      if (logit > 0) {
        logit /= rules.repetition_penalty;
      } else {
        logit *= rules.repetition_penalty;
      }
    }
    logit -= static_cast<double>(rules.frequency_penalty) * in_output;
    if (in_output > 0) logit -= rules.presence_penalty;
    if (!allowed.empty() && !allowed[token]) logit = kExcludedLogit;
    if (static_cast<int32_t>(output.size()) < rules.min_tokens && others && is_suppressed(token)) {
      logit = kExcludedLogit;
    }
    logit = std::clamp<double>(logit, kExcludedLogit, -kExcludedLogit);
  }
  return logits;
}

}  // namespace specfabric::sampling
