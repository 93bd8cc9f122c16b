#include "verification/reference/acceptance.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace specfabric::verification {
namespace {

constexpr double kSumTolerance = 1e-3;

absl::Status ValidateRows(const char* name, absl::Span<const double> rows, int vocabulary) {
  for (size_t first = 0; first < rows.size(); first += vocabulary) {
    double sum = 0;
    for (double value : rows.subspan(first, vocabulary)) {
      if (!(value >= 0)) {
        return absl::InvalidArgumentError(absl::StrCat(name, " row ", first / vocabulary, " holds ",
                                                       value, ": allowed are 0 to 1"));
      }
      sum += value;
    }
    if (!(std::abs(sum - 1) <= kSumTolerance)) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " row ", first / vocabulary, " sums to ", sum, ": must sum to 1"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateDraftRows(const VerifyInput& input) {
  const size_t nodes = input.tree.size();
  if (input.q.size() % input.vocabulary != 0 || input.q_row.size() != nodes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "q has ", input.q.size(), " values and ", input.q_row.size(), " row numbers: must be ",
        "whole rows of ", input.vocabulary, " and a number for each of ", nodes, " nodes"));
  }
  const int rows = static_cast<int>(input.q.size() / input.vocabulary);
  for (size_t node = 1; node < nodes; ++node) {
    if (input.q_row[node] < 0 || input.q_row[node] >= rows) {
      return absl::InvalidArgumentError(
          absl::StrCat("node ", node, " names q row ", input.q_row[node], ": there are ", rows));
    }
  }
  return ValidateRows("q", input.q, input.vocabulary);
}

absl::Span<const double> Row(const std::vector<double>& rows, int row, int vocabulary) {
  return absl::MakeConstSpan(rows).subspan(static_cast<size_t>(row) * vocabulary, vocabulary);
}

}  // namespace

sampling::Distribution VerifyInput::TargetDistribution(int node) const {
  return sampling::Normalized(Row(p, node, vocabulary));
}

sampling::Distribution VerifyInput::DraftDistribution(int node) const {
  if (draw == speculation::SiblingDraw::kDeterministic) {
    sampling::Distribution distribution(vocabulary, 0.0);
    distribution[tree.tokens[node]] = 1;
    return distribution;
  }
  const absl::Span<const double> row = Row(q, q_row[node], vocabulary);
  sampling::Distribution distribution(row.begin(), row.end());
  if (draw == speculation::SiblingDraw::kWithoutReplacement) {
    for (int earlier = 1; earlier < node; ++earlier) {
      if (tree.parents[earlier] == tree.parents[node] && q_row[earlier] == q_row[node]) {
        distribution[tree.tokens[earlier]] = 0;
      }
    }
  }
  return sampling::Normalized(distribution);
}

absl::Status ValidateInput(speculation::VerificationMethod verification, const VerifyInput& input) {
  if (input.vocabulary < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("vocabulary is ", input.vocabulary, ": must be positive"));
  }
  absl::Status status =
      speculation::Validate(input.tree, speculation::kMaxVerifyNodes, input.vocabulary);
  if (!status.ok()) return status;
  if (!speculation::Allows(verification, input.draw)) {
    return absl::InvalidArgumentError(
        absl::StrCat("siblings drawn as ", speculation::Name(input.draw), " cannot be verified by ",
                     speculation::Name(verification)));
  }
  const size_t wanted = static_cast<size_t>(input.tree.size()) * input.vocabulary;
  if (input.p.size() != wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("p has ", input.p.size(), " values: must be ", wanted));
  }
  status = ValidateRows("p", input.p, input.vocabulary);
  if (!status.ok() || !speculation::NeedsDraftRows(verification, input.draw)) return status;
  return ValidateDraftRows(input);
}

std::vector<int32_t> Children(const speculation::TokenTree& tree, int node) {
  std::vector<int32_t> children;
  for (int child = node + 1; child < tree.size(); ++child) {
    if (tree.parents[child] == node) children.push_back(child);
  }
  return children;
}

speculation::Accepted AcceptCoupled(const VerifyInput& input, absl::Span<const double> noise) {
  const std::vector<int32_t> depths = speculation::Depths(input.tree);
  std::vector<base::TokenId> chosen(input.tree.size(), base::kNoToken);
  for (int node = 0; node < input.tree.size(); ++node) {
    const absl::Span<const double> p = Row(input.p, node, input.vocabulary);
    const absl::Span<const double> g =
        noise.subspan(static_cast<size_t>(depths[node]) * input.vocabulary, input.vocabulary);
    double best = -std::numeric_limits<double>::infinity();
    for (int x = 0; x < input.vocabulary; ++x) {
      const double score = std::log(p[x]) + g[x];
      if (p[x] > 0 && score > best) {
        best = score;
        chosen[node] = x;
      }
    }
  }
  return speculation::WalkCoupled(input.tree, chosen);
}

}  // namespace specfabric::verification
