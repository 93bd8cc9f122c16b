// The host's side of loading a model: what a checkpoint in the page cache is read, converted and
// hashed at, without a GPU. A thread fills two buffers in turn, as model/cuda/weight_upload.h does.
//
//   loading_bench --model=DIR [--threads=8]

#include <gflags/gflags.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "model/checkpoint/safetensors.h"
#include "model/checkpoint/stored_rows.h"

DEFINE_string(model, "models/target", "checkpoint folder");
DEFINE_int32(threads, 0, "0: as many as loading uses");

namespace specfabric::model {
namespace {

constexpr int64_t kPieceBytes = int64_t{2} << 20;
constexpr int kBuffers = 4;

struct Piece {
  const StoredRows* rows;
  int32_t first, count;
};

int Threads() { return FLAGS_threads > 0 ? FLAGS_threads : ReadingThreads(); }

// All matrices of the checkpoint.
std::vector<StoredRows> Matrices(const Checkpoint& checkpoint) {
  std::vector<StoredRows> matrices;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (tensor->shape.size() != 2 || tensor->type == StoredType::kOther) continue;
    const auto rows = static_cast<int32_t>(tensor->shape[0]);
    const auto columns = static_cast<int32_t>(tensor->shape[1]);
    matrices.emplace_back(columns).Add({tensor, columns, 0, rows, 0});
  }
  return matrices;
}

void ReadPieces(const std::vector<Piece>& pieces, base::DataType type, std::atomic<size_t>* next) {
  int64_t largest = kPieceBytes;
  for (const auto& [rows, first, count] : pieces) {
    largest = std::max(largest, int64_t{count} * rows->inputs() * base::Bytes(type));
  }
  std::vector<std::vector<std::byte>> buffers(kBuffers, std::vector<std::byte>(largest));
  int buffer = 0;
  for (size_t i = (*next)++; i < pieces.size(); i = (*next)++) {
    const auto& [rows, first, count] = pieces[i];
    buffer = (buffer + 1) % kBuffers;
    rows->ReadAhead(first, count);
    rows->Read(first, count, type, buffers[buffer].data());
  }
}

void Report(const std::string& what, int64_t bytes, const std::function<void()>& work) {
  const base::Nanos begun = base::Now();
  work();
  const double seconds = base::ToSeconds(base::Now() - begun);
  std::printf("%-24s %.2f GB in %.3f s: %.2f GB/s\n", what.c_str(), bytes / 1e9, seconds,
              bytes / 1e9 / seconds);
}

int Run() {
  // Opened anew each time: a mapping whose pages are there already is read faster.
  for (const base::DataType type : {base::DataType::kBFloat16, base::DataType::kFloat32}) {
    const auto checkpoint = Checkpoint::Open(FLAGS_model);
    if (!checkpoint.ok()) {
      std::fprintf(stderr, "%s\n", checkpoint.status().ToString().c_str());
      return 1;
    }
    const std::vector<StoredRows> matrices = Matrices(*checkpoint);
    std::vector<Piece> pieces;
    int64_t bytes = 0;
    for (const StoredRows& rows : matrices) {
      const int64_t row_bytes = int64_t{rows.inputs()} * base::Bytes(type);
      const auto most =
          static_cast<int32_t>(std::clamp<int64_t>(kPieceBytes / row_bytes, 1, 1 << 20));
      for (int32_t first = 0; first < rows.rows(); first += most) {
        pieces.push_back({&rows, first, std::min(most, rows.rows() - first)});
      }
      bytes += rows.rows() * row_bytes;
    }
    Report(std::string("read to ") + base::Name(type), bytes, [&] {
      std::atomic<size_t> next = 0;
      std::vector<std::thread> threads;
      for (int i = 0; i < Threads(); ++i) {
        threads.emplace_back([&] { ReadPieces(pieces, type, &next); });
      }
      for (std::thread& thread : threads) thread.join();
    });
  }
  const auto checkpoint = Checkpoint::Open(FLAGS_model);
  if (!checkpoint.ok()) return 1;
  int64_t bytes = 0;
  for (const auto& [name, tensor] : checkpoint->tensors()) bytes += tensor->bytes;
  Report("hash", bytes, [&] { std::printf("%016lx ", checkpoint->ContentHash(Threads())); });
  return 0;
}

}  // namespace
}  // namespace specfabric::model

int main(int argc, char** argv) {
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  return specfabric::model::Run();
}
