#include "model/cuda/product_choice.h"

#include <algorithm>
#include <map>
#include <string>
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
      const std::vector<ProductChoice> candidates = CandidatesFor(rows, inputs, true);
      EXPECT_EQ(candidates.front(), RuleOfThumb(rows, inputs));
      EXPECT_TRUE(candidates.back().blas);
      for (const ProductChoice& candidate : candidates) {
        EXPECT_TRUE(candidate.blas || Takes(candidate.kernel, rows, inputs));
        EXPECT_EQ(std::count(candidates.begin(), candidates.end(), candidate), 1);
      }
      EXPECT_FALSE(CandidatesFor(rows, inputs, false).back().blas);
    }
  }
}

// Times and faults by name; a candidate that is not named takes 100 us and is right.
struct Faults {
  std::map<std::string, float> microseconds;
  std::vector<std::string> wrong;

  absl::StatusOr<ProductWinner> Fastest(int32_t rows, bool blas = false) const {
    return FastestOf(CandidatesFor(rows, 64, blas),
                     {.same = [&](const ProductChoice& choice) -> absl::StatusOr<bool> {
                        return std::count(wrong.begin(), wrong.end(), Name(choice)) == 0;
                      },
                      .microseconds = [&](const ProductChoice& choice) -> absl::StatusOr<float> {
                        const auto found = microseconds.find(Name(choice));
                        return found == microseconds.end() ? 100.0f : found->second;
                      }});
  }
};

TEST(FastestTest, IsTheRuleOfThumbUnlessAnotherIsClearlyFaster) {
  const auto by_rule = Faults{.microseconds = {{"tile64", 99}}, .wrong = {}}.Fastest(8);
  ASSERT_TRUE(by_rule.ok());
  EXPECT_EQ(Name(by_rule->choice), "rows8");
  EXPECT_EQ(by_rule->microseconds, 100);
  const auto faster = Faults{.microseconds = {{"tile64", 90}}, .wrong = {}}.Fastest(8);
  ASSERT_TRUE(faster.ok());
  EXPECT_EQ(Name(faster->choice), "tile64");
}

TEST(FastestTest, IsNeverOneWithOtherBits) {
  const auto found =
      Faults{.microseconds = {{"tile64", 10}, {"tile32 unsplit", 50}}, .wrong = {"tile64"}}.Fastest(
          8);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(Name(found->choice), "tile32 unsplit");
  ASSERT_EQ(found->wrong.size(), 1u);
  EXPECT_EQ(Name(found->wrong[0]), "tile64");
}

TEST(FastestTest, MayBeCublasWithOtherBitsWhereThatIsAllowed) {
  const Faults faults = {.microseconds = {{"cublas", 10}}, .wrong = {"cublas"}};
  ASSERT_TRUE(faults.Fastest(64, true).ok());
  EXPECT_EQ(Name(faults.Fastest(64, true)->choice), "cublas");
  EXPECT_EQ(Name(faults.Fastest(64, false)->choice), "tile64");
}

TEST(FastestTest, PassesTheDevicesErrorOn) {
  const auto fails = FastestOf(
      CandidatesFor(8, 64, false),
      {.same = [](const ProductChoice&) -> absl::StatusOr<bool> {
         return absl::InternalError("a launch");
       },
       .microseconds = [](const ProductChoice&) -> absl::StatusOr<float> { return 1.0f; }});
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
  const auto run = [&](const ProductChoice& choice, const ProductArgs& args) {
    absl::Status status = device_->Clear(args.out, sizeof(float) * 40 * 3);
    if (!choice.split) {  // stands for a kernel that is wrong
      status.Update(device_->Copy(args.x, sizeof(float), static_cast<float*>(args.out) + 119));
    }
    return status;
  };
  EXPECT_EQ(timer->Same({.split = true}, run).value(), true);
  EXPECT_EQ(timer->Same({.split = true}, run).value(), true);
  EXPECT_EQ(timer->Same({.split = false}, run).value(), false);
  EXPECT_GT(timer->Time({.split = true}, run).value(), 0);
}

TEST_F(ProductTimerTest, HasRoomForNoResultsOfHundredsOfMegabytes) {
  auto timer = ProductTimer::Create(device_.get());
  ASSERT_TRUE(timer.ok()) << timer.status();
  const absl::Status status = timer->Prepare({.outputs = 1 << 20, .inputs = 8, .rows = 512});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

// Whatever was chosen, a product is the same.
TEST_F(ProductTimerTest, ChosenProductsAreThoseOfTheRuleOfThumb) {
  const int32_t outputs = 48, inputs = 64, rows = 20;
  std::vector<uint16_t> values(size_t(outputs) * inputs);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint16_t>(0x3f00 + i % 97);
  auto buffer = base::cuda::DeviceBuffer::Create(values.size() * sizeof(uint16_t));
  ASSERT_TRUE(buffer.ok());
  ASSERT_TRUE(device_->ToDevice(values.data(), buffer->bytes(), buffer->As<void>()).ok());
  ASSERT_TRUE(device_->Finish().ok());
  const Matrix matrix = {outputs, inputs,
                         std::make_shared<base::cuda::DeviceBuffer>(*std::move(buffer))};
  std::vector<std::vector<float>> results;
  for (const bool tried : {false, true}) {
    auto products = MatrixProducts::Create(device_.get(), /*batch_invariant=*/true);
    ASSERT_TRUE(products.ok()) << products.status();
    const Matrix* const matrices[] = {&matrix, &matrix};
    const base::Nanos budget = tried ? base::kSecond / 10 : 0;
    ASSERT_TRUE((*products)->Choose(matrices, budget).ok());
    base::cuda::DeviceArray<float> out(size_t(rows) * outputs);
    ASSERT_TRUE((*products)
                    ->Multiply(base::DataType::kBFloat16, matrix, matrix.weights->As<void>(), rows,
                               out.data())
                    .ok());
    results.push_back(out.Read());
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace specfabric::model::cuda
