// One forward pass of an 11 M-parameter model on one rank with one thread. Arguments: rows of a
// tree or chain, tokens already in the cache.

#include <benchmark/benchmark.h>

#include <memory>

#include "bench/model/bench_model.h"
#include "model/rank_model.h"
#include "tests/model/checkpoint_writer.h"

namespace specfabric::model {
namespace {

void BM_Forward(benchmark::State& state, DataType dtype) {
  const int rows = static_cast<int>(state.range(0)), kv_len = static_cast<int>(state.range(1));
  const TempDir dir;
  WriteCheckpoint(dir.path(), BenchConfig(), /*seed=*/1);
  const auto communicators = MakeThreadCommunicators(1);
  RankOptions options;
  options.dtype = dtype;
  options.kv_blocks = (rows + kv_len) / options.block_size + 1;
  absl::StatusOr<std::unique_ptr<RankModel>> model =
      RankModel::Load(dir.path(), options, communicators[0].get());
  if (!model.ok()) return state.SkipWithError(std::string(model.status().message()).c_str());

  const Batch batch = ChainOf(rows, kv_len, options.kv_blocks);
  for (auto _ : state) {
    absl::StatusOr<LogitShard> logits = (*model)->Forward(batch);
    if (!logits.ok()) state.SkipWithError("Forward failed");
    benchmark::DoNotOptimize(logits->data);
  }
  state.SetItemsProcessed(state.iterations() * rows);
}

void Shapes(benchmark::internal::Benchmark* bench) {
  for (int rows : {1, 2, 4, 6, 8, 16, 32, 64}) bench->Args({rows, 200});
  bench->Args({1, 2000})->Args({32, 2000})->Args({512, 0});
}
BENCHMARK_CAPTURE(BM_Forward, float32, DataType::kFloat32)->Apply(Shapes);
BENCHMARK_CAPTURE(BM_Forward, bfloat16, DataType::kBFloat16)->Apply(Shapes);

}  // namespace
}  // namespace specfabric::model
