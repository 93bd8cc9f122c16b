#ifndef SPECFABRIC_MODEL_CUDA_WEIGHT_UPLOAD_H_
#define SPECFABRIC_MODEL_CUDA_WEIGHT_UPLOAD_H_

// Copies matrices from the mapped files of a checkpoint to the device: a few threads read pieces of
// some MiB straight into pinned memory, converted to the device's type on the way, and the device
// copies one piece of each thread while the next is read. No whole matrix is held on the host: the
// files' pages belong to the page cache, which all processes of a machine share.

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda/device.h"
#include "base/data_type.h"
#include "model/checkpoint/stored_rows.h"
#include "model/cuda/linear.h"
#include "model/linear.h"

namespace specfabric::model::cuda {

// Rows of a layer's matrix on the device, and which of its rows in the checkpoint is row `row`
// there. Gates and ups lie side by side (product.h); -1: zeros, of no feature.
inline int32_t DeviceRows(const LinearShape& shape) {
  return shape.gated ? GatedOutputs(shape.outputs / 2) : shape.outputs;
}
inline int32_t CheckpointRow(const LinearShape& shape, int32_t row) {
  if (!shape.gated) return row;
  const int32_t features = shape.outputs / 2;
  const int32_t feature = row / (2 * kGatedRows) * kGatedRows + row % kGatedRows;
  if (feature >= features) return -1;
  return row % (2 * kGatedRows) < kGatedRows ? feature : features + feature;
}

class WeightUpload {
 public:
  // Elements become `type`. The device must outlive it.
  WeightUpload(const base::cuda::Device* device, base::DataType type)
      : device_(device), type_(type) {}

  // Allocates a matrix, which Run fills: [rows][inputs], not packed. ResourceExhausted: it does not
  // fit.
  absl::StatusOr<Matrix> Add(const LinearShape& shape, const StoredRows& rows);
  // Copies all that was added, and logs progress every few seconds. Blocks until it is there; the
  // checkpoint must be open. Once.
  absl::Status Run();

 private:
  struct Source {
    LinearShape shape;
    StoredRows rows;
    std::byte* to;  // on the device
  };
  // Consecutive rows of the device's matrix.
  struct Piece {
    const Source* source;
    int32_t first, count;
    int64_t bytes;
  };
  void CutIntoPieces();
  absl::Status CopyPieces();
  void Fill(const Piece& piece, std::byte* buffer) const;
  void LogProgress(double seconds, bool done) const;

  const base::cuda::Device* const device_;
  const base::DataType type_;
  std::vector<Source> sources_;
  std::vector<Piece> pieces_;
  int64_t bytes_ = 0;  // of all pieces
  std::atomic<size_t> next_ = 0;
  std::atomic<int64_t> copied_ = 0;
  std::atomic<bool> failed_ = false;
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_WEIGHT_UPLOAD_H_
