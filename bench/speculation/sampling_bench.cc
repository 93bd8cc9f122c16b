// Cost of the host's part of sampling, for one row.

#include <random>
#include <vector>

#include "benchmark/benchmark.h"
#include "sampling/draft_row.h"
#include "sampling/gumbel.h"
#include "sampling/sampling.h"

namespace specfabric::speculation {
namespace {

struct Row {
  std::vector<float> logits, noise;
};

Row MakeRow(int64_t vocabulary) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  Row row;
  row.logits.resize(vocabulary);
  row.noise.resize(vocabulary);
  for (float& logit : row.logits) logit = normal(random);
  sampling::GumbelNoise(1, 1, 0, absl::MakeSpan(row.noise));
  return row;
}

void BM_GumbelNoise(benchmark::State& state) {
  std::vector<float> noise(state.range(0));
  uint32_t position = 0;
  for (auto _ : state) {
    sampling::GumbelNoise(1, position++, 0, absl::MakeSpan(noise));
    benchmark::DoNotOptimize(noise.data());
  }
}
BENCHMARK(BM_GumbelNoise)->Arg(4096)->Arg(32768)->Arg(131072)->Unit(benchmark::kMicrosecond);

void BM_PerturbedArgMax(benchmark::State& state) {
  const Row row = MakeRow(state.range(0));
  for (auto _ : state) {
    benchmark::DoNotOptimize(sampling::PerturbedArgMax(row.logits, row.noise, 1.0f, 0));
  }
}
BENCHMARK(BM_PerturbedArgMax)->Arg(4096)->Arg(32768)->Arg(131072)->Unit(benchmark::kMicrosecond);

void BM_PerturbedTopK(benchmark::State& state) {
  const Row row = MakeRow(131072);
  const int k = static_cast<int>(state.range(0));
  for (auto _ : state)
    benchmark::DoNotOptimize(sampling::PerturbedTopK(row.logits, row.noise, 1.0f, k));
}
BENCHMARK(BM_PerturbedTopK)->Arg(1)->Arg(4)->Arg(64)->Unit(benchmark::kMicrosecond);

void BM_SampleRow(benchmark::State& state, base::SamplingParams sampling) {
  const Row row = MakeRow(131072);
  for (auto _ : state)
    benchmark::DoNotOptimize(sampling::SampleRow(row.logits, row.noise, sampling));
}
BENCHMARK_CAPTURE(BM_SampleRow, top_k, base::SamplingParams{.top_k = 50})
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(BM_SampleRow, top_p, base::SamplingParams{.top_p = 0.9f})
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(BM_SampleRow, top_k_top_p, base::SamplingParams{.top_k = 50, .top_p = 0.9f})
    ->Unit(benchmark::kMicrosecond);

void BM_MakeDraftProbs(benchmark::State& state) {
  const Row row = MakeRow(131072);
  std::vector<uint16_t> draft_probs(row.logits.size());
  for (auto _ : state) {
    sampling::MakeDraftProbs(row.logits, {}, static_cast<int>(state.range(0)),
                             absl::MakeSpan(draft_probs));
    benchmark::DoNotOptimize(draft_probs.data());
  }
}
BENCHMARK(BM_MakeDraftProbs)->ArgName("top_n")->Arg(0)->Arg(256)->Unit(benchmark::kMicrosecond);

void BM_DrawWithoutReplacement(benchmark::State& state) {
  const Row row = MakeRow(131072);
  std::vector<uint16_t> draft_probs(row.logits.size());
  sampling::MakeDraftProbs(row.logits, {}, 0, absl::MakeSpan(draft_probs));
  uint32_t draw = 0;
  for (auto _ : state) {
    const sampling::DrawSite site = {.purpose = sampling::Purpose::kDraft, .draw = draw++};
    benchmark::DoNotOptimize(
        sampling::DrawWithoutReplacement(draft_probs, static_cast<int>(state.range(0)), 1, site));
  }
}
BENCHMARK(BM_DrawWithoutReplacement)
    ->ArgName("siblings")
    ->Arg(1)
    ->Arg(4)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace specfabric::speculation
