// The packed linear layer against sums in double precision, and the promises about its bits.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "model/checkpoint/float16.h"
#include "model/cpu/packed_linear.h"
#include "model/reference/linear.h"

namespace specfabric::model {
namespace {

std::vector<const cpu::Kernels*> SupportedKernels() {
  std::vector<const cpu::Kernels*> supported;
  for (const cpu::Kernels* const* k = cpu::AllKernels(); *k != nullptr; ++k) {
    if ((*k)->supported()) supported.push_back(*k);
  }
  return supported;
}

std::vector<float> Normal(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// Weights [outputs][inputs] with a way to read a rectangle of them.
struct Matrix {
  Matrix(int outputs, int inputs, uint32_t seed)
      : outputs(outputs), inputs(inputs), values(Normal(size_t(outputs) * inputs, seed)) {}
  WeightReader Reader(int first_output = 0, int first_input = 0, int count = -1) const {
    if (count < 0) count = inputs;
    return [this, first_output, first_input, count](int32_t output, float* weights) {
      const float* row = &values[size_t(first_output + output) * inputs + first_input];
      std::copy(row, row + count, weights);
    };
  }
  int outputs, inputs;
  std::vector<float> values;
};

std::unique_ptr<Linear> Pack(const LinearShape& shape, DataType dtype, const WeightReader& read,
                             ThreadPool* pool, const cpu::Kernels& kernels = cpu::BestKernels()) {
  auto linear = cpu::PackedLinear::Create(shape, dtype, read, kernels, pool);
  EXPECT_TRUE(linear.ok()) << linear.status();
  return linear.ok() ? *std::move(linear) : nullptr;
}

std::vector<float> Apply(Linear& linear, const std::vector<float>& x, int rows, int outputs) {
  std::vector<float> y(size_t(rows) * outputs, NAN);
  EXPECT_TRUE(linear.Forward(x.data(), rows, y.data()).ok());
  return y;
}

float Stored(float x, DataType dtype) {
  return dtype == DataType::kFloat32 ? x : WidenBFloat16(RoundToBFloat16(x));
}

// What a row of parts adds up to, as a binary tree.
float SumOfParts(std::vector<float> parts) {
  for (; parts.size() > 1; parts.resize(parts.size() / 2)) {
    for (size_t i = 0; i < parts.size() / 2; ++i) parts[i] = parts[2 * i] + parts[2 * i + 1];
  }
  return parts[0];
}

constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kBFloat16};

struct ShapeCase {
  int rows, inputs, outputs, parts;
};
// Odd part lengths, panels that are not full, every number of rows that a pass can have and more.
std::vector<ShapeCase> Shapes() {
  std::vector<ShapeCase> shapes = {{1, 1, 1, 1},   {2, 2, 16, 2},   {3, 24, 63, 8},
                                   {5, 72, 65, 4}, {7, 148, 72, 4}, {40, 130, 200, 2}};
  for (int rows = 1; rows <= 14; ++rows) shapes.push_back({rows, 150, 101, 2});
  // Several chunks of a panel, the last of them short, and more rows than one call takes.
  for (int rows : {6, 13, 25, 66}) shapes.push_back({rows, 600, 130, 2});
  return shapes;
}

TEST(PackedLinearTest, AgreesWithDoubleSums) {
  ThreadPool pool(1);
  for (const cpu::Kernels* kernels : SupportedKernels()) {
    for (DataType dtype : kTypes) {
      for (const ShapeCase& s : Shapes()) {
        const Matrix w(s.outputs, s.inputs, 1);
        const std::vector<float> x = Normal(size_t(s.rows) * s.inputs, 2);
        const auto linear =
            Pack({s.outputs, s.inputs, s.parts}, dtype, w.Reader(), &pool, *kernels);
        const std::vector<float> y = Apply(*linear, x, s.rows, s.outputs);
        for (int r = 0; r < s.rows; ++r) {
          for (int o = 0; o < s.outputs; ++o) {
            double sum = 0.0, size = 0.0;
            for (int i = 0; i < s.inputs; ++i) {
              const double term = double{Stored(w.values[size_t(o) * s.inputs + i], dtype)} *
                                  Stored(x[size_t(r) * s.inputs + i], dtype);
              sum += term;
              size += std::abs(term);
            }
            // Rounding errors of s.inputs additions, each relative to at most `size`.
            ASSERT_NEAR(y[size_t(r) * s.outputs + o], sum, size * 6e-8 * (s.inputs + 4))
                << kernels->name << " " << Name(dtype) << " rows " << s.rows << " inputs "
                << s.inputs << " row " << r << " output " << o;
          }
        }
      }
    }
  }
}

using SumOfPart = float (*)(const float* x, const float* w, int inputs);

// Of every row and output: the parts, each as `sum_of_part` adds it, then a binary tree.
std::vector<float> Definition(const ShapeCase& s, const Matrix& w, const std::vector<float>& x,
                              SumOfPart sum_of_part) {
  std::vector<float> sums;
  const int part_inputs = s.inputs / s.parts;
  for (int r = 0; r < s.rows; ++r) {
    for (int o = 0; o < s.outputs; ++o) {
      std::vector<float> parts(s.parts);
      for (int p = 0; p < s.parts; ++p) {
        parts[p] = sum_of_part(&x[size_t(r) * s.inputs + p * part_inputs],
                               &w.values[size_t(o) * s.inputs + p * part_inputs], part_inputs);
      }
      sums.push_back(SumOfParts(std::move(parts)));
    }
  }
  return sums;
}

float SumInOrder(const float* x, const float* w, int inputs) {
  float sum = 0;
  for (int i = 0; i < inputs; ++i) sum = std::fma(x[i], w[i], sum);
  return sum;
}

// The definition of the sums: parts input by input with fused multiply-add, then a binary tree.
TEST(PackedLinearTest, Float32BitsAreTheDefinitionOnEveryInstructionSet) {
  ThreadPool pool(1);
  for (const ShapeCase& s : Shapes()) {
    const Matrix w(s.outputs, s.inputs, 3);
    const std::vector<float> x = Normal(size_t(s.rows) * s.inputs, 4);
    const std::vector<float> want = Definition(s, w, x, SumInOrder);
    for (const cpu::Kernels* kernels : SupportedKernels()) {
      const auto linear =
          Pack({s.outputs, s.inputs, s.parts}, DataType::kFloat32, w.Reader(), &pool, *kernels);
      ASSERT_EQ(Apply(*linear, x, s.rows, s.outputs), want) << kernels->name << " rows " << s.rows;
    }
  }
}

// The order of AMX: within 32 inputs even ones and odd ones apart.
float SumOfTiles(const float* x, const float* w, int inputs) {
  float sum = 0;
  for (int first = 0; first < inputs; first += 32) {
    float even = 0, odd = 0;
    for (int i = first; i < std::min(first + 32, inputs); ++i) {
      float& half = i % 2 == 0 ? even : odd;
      half = std::fma(Stored(x[i], DataType::kBFloat16), Stored(w[i], DataType::kBFloat16), half);
    }
    sum += even + odd;
  }
  return sum;
}

TEST(PackedLinearTest, BFloat16BitsOfTilesAreTheirDefinition) {
  ThreadPool pool(1);
  const auto kernels = SupportedKernels();
  const auto amx = std::find_if(kernels.begin(), kernels.end(), [](auto* k) { return k->tiles; });
  if (amx == kernels.end()) GTEST_SKIP() << "this machine has no AMX";
  std::vector<ShapeCase> shapes = Shapes();
  // Inputs that L2 does not keep: panels take turns on them, the last of them fewer panels.
  shapes.push_back({20, 28000, 200, 2});
  shapes.push_back({40, 14000, 200, 2});
  for (const ShapeCase& s : shapes) {
    const Matrix w(s.outputs, s.inputs, 5);
    const std::vector<float> x = Normal(size_t(s.rows) * s.inputs, 6);
    const std::vector<float> want = Definition(s, w, x, SumOfTiles);
    const auto linear =
        Pack({s.outputs, s.inputs, s.parts}, DataType::kBFloat16, w.Reader(), &pool, **amx);
    ASSERT_EQ(Apply(*linear, x, s.rows, s.outputs), want) << "rows " << s.rows;
  }
}

// No denormals occur here, which are all that tells the instruction from its emulation.
TEST(PackedLinearTest, BFloat16BitsAreEqualOnEveryInstructionSetWithoutTiles) {
  ThreadPool pool(1);
  for (const ShapeCase& s : Shapes()) {
    const Matrix w(s.outputs, s.inputs, 5);
    const std::vector<float> x = Normal(size_t(s.rows) * s.inputs, 6);
    std::vector<float> want;
    for (const cpu::Kernels* kernels : SupportedKernels()) {
      if (kernels->tiles) continue;
      const auto linear =
          Pack({s.outputs, s.inputs, s.parts}, DataType::kBFloat16, w.Reader(), &pool, *kernels);
      const std::vector<float> y = Apply(*linear, x, s.rows, s.outputs);
      if (want.empty()) want = y;
      ASSERT_EQ(y, want) << kernels->name << " rows " << s.rows;
    }
  }
}

TEST(PackedLinearTest, RowBitsDoNotDependOnTheOtherRows) {
  constexpr int kInputs = 602, kOutputs = 130, kRows = 29;  // parts of odd length, too
  ThreadPool pool(1);
  const Matrix w(kOutputs, kInputs, 7);
  const std::vector<float> x = Normal(kRows * kInputs, 8);
  for (const cpu::Kernels* kernels : SupportedKernels()) {
    for (DataType dtype : kTypes) {
      const auto linear = Pack({kOutputs, kInputs, 2}, dtype, w.Reader(), &pool, *kernels);
      std::vector<float> alone;
      for (int r = 0; r < kRows; ++r) {
        const std::vector<float> y =
            Apply(*linear, {x.begin() + r * kInputs, x.begin() + (r + 1) * kInputs}, 1, kOutputs);
        alone.insert(alone.end(), y.begin(), y.end());
      }
      for (int first = 0; first < kRows; first += 3) {
        for (int rows = 1; first + rows <= kRows; ++rows) {
          const std::vector<float> y =
              Apply(*linear, {x.begin() + first * kInputs, x.begin() + (first + rows) * kInputs},
                    rows, kOutputs);
          ASSERT_EQ(y, std::vector<float>(alone.begin() + first * kOutputs,
                                          alone.begin() + (first + rows) * kOutputs))
              << kernels->name << " " << Name(dtype) << " rows " << first << " + " << rows;
        }
      }
    }
  }
}

// Passes of a single block fetch ahead or not, in turns until the quicker way is known.
TEST(PackedLinearTest, HowWeightsAreFetchedChangesNoBit) {
  ThreadPool pool(1);
  for (const cpu::Kernels* kernels : SupportedKernels()) {
    for (DataType dtype : kTypes) {
      const int block_rows =
          dtype == DataType::kFloat32 ? kernels->block_rows_float32 : kernels->block_rows_bfloat16;
      for (int rows = 1; rows <= block_rows; ++rows) {
        const Matrix w(130, 600, 11);
        const std::vector<float> x = Normal(size_t(rows) * w.inputs, 12);
        const auto linear = Pack({w.outputs, w.inputs, 2}, dtype, w.Reader(), &pool, *kernels);
        const std::vector<float> first = Apply(*linear, x, rows, w.outputs);
        for (int pass = 0; pass < 40; ++pass) {
          ASSERT_EQ(Apply(*linear, x, rows, w.outputs), first) << kernels->name << " " << rows;
        }
      }
    }
  }
}

TEST(FetchTrialTest, TheQuickerWayStays) {
  for (const bool fetching_is_quicker : {false, true}) {
    cpu::FetchTrial trial;
    int passes = 0, fetching = 0;
    for (; !trial.settled(); ++passes) {
      fetching += trial.fetches();
      // All but one pass of each way are held up by something else.
      const base::Nanos held_up = passes == 6 || passes == 11 ? 0 : 1000 * (1 + passes % 5);
      trial.Observe(held_up + (trial.fetches() == fetching_is_quicker ? 90 : 100));
    }
    EXPECT_EQ(2 * fetching, passes);
    EXPECT_EQ(trial.fetches(), fetching_is_quicker);
  }
}

// Outputs split over ranks, inputs split over ranks in parts: the same bits as on one.
TEST(PackedLinearTest, BitsDoNotDependOnSharding) {
  constexpr int kInputs = 8 * 19, kOutputs = 150, kRows = 9, kParts = 8;
  ThreadPool pool(1);
  const Matrix w(kOutputs, kInputs, 9);
  const std::vector<float> x = Normal(kRows * kInputs, 10);
  for (DataType dtype : kTypes) {
    const auto whole = Pack({kOutputs, kInputs, kParts}, dtype, w.Reader(), &pool);
    const std::vector<float> want = Apply(*whole, x, kRows, kOutputs);
    for (int ranks : {2, 4, 8}) {
      const int inputs = kInputs / ranks;
      std::vector<std::vector<float>> sums;
      for (int rank = 0; rank < ranks; ++rank) {
        std::vector<float> shard;
        for (int r = 0; r < kRows; ++r) {
          const auto from = x.begin() + r * kInputs + rank * inputs;
          shard.insert(shard.end(), from, from + inputs);
        }
        const auto linear = Pack({kOutputs, inputs, kParts / ranks}, dtype,
                                 w.Reader(0, rank * inputs, inputs), &pool);
        sums.push_back(Apply(*linear, shard, kRows, kOutputs));
      }
      for (; sums.size() > 1; sums.resize(sums.size() / 2)) {
        for (size_t i = 0; i < sums.size() / 2; ++i) {
          for (size_t j = 0; j < want.size(); ++j) {
            sums[i][j] = sums[2 * i][j] + sums[2 * i + 1][j];
          }
        }
      }
      EXPECT_EQ(sums[0], want) << Name(dtype) << " inputs over " << ranks;
    }
    const auto one_part = Pack({kOutputs, kInputs, 1}, dtype, w.Reader(), &pool);
    const std::vector<float> columns = Apply(*one_part, x, kRows, kOutputs);
    for (const auto& [first, count] : {std::pair{0, 37}, std::pair{37, 113}, std::pair{149, 1}}) {
      const auto linear = Pack({count, kInputs, 1}, dtype, w.Reader(first), &pool);
      const std::vector<float> y = Apply(*linear, x, kRows, count);
      for (int r = 0; r < kRows; ++r) {
        for (int o = 0; o < count; ++o) {
          ASSERT_EQ(y[r * count + o], columns[r * kOutputs + first + o]);
        }
      }
    }
  }
}

TEST(PackedLinearTest, ThreadsChangeNothing) {
  constexpr int kInputs = 70, kOutputs = 1000, kRows = 5;
  const Matrix w(kOutputs, kInputs, 11);
  const std::vector<float> x = Normal(kRows * kInputs, 12);
  ThreadPool one(1), three(3);
  for (DataType dtype : kTypes) {
    const auto a = Pack({kOutputs, kInputs, 1}, dtype, w.Reader(), &one);
    const auto b = Pack({kOutputs, kInputs, 1}, dtype, w.Reader(), &three);
    for (int i = 0; i < 50; ++i) {
      ASSERT_EQ(Apply(*a, x, kRows, kOutputs), Apply(*b, x, kRows, kOutputs));
    }
  }
}

TEST(PackedLinearTest, FusedGatesHaveTheBitsOfGatesApart) {
  constexpr int kInputs = 150, kFeatures = 192, kOutputs = 70;
  ThreadPool pool(2);
  const Matrix w(2 * kFeatures, kInputs, 15), v(kOutputs, kFeatures, 17);
  for (const cpu::Kernels* kernels : SupportedKernels()) {
    for (DataType dtype : kTypes) {
      const auto gate_up = Pack({.outputs = 2 * kFeatures, .inputs = kInputs, .gated = true}, dtype,
                                w.Reader(), &pool, *kernels);
      const auto down = Pack({kOutputs, kFeatures, 2}, dtype, v.Reader(), &pool, *kernels);
      ASSERT_TRUE(down->FusesGates(*gate_up));
      for (int rows : {1, 7, 30, 64, 65, 130}) {
        const std::vector<float> x = Normal(size_t(rows) * kInputs, 16);
        const std::vector<float> apart = Apply(*gate_up, x, rows, 2 * kFeatures);
        std::vector<float> gated(size_t(rows) * kFeatures);
        for (int r = 0; r < rows; ++r) {
          const float* gate = &apart[size_t(r) * 2 * kFeatures];
          kernels->silu_multiply(gate, gate + kFeatures, kFeatures, &gated[size_t(r) * kFeatures]);
        }
        std::vector<float> fused(size_t(rows) * kOutputs, NAN);
        ASSERT_TRUE(down->ForwardGated(gate_up.get(), x.data(), rows, fused.data()).ok());
        ASSERT_EQ(fused, Apply(*down, gated, rows, kOutputs))
            << kernels->name << " " << Name(dtype) << " rows " << rows;
      }
    }
  }
}

TEST(PackedLinearTest, FusesOnlyWherePanelsAreOfGatesOrUpsAloneAndOfOnePart) {
  ThreadPool pool(1);
  const auto make = [&](int outputs, int inputs, int parts, bool gated) {
    const Matrix w(outputs, inputs, 18);
    return Pack({outputs, inputs, parts, gated}, DataType::kBFloat16, w.Reader(), &pool);
  };
  const auto down = make(40, 96, 1, false);
  EXPECT_TRUE(down->FusesGates(*make(2 * 96, 20, 1, true)));
  EXPECT_FALSE(down->FusesGates(*make(2 * 96, 20, 1, false)));
  EXPECT_FALSE(down->FusesGates(*make(2 * 64, 20, 1, true)));
  EXPECT_FALSE(make(40, 80, 1, false)->FusesGates(*make(2 * 80, 20, 1, true)));
  EXPECT_FALSE(make(40, 96, 2, false)->FusesGates(*make(2 * 96, 20, 1, true)));
}

TEST(PackedLinearTest, AgreesWithLibtorch) {
  if (!reference::IsBuilt()) GTEST_SKIP() << "built without libtorch";
  constexpr int kInputs = 150, kOutputs = 101, kRows = 6;
  ThreadPool pool(1);
  reference::SetThreads(1);
  const Matrix w(kOutputs, kInputs, 13);
  const std::vector<float> x = Normal(kRows * kInputs, 14);
  for (DataType dtype : kTypes) {
    const auto packed = Pack({kOutputs, kInputs, 2}, dtype, w.Reader(), &pool);
    auto torch =
        reference::MakeLinear({kOutputs, kInputs, 2}, dtype, /*batch_invariant=*/true, w.Reader());
    ASSERT_TRUE(torch.ok()) << torch.status();
    const std::vector<float> a = Apply(*packed, x, kRows, kOutputs);
    const std::vector<float> b = Apply(**torch, x, kRows, kOutputs);
    for (size_t i = 0; i < a.size(); ++i) {
      // libtorch rounds a bfloat16 result to eight bits.
      ASSERT_NEAR(a[i], b[i], dtype == DataType::kFloat32 ? 1e-4 : 1e-4 + std::abs(a[i]) / 256.0);
    }
  }
}

}  // namespace
}  // namespace specfabric::model
