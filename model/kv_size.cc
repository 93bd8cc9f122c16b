#include "model/kv_size.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace specfabric::model {
namespace {

std::string Gib(double bytes) { return absl::StrFormat("%.2f GiB", bytes / (int64_t{1} << 30)); }

}  // namespace

absl::StatusOr<int32_t> KvBlocksFor(const KvSizing& sizing, const GpuMemory& memory,
                                    int64_t block_bytes) {
  const auto total = static_cast<double>(memory.total);
  const double used = total - static_cast<double>(memory.free);
  const double left =
      sizing.memory_fraction * total - used - static_cast<double>(sizing.reserved_bytes);
  const double allowed = std::max(left, 0.0) * sizing.share;
  const double blocks = allowed / static_cast<double>(block_bytes);
  if (blocks < sizing.least) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no room for the KV cache: ", Gib(used), " of the GPU's ", Gib(total),
        " are in use, --gpu_memory_fraction=", sizing.memory_fraction, " leaves it ", Gib(allowed),
        ", and one whole context takes ", Gib(static_cast<double>(block_bytes) * sizing.least),
        "; lower --max_context, set --kv_blocks, raise the fraction, or lower that of another "
        "process on this GPU"));
  }
  return static_cast<int32_t>(std::min<double>(blocks, sizing.most));
}

}  // namespace specfabric::model
