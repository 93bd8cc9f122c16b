#ifndef SPECFABRIC_TESTS_TARGET_FAKE_DEVICE_H_
#define SPECFABRIC_TESTS_TARGET_FAKE_DEVICE_H_

// A device whose memory is the host's: it verifies with the code that devices are checked against.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/cuda/logit_matrix.h"
#include "gtest/gtest.h"
#include "model/device_logits.h"
#include "sampling/gumbel.h"
#include "sampling/sampling.h"
#include "speculation/draft_probs.h"
#include "speculation/tree.h"
#include "verification/cpu/tree_verifier.h"
#include "verification/device_draft_rows.h"
#include "verification/device_verifier.h"
#include "verification/randomness.h"

namespace specfabric::target {

// One rank's part of the logits. What does not work fails at whatever is asked.
class FakeLogits : public model::DeviceLogits {
 public:
  // shard: [rows][width], of ids from `first` on.
  FakeLogits(std::vector<float> shard, int width, base::TokenId first, bool works)
      : shard_(std::move(shard)), width_(width), first_(first), works_(works) {}

  base::cuda::LogitMatrix matrix() const override {
    return {.logits = shard_.data(), .stride = width_, .first = first_, .size = width_};
  }
  absl::StatusOr<const float*> Fetch(absl::Span<const int32_t> rows) override {
    if (!works_) return absl::InternalError("broken");
    fetched_.clear();
    for (int32_t row : rows) {
      fetched_rows_.push_back(row);
      const auto begin = shard_.begin() + int64_t{row} * width_;
      fetched_.insert(fetched_.end(), begin, begin + width_);
    }
    return fetched_.data();
  }

  const std::vector<int32_t>& fetched_rows() const { return fetched_rows_; }

 private:
  const std::vector<float> shard_;
  const int width_;
  const base::TokenId first_;
  const bool works_;
  std::vector<int32_t> fetched_rows_;
  std::vector<float> fetched_;
};

class FakeVerifier : public verification::DeviceVerifier {
 public:
  explicit FakeVerifier(bool works) : works_(works) {}

  absl::Status Best(const base::cuda::LogitMatrix& logits,
                    absl::Span<const verification::RowChoice> choices,
                    absl::Span<sampling::ScoredToken> best) override {
    if (!works_) return absl::InternalError("broken");
    for (size_t i = 0; i < choices.size(); ++i) {
      const std::vector<float> noise =
          Noise(logits, choices[i].seed, choices[i].position, choices[i].temperature);
      best[i] = sampling::PerturbedArgMax(Row(logits, choices[i].row), noise,
                                          choices[i].temperature, logits.first);
    }
    return absl::OkStatus();
  }

  absl::Status Verify(const base::cuda::LogitMatrix& logits,
                      absl::Span<const verification::DeviceTree> trees,
                      absl::Span<speculation::Accepted> accepted) override {
    if (!works_) return absl::InternalError("broken");
    decided_ += static_cast<int>(trees.size());
    for (size_t i = 0; i < trees.size(); ++i) accepted[i] = Decide(logits, trees[i]);
    return absl::OkStatus();
  }

  int decided() const { return decided_; }  // trees

 private:
  using Logits = base::cuda::LogitMatrix;

  static absl::Span<const float> Row(const Logits& logits, int32_t row) {
    return {static_cast<const float*>(logits.logits) + row * logits.stride,
            static_cast<size_t>(logits.size)};
  }

  static std::vector<float> Noise(const Logits& logits, uint64_t seed, uint32_t position,
                                  float temperature) {
    std::vector<float> noise(temperature == 0 ? 0 : logits.size);
    sampling::GumbelNoise(seed, position, logits.first, absl::MakeSpan(noise));
    return noise;
  }

  speculation::Accepted Decide(const Logits& logits, const verification::DeviceTree& asked) const {
    const speculation::TokenTree tree = {{asked.parents.begin(), asked.parents.end()},
                                         {asked.tokens.begin(), asked.tokens.end()},
                                         std::vector<float>(asked.tokens.size())};
    EXPECT_TRUE(speculation::Validate(tree, speculation::kMaxVerifyNodes, logits.size).ok());
    return asked.verification == speculation::VerificationMethod::kCoupled
               ? Walk(logits, asked, tree)
               : VerifyTree(logits, asked, tree);
  }

  speculation::Accepted Walk(const Logits& logits, const verification::DeviceTree& asked,
                             const speculation::TokenTree& tree) const {
    std::vector<base::TokenId> chosen;
    for (int node = 0; node < tree.size(); ++node) {
      const std::vector<float> noise =
          Noise(logits, asked.sampling.seed, asked.position + speculation::DepthOf(tree, node),
                asked.sampling.temperature);
      chosen.push_back(
          sampling::SampleRow(Row(logits, asked.first_logit + node), noise, asked.sampling));
    }
    return speculation::WalkCoupled(tree, chosen);
  }

  speculation::Accepted VerifyTree(const Logits& logits, const verification::DeviceTree& asked,
                                   const speculation::TokenTree& tree) const {
    speculation::DraftProbs draft_probs;
    if (speculation::NeedsDraftRows(asked.verification, asked.draw)) {
      const auto rows = static_cast<int32_t>(asked.totals.size());
      draft_probs =
          *speculation::DraftProbs::Open({rows, logits.size, asked.entries}, asked.draft_probs);
      EXPECT_EQ(draft_probs.totals(), asked.totals);
    }
    const verification::TreeToVerify round = {.tree = tree,
                                              .verification = asked.verification,
                                              .draw = asked.draw,
                                              .sampling = asked.sampling,
                                              .typical = asked.typical,
                                              .draft_probs = &draft_probs,
                                              .draft_row = asked.draft_row};
    const verification::PhiloxRandomness random(asked.sampling.seed, asked.position,
                                                asked.draw_number, tree);
    speculation::Accepted accepted;
    verification::TreeVerifier(logits.size)
        .Verify(
            round, [&](int node) { return Row(logits, asked.first_logit + node); }, random,
            &accepted);
    return accepted;
  }

  const bool works_;
  int decided_ = 0;
};

class FakeDraftRows : public verification::DeviceDraftRows {
 public:
  explicit FakeDraftRows(bool works) : works_(works) {}

  absl::Status Reserve(int32_t /*vocabulary*/, int32_t /*draws*/) override {
    return absl::UnimplementedError("targets draw nothing");
  }
  absl::Status Draw(const base::cuda::LogitMatrix& /*logits*/,
                    absl::Span<const verification::RowDraw> /*draws*/,
                    absl::Span<verification::DrawnRow> /*drawn*/) override {
    return absl::UnimplementedError("targets draw nothing");
  }
  absl::Status Validate(const uint8_t* /*rows*/, int32_t /*vocabulary*/, int32_t /*entries*/,
                        absl::Span<sampling::DraftRowFacts> /*facts*/) override {
    return absl::UnimplementedError("what is verified has been validated");
  }
  absl::Status Fetch(absl::Span<const uint8_t> device, uint8_t* host) override {
    if (!works_) return absl::InternalError("broken");
    std::copy(device.begin(), device.end(), host);
    return absl::OkStatus();
  }

 private:
  const bool works_;
};

}  // namespace specfabric::target

#endif  // SPECFABRIC_TESTS_TARGET_FAKE_DEVICE_H_
