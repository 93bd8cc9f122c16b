#ifndef SPECFABRIC_MODEL_CUDA_DEVICE_H_
#define SPECFABRIC_MODEL_CUDA_DEVICE_H_

// One rank's GPU: its stream and its matrix products. Owned by the rank's thread; a rank's thread
// may change between calls, so each begins with MakeCurrent.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/checkpoint/config.h"
#include "model/cuda/memory.h"
#include "model/cuda/stream.h"

struct cublasContext;

namespace specfabric::model::cuda {

// Outputs of a linear layer on the device: [outputs][inputs].
struct Matrix {
  int32_t outputs = 0, inputs = 0;
  std::shared_ptr<DeviceBuffer> weights;  // shared where an embedding is also the head
};

// Rows that a matrix product of a batch-invariant device takes at once; buffers of rows that one
// reads or writes have room for whole multiples of it.
constexpr int32_t kInvariantRows = 64;
constexpr int32_t PaddedRows(int32_t rows) {
  return (rows + kInvariantRows - 1) / kInvariantRows * kInvariantRows;
}

class Device {
 public:
  // FailedPrecondition: there is no such GPU; the message says how many there are. Of a rank: the
  // rank's number among the GPUs that the process sees (CUDA_VISIBLE_DEVICES).
  static absl::StatusOr<std::unique_ptr<Device>> Open(int32_t ordinal, bool batch_invariant);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  absl::Status MakeCurrent() const;
  int32_t ordinal() const { return ordinal_; }
  Stream stream() const { return stream_; }
  const std::string& name() const { return name_; }
  // Waits for all that was enqueued; its errors come out here.
  absl::Status Finish() const;

  // Enqueues a copy; host memory is pinned and stays as it is until Finish.
  absl::Status ToDevice(const void* host, size_t bytes, void* device) const;
  absl::Status ToHost(const void* device, size_t bytes, void* host) const;
  // Enqueues: `bytes` of device memory become zeros.
  absl::Status Clear(void* memory, size_t bytes) const;
  // Enqueues a copy from device memory to other device memory.
  absl::Status Copy(const void* from, size_t bytes, void* to) const;

  // out[row] = matrix x[row]. x: [rows][inputs] of `type`, out: [rows][outputs] float32; sums are
  // float32, without TensorFloat-32. A batch-invariant device computes kInvariantRows rows at a
  // time, always, with one kernel, so that a row's bits do not depend on the others; weights are
  // then read once for so many rows, and the rows up to the multiple are computed in vain.
  absl::Status Multiply(DataType type, const Matrix& matrix, const void* x, int32_t rows,
                        float* out) const;

 private:
  Device(int32_t ordinal, bool batch_invariant)
      : ordinal_(ordinal), batch_invariant_(batch_invariant) {}
  absl::Status Start();

  const int32_t ordinal_;
  const bool batch_invariant_;
  std::string name_;
  Stream stream_ = nullptr;
  cublasContext* blas_ = nullptr;
  DeviceBuffer blas_workspace_;
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_DEVICE_H_
