// One forward pass of an 11 M-parameter model on one rank, on two tensor-parallel ranks and on two
// pipeline stages, each rank with one thread; passes in turns, medians of their times and of the
// ratios to one rank's. Stages that work on micro-batches at once take less than the one rank;
// those that take turns, as with few rows, take as long.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "bench/model/bench_model.h"
#include "model/rank_model.h"
#include "tests/model/checkpoint_writer.h"

namespace specfabric::model {
namespace {

constexpr int kRounds = 15;

class Group {
 public:
  Group(const std::string& dir, const GroupShape& shape, int blocks)
      : communicators_(MakeThreadCommunicators(shape.ranks())), models_(shape.ranks()) {
    RankOptions options;
    options.kv_blocks = blocks;
    options.pipeline_stages = shape.stages;
    OnEveryRank([&](int rank) {
      auto model = RankModel::Load(dir, options, communicators_[rank].get());
      if (model.ok())
        models_[rank] = *std::move(model);
      else
        std::fprintf(stderr, "%s\n", std::string(model.status().message()).c_str());
    });
  }

  // In milliseconds.
  double TimePass(const Batch& batch) {
    const auto start = std::chrono::steady_clock::now();
    OnEveryRank([&](int rank) {
      if (!models_[rank]->Forward(batch).ok()) std::fprintf(stderr, "Forward failed\n");
    });
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
  }

 private:
  template <typename Body>
  void OnEveryRank(const Body& body) {
    std::vector<std::thread> threads;
    for (size_t rank = 1; rank < models_.size(); ++rank) threads.emplace_back(body, rank);
    body(0);
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<std::unique_ptr<RankModel>> models_;
};

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void Run() {
  constexpr int kMostRows = 1024;
  const TempDir dir;
  WriteCheckpoint(dir.path(), BenchConfig(), /*seed=*/1);
  const int blocks = kMostRows / RankOptions().block_size + 1;
  Group one(dir.path(), {1, 1}, blocks), tensor(dir.path(), {2, 1}, blocks),
      stages(dir.path(), {1, 2}, blocks);
  std::printf("%6s %12s %14s %14s %10s %10s\n", "rows", "one rank ms", "two ranks ms",
              "two stages ms", "ranks", "stages");
  for (const int rows : {1, 16, 64, 128, 256, 512, kMostRows}) {
    Batch batch = ChainOf(rows, 0, blocks);
    batch.logit_rows = {rows - 1};
    std::vector<double> alone, two, staged, two_ratio, staged_ratio;
    for (int round = 0; round < kRounds; ++round) {
      alone.push_back(one.TimePass(batch));
      two.push_back(tensor.TimePass(batch));
      staged.push_back(stages.TimePass(batch));
      two_ratio.push_back(two.back() / alone.back());
      staged_ratio.push_back(staged.back() / alone.back());
    }
    std::printf("%6d %12.2f %14.2f %14.2f %10.2f %10.2f\n", rows, Median(alone), Median(two),
                Median(staged), Median(two_ratio), Median(staged_ratio));
  }
}

}  // namespace
}  // namespace specfabric::model

int main() { specfabric::model::Run(); }
