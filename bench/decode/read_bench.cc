// How fast memory is read: the bound on plain decoding, which reads every weight once a token.
//
//   read_bench BYTES THREADS
//
// Prints gigabytes a second, the median of some passes over that much memory, each thread over a
// part of its own.

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/types/span.h"
#include "base/clock.h"
#include "base/isa.h"
#include "bench/plain_read.h"
#include "model/cpu/aligned_buffer.h"

namespace specfabric::bench {
namespace {

constexpr int kPasses = 9;

std::atomic<float> sink{0};

double Pass(absl::Span<const float> values, int threads) {
  const size_t part = values.size() / threads;
  const base::Nanos begin = base::Now();
  std::vector<std::thread> readers;
  for (int t = 0; t < threads; ++t) {
    readers.emplace_back(
        [&, t] { sink.store(PlainRead(base::BestIsa(), values.subspan(t * part, part))); });
  }
  for (std::thread& reader : readers) reader.join();
  const auto bytes = static_cast<double>(part * threads * sizeof(float));
  return bytes / base::ToSeconds(base::Now() - begin) / 1e9;
}

int Run(size_t bytes, int threads) {
  absl::StatusOr<model::AlignedBuffer> memory = model::AlignedBuffer::Create(bytes);
  if (!memory.ok()) {
    std::fprintf(stderr, "read_bench: %s\n", memory.status().ToString().c_str());
    return 1;
  }
  std::memset(memory->data(), 1, bytes);
  const absl::Span<const float> values(static_cast<const float*>(memory->data()),
                                       bytes / sizeof(float));
  std::vector<double> rates;
  for (int pass = 0; pass < kPasses; ++pass) rates.push_back(Pass(values, threads));
  std::nth_element(rates.begin(), rates.begin() + kPasses / 2, rates.end());
  std::printf("%.3f\n", rates[kPasses / 2]);
  return 0;
}

}  // namespace
}  // namespace specfabric::bench

int main(int argc, char** argv) {
  const long long bytes = argc == 3 ? std::atoll(argv[1]) : 0;
  const int threads = argc == 3 ? std::atoi(argv[2]) : 0;
  if (bytes < 4096 || threads < 1 || threads > 1024) {
    std::fprintf(stderr, "usage: read_bench BYTES THREADS; at least 4096, and 1 to 1024\n");
    return 2;
  }
  return specfabric::bench::Run(static_cast<size_t>(bytes), threads);
}
