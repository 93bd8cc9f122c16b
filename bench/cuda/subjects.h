#ifndef SPECFABRIC_BENCH_CUDA_SUBJECTS_H_
#define SPECFABRIC_BENCH_CUDA_SUBJECTS_H_

// The kernels that kernel_bench times, with the device memory that they work on.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/cuda/device.h"
#include "base/cuda/memory.h"

namespace specfabric::bench {

struct BenchShape {
  int32_t vocabulary = 0;
  int32_t rows = 0;       // of logits, for arg-max and draft draws
  int32_t sequences = 0;  // for attention and verification
  int32_t nodes = 0;      // of each sequence: a chain of draft tokens
  int32_t context = 0;    // tokens of each sequence
  int32_t heads = 0, kv_heads = 0, head_dim = 0;
  base::Nanos trials = 0;  // how long kernels of matrix products may be tried
};

struct Subject {
  std::string name;
  double bytes = 0;  // that the kernel must read or write at least
  std::function<void()> enqueue;
  std::vector<float> ms = {};
};

std::vector<Subject> AttentionSubjects(const base::cuda::Device& device, const BenchShape& shape);
std::vector<Subject> ProductSubjects(const base::cuda::Device& device, const BenchShape& shape);
std::vector<Subject> ChoiceSubjects(const base::cuda::Device& device, const BenchShape& shape);
std::vector<Subject> VerificationSubjects(const base::cuda::Device& device,
                                          const BenchShape& shape);
std::vector<Subject> DraftSubjects(const base::cuda::Device& device, const BenchShape& shape);

// Exits on an error.
inline void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "kernel_bench: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}
inline void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "kernel_bench: %s\n", cudaGetErrorString(error));
  std::exit(1);
}
template <typename T>
T OrDie(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

// Device memory that lives as long as its subject.
class Arena {
 public:
  template <typename T>
  T* New(size_t count) {
    kept_.push_back(OrDie(base::cuda::DeviceBuffer::Create(count * sizeof(T))));
    return kept_.back().As<T>();
  }
  template <typename T>
  T* New(const std::vector<T>& values) {
    T* const place = New<T>(values.size());
    Check(cudaMemcpy(place, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return place;
  }

 private:
  std::vector<base::cuda::DeviceBuffer> kept_;
};

}  // namespace specfabric::bench

#endif  // SPECFABRIC_BENCH_CUDA_SUBJECTS_H_
