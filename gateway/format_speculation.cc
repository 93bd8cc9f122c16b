#include "gateway/format_speculation.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace specfabric::gateway {
namespace {

// [j] the rounds that had draft tokens and accepted exactly j of them. A target whose totals
// contradict each other may not make a count negative.
std::vector<int64_t> Histogram(const schemas::Speculation& totals) {
  std::vector<int64_t> rounds = {totals.drafted_rounds};  // at least j were accepted
  rounds.insert(rounds.end(), totals.accepted_at.begin(), totals.accepted_at.end());
  for (size_t j = 0; j + 1 < rounds.size(); ++j) {
    rounds[j] = std::max<int64_t>(0, rounds[j] - rounds[j + 1]);
  }
  return rounds;
}

double Ratio(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

Json SpeculativeDecoding(const schemas::Speculation& totals) {
  const std::vector<int64_t> histogram = Histogram(totals);
  int64_t steps = 0, accepted = 0;
  for (size_t j = 0; j < histogram.size(); ++j) {
    steps += histogram[j];
    accepted += static_cast<int64_t>(j) * histogram[j];
  }
  return {{"mean_acceptance_length", 1 + Ratio(accepted, steps)},
          {"draft_acceptance_rate", Ratio(accepted, totals.drafted)},
          {"acceptance_histogram", histogram},
          {"num_spec_steps", steps},
          {"num_accepted_draft_tokens", accepted},
          {"num_draft_tokens", totals.drafted}};
}

}  // namespace

Json MetricsJson(const Usage& usage) {
  return {{"speculative_decoding",
           usage.choices == 1 ? SpeculativeDecoding(usage.speculation) : Json()}};
}

}  // namespace specfabric::gateway
