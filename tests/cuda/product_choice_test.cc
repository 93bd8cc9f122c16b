#include "model/cuda/product_choice.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/cuda/linear.h"
#include "model/cuda/product_timer.h"
#include "tests/cuda/device.h"
#include "tests/cuda/open_device.h"

namespace specfabric::model::cuda {
namespace {

TEST(RowClassTest, HoldsItsRows) {
  EXPECT_EQ(RowClassOf(1), 0u);
  EXPECT_EQ(RowClassOf(8), 0u);
  EXPECT_EQ(RowClassOf(9), 1u);
  EXPECT_EQ(RowClassOf(512), kRowClasses.size() - 1);
  EXPECT_EQ(RowClassOf(100'000), kRowClasses.size() - 1);
}

TEST(CandidatesTest, AllTakeTheRowsAndTheRuleOfThumbIsFirst) {
  for (const int32_t rows : {1, 8, 9, 16, 17, 64, 65, 512}) {
    for (const int32_t inputs : {64, 63}) {
      const std::vector<ProductKernel> candidates = CandidatesFor(rows, inputs);
      EXPECT_EQ(candidates.front(), RuleOfThumb(rows, inputs));
      for (const ProductKernel candidate : candidates) {
        EXPECT_TRUE(Takes(candidate, rows, inputs));
        EXPECT_EQ(std::count(candidates.begin(), candidates.end(), candidate), 1);
      }
    }
  }
}

// Times and faults by name; a candidate that is not named takes 100 us and is right.
struct Faults {
  std::map<std::string, float> microseconds;
  std::vector<std::string> wrong;

  absl::StatusOr<ProductWinner> Fastest(int32_t rows) const {
    return FastestOf(CandidatesFor(rows, 64),
                     {.same = [&](ProductKernel kernel) -> absl::StatusOr<bool> {
                        return std::count(wrong.begin(), wrong.end(), std::string(Name(kernel))) ==
                               0;
                      },
                      .microseconds = [&](ProductKernel kernel) -> absl::StatusOr<float> {
                        const auto found = microseconds.find(Name(kernel));
                        return found == microseconds.end() ? 100.0f : found->second;
                      }});
  }
};

TEST(FastestTest, IsTheRuleOfThumbUnlessAnotherIsClearlyFaster) {
  const auto by_rule = Faults{.microseconds = {{"rows32", 99}}, .wrong = {}}.Fastest(8);
  ASSERT_TRUE(by_rule.ok());
  EXPECT_EQ(by_rule->kernel, ProductKernel::kRows8);
  EXPECT_EQ(by_rule->microseconds, 100);
  const auto faster = Faults{.microseconds = {{"rows32", 90}}, .wrong = {}}.Fastest(8);
  ASSERT_TRUE(faster.ok());
  EXPECT_EQ(faster->kernel, ProductKernel::kRows32);
}

TEST(FastestTest, IsNeverOneWithOtherBits) {
  const auto found =
      Faults{.microseconds = {{"rows32", 10}, {"rows16", 50}}, .wrong = {"rows32"}}.Fastest(8);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->kernel, ProductKernel::kRows16);
  ASSERT_EQ(found->wrong.size(), 1u);
  EXPECT_EQ(found->wrong[0], ProductKernel::kRows32);
}

TEST(FastestTest, PassesTheDevicesErrorOn) {
  const auto fails =
      FastestOf(CandidatesFor(8, 64),
                {.same = [](ProductKernel) -> absl::StatusOr<bool> {
                   return absl::InternalError("a launch");
                 },
                 .microseconds = [](ProductKernel) -> absl::StatusOr<float> { return 1.0f; }});
  EXPECT_EQ(fails.status().message(), "a launch");
}

class ProductTimerTest : public base::cuda::OpenDeviceTest {};

TEST_F(ProductTimerTest, SeesOneOtherBit) {
  auto timer = ProductTimer::Create(device_.get());
  ASSERT_TRUE(timer.ok()) << timer.status();
  auto buffer = base::cuda::DeviceBuffer::Create(sizeof(uint16_t) * 40 * 64);
  ASSERT_TRUE(buffer.ok());
  ASSERT_TRUE(device_->Clear(buffer->As<void>(), buffer->bytes()).ok());
  ASSERT_TRUE(
      timer->Prepare({.weights = buffer->As<void>(), .outputs = 40, .inputs = 64, .rows = 3}).ok());
  bool wrong = false;  // stands for a kernel that is
  const auto run = [&](const ProductArgs& args) {
    absl::Status status = device_->Clear(args.out, sizeof(float) * 40 * 3);
    if (wrong) {
      status.Update(device_->Copy(args.x, sizeof(float), static_cast<float*>(args.out) + 119));
    }
    return status;
  };
  EXPECT_EQ(timer->Same(run).value(), true);
  EXPECT_EQ(timer->Same(run).value(), true);
  wrong = true;
  EXPECT_EQ(timer->Same(run).value(), false);
  EXPECT_GT(timer->Time(run).value(), 0);
}

TEST_F(ProductTimerTest, HasRoomForNoResultsOfHundredsOfMegabytes) {
  auto timer = ProductTimer::Create(device_.get());
  ASSERT_TRUE(timer.ok()) << timer.status();
  const absl::Status status = timer->Prepare({.outputs = 1 << 20, .inputs = 8, .rows = 512});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

// Whatever was chosen, a product is the same; cuBLAS's has other bits.
TEST_F(ProductTimerTest, ChosenProductsAreThoseOfTheRuleOfThumb) {
  const int32_t outputs = 48, inputs = 64, rows = 20;
  std::vector<uint16_t> values(size_t(outputs) * inputs);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint16_t>(0x3f00 + i % 97);
  base::cuda::DeviceArray<uint16_t> x(values);
  std::vector<std::vector<float>> results;
  for (const auto& [tried, batch_invariant] :
       {std::pair{false, true}, std::pair{true, true}, std::pair{true, false}}) {
    const Matrix matrix = {outputs, inputs, std::make_shared<MatrixWeights>()};
    auto memory = base::cuda::DeviceBuffer::Create(values.size() * sizeof(values[0]));
    ASSERT_TRUE(memory.ok());
    matrix.weights->memory = *std::move(memory);
    ASSERT_TRUE(device_
                    ->ToDevice(values.data(), matrix.weights->memory.bytes(),
                               matrix.weights->memory.As<void>())
                    .ok());
    auto products = MatrixProducts::Create(device_.get(), batch_invariant);
    ASSERT_TRUE(products.ok()) << products.status();
    const Matrix* const matrices[] = {&matrix, &matrix};
    const base::Nanos budget = tried ? base::kSecond / 10 : 0;
    ASSERT_TRUE((*products)->Prepare(matrices, budget).ok());
    EXPECT_TRUE(matrix.weights->packed || !batch_invariant);
    base::cuda::DeviceArray<float> out(size_t(rows) * outputs);
    ASSERT_TRUE(
        (*products)->Multiply(base::DataType::kBFloat16, matrix, x.data(), rows, out.data()).ok());
    results.push_back(out.Read());
  }
  EXPECT_EQ(results[0], results[1]);
  for (size_t i = 0; i < results[0].size(); ++i) {
    ASSERT_NEAR(results[0][i], results[2][i], 1e-3 * std::abs(results[0][i])) << i;
  }
}

}  // namespace
}  // namespace specfabric::model::cuda
