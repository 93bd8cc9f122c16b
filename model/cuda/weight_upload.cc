#include "model/cuda/weight_upload.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/cuda/memory.h"
#include "base/cuda/staged_copies.h"
#include "spdlog/spdlog.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::DeviceBuffer;
using base::cuda::StagedCopies;

// Large enough that a copy takes longer than its call, small enough that the buffers of a thread
// stay in its cache.
constexpr int64_t kPieceBytes = int64_t{2} << 20;
constexpr int kBuffers = 4;
constexpr auto kLogInterval = std::chrono::seconds(3);
constexpr double kGigabyte = 1e9;

}  // namespace

absl::StatusOr<Matrix> WeightUpload::Add(const LinearShape& shape, const StoredRows& rows) {
  const int32_t outputs = DeviceRows(shape);
  // Those that are multiplied are packed once they are there.
  const auto elements = base::Bytes(type_) == sizeof(uint16_t)
                            ? static_cast<size_t>(PackedElements(outputs, shape.inputs))
                            : size_t(outputs) * shape.inputs;
  const size_t bytes = elements * base::Bytes(type_);
  absl::StatusOr<DeviceBuffer> memory = DeviceBuffer::Create(bytes);
  if (!memory.ok()) return memory.status();
  Matrix matrix = {outputs, shape.inputs, std::make_shared<MatrixWeights>()};
  matrix.weights->memory = *std::move(memory);
  sources_.push_back({shape, rows, matrix.weights->memory.As<std::byte>()});
  return matrix;
}

void WeightUpload::CutIntoPieces() {
  for (const Source& source : sources_) {
    const int64_t row_bytes = int64_t{source.shape.inputs} * base::Bytes(type_);
    const auto most = static_cast<int32_t>(std::max<int64_t>(kPieceBytes / row_bytes, 1));
    const int32_t outputs = DeviceRows(source.shape);
    for (int32_t first = 0; first < outputs; first += most) {
      const int32_t count = std::min(most, outputs - first);
      pieces_.push_back({&source, first, count, count * row_bytes});
      bytes_ += count * row_bytes;
    }
  }
}

// Rows that follow each other in the checkpoint are read at once.
void WeightUpload::Fill(const Piece& piece, std::byte* buffer) const {
  const auto& [shape, rows, to] = *piece.source;
  const int64_t row_bytes = int64_t{shape.inputs} * base::Bytes(type_);
  const int32_t end = piece.first + piece.count;
  for (int32_t row = piece.first; row < end;) {
    const int32_t stored = CheckpointRow(shape, row);
    if (stored < 0) {
      std::memset(buffer, 0, static_cast<size_t>(row_bytes));
      buffer += row_bytes;
      ++row;
      continue;
    }
    int32_t run = 1;
    while (row + run < end && CheckpointRow(shape, row + run) == stored + run) ++run;
    rows.ReadAhead(stored, run);
    rows.Read(stored, run, type_, buffer);
    buffer += run * row_bytes;
    row += run;
  }
}

absl::Status WeightUpload::CopyPieces() {
  int64_t largest = kPieceBytes;
  for (const Piece& piece : pieces_) largest = std::max(largest, piece.bytes);
  absl::StatusOr<StagedCopies> copies = StagedCopies::Create(*device_, largest, kBuffers);
  if (!copies.ok()) return copies.status();
  for (size_t i = next_++; i < pieces_.size() && !failed_; i = next_++) {
    const Piece& piece = pieces_[i];
    const absl::StatusOr<std::byte*> buffer = copies->Next();
    if (!buffer.ok()) return buffer.status();
    Fill(piece, *buffer);
    std::byte* const to = piece.source->to + int64_t{piece.first} * piece.bytes / piece.count;
    if (absl::Status copied = copies->Copy(piece.bytes, to); !copied.ok()) return copied;
    copied_ += piece.bytes;
  }
  return copies->Finish();
}

void WeightUpload::LogProgress(double seconds, bool done) const {
  const double copied = static_cast<double>(copied_.load()) / kGigabyte;
  spdlog::info("GPU {}: {} {:.2f} of {:.2f} GB of weights, {:.2f} GB/s", device_->ordinal(),
               done ? "loaded" : "loading", copied, static_cast<double>(bytes_) / kGigabyte,
               seconds > 0 ? copied / seconds : 0.0);
}

absl::Status WeightUpload::Run() {
  CutIntoPieces();
  const base::Nanos begun = base::Now();
  const auto seconds = [&] { return base::ToSeconds(base::Now() - begun); };
  std::mutex mutex;
  std::condition_variable changed;
  absl::Status status;  // guarded, as is the next
  int running = std::min<int>(ReadingThreads(), static_cast<int>(pieces_.size()));
  std::vector<std::thread> threads;
  for (int i = running; i > 0; --i) {
    threads.emplace_back([&] {
      const absl::Status copied = CopyPieces();
      if (!copied.ok()) failed_ = true;
      const std::lock_guard lock(mutex);
      status.Update(copied);
      --running;
      changed.notify_all();
    });
  }
  {
    std::unique_lock lock(mutex);
    while (!changed.wait_for(lock, kLogInterval, [&] { return running == 0; })) {
      LogProgress(seconds(), /*done=*/false);
    }
  }
  for (std::thread& thread : threads) thread.join();
  if (status.ok()) LogProgress(seconds(), /*done=*/true);
  return status;
}

}  // namespace specfabric::model::cuda
