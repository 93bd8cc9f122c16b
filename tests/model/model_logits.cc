// Prints log-probabilities of a checkpoint for given token ids, one row a line: what a comparison
// with another implementation needs. Not a test by itself.
//
//   model_logits --model DIR --ids 1,2,3 [--dtype bfloat16] [--reference] [--ranks 2] [--chunk 4]

#include <gflags/gflags.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "tests/model/group.h"

DEFINE_string(model, "", "checkpoint folder");
DEFINE_string(ids, "", "comma-separated token ids");
DEFINE_string(dtype, "float32", "float32 or bfloat16");
DEFINE_bool(reference, false, "libtorch's plain operations instead of the packed kernels");
DEFINE_int32(ranks, 1, "tensor-parallel ranks");
DEFINE_int32(chunk, 0, "rows of a forward pass; 0: all at once");

namespace specfabric::model {
namespace {

void PrintLogProbabilities(const std::vector<float>& logits) {
  const float max = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (float logit : logits) sum += std::exp(double{logit} - max);
  const double log_sum = max + std::log(sum);
  for (float logit : logits) std::printf("%.9g ", logit - log_sum);
  std::printf("\n");
}

absl::Status Run() {
  absl::StatusOr<DataType> dtype = ParseDataType(FLAGS_dtype);
  if (!dtype.ok()) return dtype.status();
  std::vector<int32_t> ids;
  for (absl::string_view text : absl::StrSplit(FLAGS_ids, ',')) {
    if (!absl::SimpleAtoi(text, &ids.emplace_back())) {
      return absl::InvalidArgumentError("--ids: not a list of integers");
    }
  }
  RankOptions options;
  options.dtype = *dtype;
  options.reference = FLAGS_reference;
  options.kv_blocks = static_cast<int32_t>(ids.size()) / options.block_size + 1;
  absl::StatusOr<TestGroup> group = TestGroup::Load(FLAGS_model, options, FLAGS_ranks);
  if (!group.ok()) return group.status();

  std::vector<int32_t> blocks(options.kv_blocks);
  std::iota(blocks.rbegin(), blocks.rend(), 0);
  const size_t chunk = FLAGS_chunk > 0 ? FLAGS_chunk : ids.size();
  for (size_t done = 0; done < ids.size(); done += chunk) {
    Batch batch;
    AddChain(&batch, {ids.begin() + done, ids.begin() + std::min(ids.size(), done + chunk)},
             static_cast<int32_t>(done), blocks);
    absl::StatusOr<LogitRows> rows = group->Forward(batch);
    if (!rows.ok()) return rows.status();
    for (const std::vector<float>& row : *rows) PrintLogProbabilities(row);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace specfabric::model

int main(int argc, char** argv) {
  gflags::ParseCommandLineFlags(&argc, &argv, /*remove_flags=*/true);
  const absl::Status status = specfabric::model::Run();
  if (!status.ok()) {
    std::fprintf(stderr, "model_logits: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
