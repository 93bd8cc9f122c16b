#include "bench/scheduler/modelled_h200.h"

#include <cstdio>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace specfabric::scheduler {
namespace {

using base::kMicrosecond;
using base::Nanos;

const std::vector<PassTime> kPass8B = {{1, 4580 * kMicrosecond},    {8, 4620 * kMicrosecond},
                                       {16, 5080 * kMicrosecond},   {32, 5210 * kMicrosecond},
                                       {64, 6030 * kMicrosecond},   {128, 7570 * kMicrosecond},
                                       {256, 13000 * kMicrosecond}, {512, 25600 * kMicrosecond}};
const std::vector<PassTime> kPass1B = {{1, 980 * kMicrosecond},    {8, 1040 * kMicrosecond},
                                       {16, 1160 * kMicrosecond},  {32, 1280 * kMicrosecond},
                                       {64, 1580 * kMicrosecond},  {128, 2100 * kMicrosecond},
                                       {256, 3090 * kMicrosecond}, {512, 6190 * kMicrosecond}};
// Its head took 255 us (docs/gpu.md, Launch check). 55 to 280 us pass between two passes.
constexpr Nanos kHead8B = 255 * kMicrosecond, kBetweenSteps = 100 * kMicrosecond;
// Bytes: a layer's weights, and a square of the hidden size; the head, of 128,256 tokens.
constexpr double kLayerBytes = 436e6, kSquareBytes = 2.0 * kHidden8B * kHidden8B;
constexpr double kHeadBytes = 1051e6, kWeights1B = 2.47e9, kKvToken1B = 32 * 1024;
constexpr double kBytesPerSecond = 4.3e12;  // that a copy reads, for the KV of a context

// Drafters of the target's width have not run on a GPU yet: their passes are those of the target,
// by the bytes of weights that they read of its layers and its head. `fixed`: besides.
std::vector<PassTime> PassesOf(double layer_bytes, double head_bytes, Nanos fixed) {
  std::vector<PassTime> passes;
  for (const PassTime& pass : kPass8B) {
    const double layers = static_cast<double>(pass.time - kHead8B) / kLayers8B;
    const double time = layers * layer_bytes / kLayerBytes + kHead8B * head_bytes / kHeadBytes;
    passes.push_back({pass.rows, fixed + static_cast<Nanos>(time)});
  }
  return passes;
}

}  // namespace

StepCost StepOf8B() {
  return {.fixed = kBetweenSteps,
          .context_ns = 1e9 * kKvToken8B / kBytesPerSecond,
          .measured = kPass8B};
}

std::vector<double> Numbers(const char* flag, const std::string& text, double least, double most) {
  std::vector<double> numbers;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    double number = 0;
    if (!absl::SimpleAtod(part, &number) || number < least || number > most) {
      std::fprintf(stderr, "--%s=%s: allowed are numbers from %g to %g, separated by commas\n",
                   flag, text.c_str(), least, most);
      std::exit(2);
    }
    numbers.push_back(number);
  }
  return numbers;
}

std::vector<MeasuredDrafter> MeasuredDrafters(int32_t block_layers) {
  // One layer whose q, k and v read twice the width (50 MB more), the projection of three states,
  // and a head of 32,000 tokens.
  const double eagle_layers = kLayerBytes + 50.4e6 + 3 * kSquareBytes;
  const double eagle_head = 2.0 * 32'000 * kHidden8B;
  // Layers as the target's, the projection of five states, and the target's head. Each of a block's
  // seven tokens then takes a correction by the one before it (rank 256) and an arg-max, which took
  // 23 us (docs/benchmarks.md).
  const double block_bytes = block_layers * kLayerBytes + 5 * kSquareBytes;
  const double correction = kHead8B * (2.0 * 256 * 128'256) / kHeadBytes;
  const Nanos block_tokens = 7 * (static_cast<Nanos>(correction) + 23 * kMicrosecond);
  const double kv_layer = kKvToken8B / kLayers8B;
  return {{DrafterKind::kModel, kPass1B, 0, kWeights1B, kKvToken1B},
          {DrafterKind::kPard, kPass1B, 0, kWeights1B, kKvToken1B},
          {DrafterKind::kEagle3, PassesOf(eagle_layers, eagle_head, 0), 3,
           eagle_layers + eagle_head, kv_layer},
          {DrafterKind::kDspark, PassesOf(block_bytes, kHeadBytes, block_tokens), 5, block_bytes,
           kv_layer * block_layers}};
}

}  // namespace specfabric::scheduler
