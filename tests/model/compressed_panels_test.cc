// Compressed weights are the weights: word by word through a reader of their layout, and bit by bit
// through the kernels that decode them.

#include "model/cpu/compressed_panels.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "model/checkpoint/float16.h"
#include "model/cpu/packed_linear.h"

namespace specfabric::model::cpu {
namespace {

constexpr int kWords = 2 * kPanelOutputs;  // of a step

// Normal, and one in `every` so small that its exponent is rare.
std::vector<uint16_t> Weights(size_t count, int every, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> words(count);
  for (uint16_t& word : words) {
    const float scale = random() % every == 0 ? std::ldexp(1.0f, -20 - random() % 40) : 1.0f;
    word = RoundToBFloat16(scale * normal(random));
  }
  return words;
}

// The weights of a panel, as the layout in kernels.h says.
std::vector<uint16_t> Decode(const CompressedPanels& panels, int panel, int parts, int steps) {
  PanelArgs args;
  panels.Fill(panel, &args);
  const auto* bytes = static_cast<const uint8_t*>(args.weights);
  const uint8_t* highs = bytes;
  bytes += kTableBytes;
  const int32_t* verbatim_steps = args.verbatim_steps;
  const auto* verbatim = static_cast<const uint16_t*>(args.verbatim);
  std::vector<uint16_t> words;
  for (int step = 0; step < parts * steps; ++step) {
    const int in_part = step % steps;
    const uint8_t* group =
        bytes + (step / steps * ((steps + 1) / 2) + in_part / 2) * size_t{kGroupBytes};
    if (*verbatim_steps == step) {
      words.insert(words.end(), verbatim, verbatim + kWords);
      verbatim += kWords;
      ++verbatim_steps;
      continue;
    }
    for (int w = 0; w < kWords; ++w) {
      const int place = w % 32 / 8 * 16 + w / 32 * 8 + w % 8;
      const int codes = group[2 * kWords + place];
      const int code = in_part % 2 == 0 ? codes & 15 : codes >> 4;
      words.push_back(
          static_cast<uint16_t>(highs[code] << 8 | group[in_part % 2 * kWords + place]));
    }
  }
  EXPECT_EQ(*verbatim_steps, kNoStep);
  return words;
}

TEST(CompressedPanelsTest, EveryWordComesBack) {
  ThreadPool pool(2);
  constexpr int kPanels = 3;
  int64_t verbatim_steps = 0;
  for (const auto& [parts, steps] : {std::pair{1, 1}, {1, 40}, {2, 75}, {8, 33}}) {
    const size_t panel_words = size_t{kWords} * parts * steps;
    std::vector<uint16_t> raw = Weights(kPanels * panel_words, 64 * 50, 3);
    // Zeros of both signs, a denormal, both infinities and a NaN.
    const uint16_t odd[] = {0x0000, 0x8000, 0x0001, 0x7F80, 0xFF80, 0x7FC1};
    for (size_t i = 0; i < std::size(odd) && steps > 1; ++i) raw[panel_words + i * 7] = odd[i];
    const auto panels = CompressedPanels::Compress(raw.data(), kPanels, parts, steps, &pool);
    ASSERT_TRUE(panels.ok()) << panels.status();
    ASSERT_TRUE(panels->has_value()) << parts << " " << steps;
    for (int p = 0; p < kPanels; ++p) {
      const std::vector<uint16_t> want(raw.begin() + p * panel_words,
                                       raw.begin() + (p + 1) * panel_words);
      EXPECT_EQ(Decode(**panels, p, parts, steps), want) << parts << " " << steps << " " << p;
    }
    verbatim_steps += (*panels)->verbatim_steps();
  }
  EXPECT_GT(verbatim_steps, 0);
}

TEST(CompressedPanelsTest, TakesThreeQuartersOfTheBytes) {
  ThreadPool pool(1);
  constexpr int kSteps = 1024;
  const std::vector<uint16_t> raw = Weights(size_t{kWords} * kSteps, 1 << 30, 4);
  const auto panels = CompressedPanels::Compress(raw.data(), 1, 1, kSteps, &pool);
  ASSERT_TRUE(panels.ok() && panels->has_value());
  EXPECT_LT((*panels)->bytes(), raw.size() * sizeof(uint16_t) * 77 / 100);
}

TEST(CompressedPanelsTest, LeavesWhatHasTooManyExponents) {
  ThreadPool pool(1);
  constexpr int kSteps = 64;
  const std::vector<uint16_t> raw = Weights(size_t{kWords} * kSteps, 20, 5);
  const auto panels = CompressedPanels::Compress(raw.data(), 1, 1, kSteps, &pool);
  ASSERT_TRUE(panels.ok()) << panels.status();
  EXPECT_FALSE(panels->has_value());
}

// Every number of rows of a single block, several blocks, more rows than a call takes; parts of odd
// length, a panel that is not full, several chunks, steps that are kept as they are.
TEST(CompressedPanelsTest, LinearLayersHaveTheBitsOfPlainWeights) {
  ThreadPool pool(1);
  for (const Kernels* const* k = AllKernels(); *k != nullptr; ++k) {
    if (!(*k)->supported() || (*k)->panels_compressed == nullptr) continue;
    Kernels plain = **k;
    plain.panels_compressed = nullptr;
    for (const auto& [outputs, inputs, parts] :
         {std::array{70, 150, 2}, {130, 602, 2}, {64, 1200, 1}}) {
      const std::vector<uint16_t> words = Weights(size_t(outputs) * inputs, 64 * 60, 6);
      const WeightReader read = [&](int32_t output, float* weights) {
        for (int i = 0; i < inputs; ++i) weights[i] = WidenBFloat16(words[output * inputs + i]);
      };
      const LinearShape shape = {outputs, inputs, parts};
      auto fast = PackedLinear::Create(shape, DataType::kBFloat16, read, **k, &pool);
      auto slow = PackedLinear::Create(shape, DataType::kBFloat16, read, plain, &pool);
      ASSERT_TRUE(fast.ok() && slow.ok());
      std::mt19937 random(7);
      std::normal_distribution<float> normal;
      for (int rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 25, 37, 66}) {
        std::vector<float> x(size_t(rows) * inputs), got(size_t(rows) * outputs), want = got;
        for (float& value : x) value = normal(random);
        for (int pass = 0; pass < 3; ++pass) {  // fetching ahead and not
          ASSERT_TRUE((*fast)->Forward(x.data(), rows, got.data()).ok());
          ASSERT_TRUE((*slow)->Forward(x.data(), rows, want.data()).ok());
          ASSERT_EQ(got, want) << (*k)->name << " rows " << rows << " inputs " << inputs;
        }
      }
    }
  }
}

}  // namespace
}  // namespace specfabric::model::cpu
