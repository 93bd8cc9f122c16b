// Queries, keys and values are placed with the same bits by wide loads and by the kernel for heads
// of every size.

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "model/cuda/paged_attention.h"
#include "tests/cuda/device.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::DeviceArray;
using base::cuda::DeviceTest;

struct Form {
  DataType type = DataType::kBFloat16;
  int32_t head_dim = 64, heads = 4, kv_heads = 2, rows = 3;
  bool bias = false, norm = false, rounded = false;
};

constexpr uint32_t kUntouched = 0x7fc07fc0;  // NaNs

// What a kernel writes: the queries, the keys and the values, in words.
using Written = std::vector<std::vector<uint32_t>>;

class PlaceTest : public DeviceTest {
 protected:
  std::vector<float> Draw(size_t count) {
    std::normal_distribution<float> normal(0, 1);
    std::vector<float> values(count);
    for (float& value : values) value = normal(rng_);
    return values;
  }

  std::mt19937 rng_{1};
};

// Slots are in reverse order of the rows, every third of which writes none.
std::vector<RowView> Views(int32_t rows) {
  std::vector<RowView> views(rows);
  for (int32_t row = 0; row < rows; ++row) {
    views[row].write_slot = row % 3 == 1 ? -1 : rows - 1 - row;
  }
  return views;
}

TEST_F(PlaceTest, WideLoadsChangeNoBit) {
  const std::vector<Form> forms = {
      {.head_dim = 64, .rounded = true},
      {.head_dim = 64, .heads = 7, .kv_heads = 1, .rows = 1, .bias = true, .norm = true},
      {.head_dim = 128, .heads = 6, .kv_heads = 3, .rows = 5, .norm = true, .rounded = true},
      {.head_dim = 128, .rows = 70, .bias = true, .rounded = true},
      {.head_dim = 256, .rows = 2, .bias = true, .norm = true},
      {.type = DataType::kFloat32, .head_dim = 64, .rows = 9, .norm = true},
      {.type = DataType::kFloat32, .head_dim = 128, .bias = true}};
  for (const Form& form : forms) {
    const size_t d = form.head_dim, all = form.heads + 2 * form.kv_heads;
    const size_t words = form.type == DataType::kFloat32 ? 1 : 2;  // elements of one
    const size_t cached = form.rows * form.kv_heads * d / words;
    DeviceArray<float> qkv(Draw(form.rows * all * d)), bias(Draw(all * d));
    DeviceArray<float> query_norm(Draw(d)), key_norm(Draw(d));
    DeviceArray<float> cosines(Draw(form.rows * d / 2)), sines(Draw(form.rows * d / 2));
    DeviceArray<RowView> views(Views(form.rows));
    const auto placed = [&](auto enqueue) {
      DeviceArray<uint32_t> queries(std::vector<uint32_t>(form.rows * form.heads * d, kUntouched));
      DeviceArray<uint32_t> keys(std::vector<uint32_t>(cached, kUntouched));
      DeviceArray<uint32_t> values(std::vector<uint32_t>(cached, kUntouched));
      const PlaceArgs args = {.cache = {.type = form.type,
                                        .heads = form.heads,
                                        .kv_heads = form.kv_heads,
                                        .head_dim = form.head_dim,
                                        .keys = keys.data(),
                                        .values = values.data()},
                              .rows = form.rows,
                              .qkv = qkv.data(),
                              .bias = form.bias ? bias.data() : nullptr,
                              .query_norm = form.norm ? query_norm.data() : nullptr,
                              .key_norm = form.norm ? key_norm.data() : nullptr,
                              .epsilon = 1e-5f,
                              .scale = 0.3f,
                              .cosines = cosines.data(),
                              .sines = sines.data(),
                              .views = views.data(),
                              .queries = reinterpret_cast<float*>(queries.data()),
                              .rounded_queries = form.rounded ? queries.data() : nullptr};
      EXPECT_EQ(enqueue(args, nullptr), absl::OkStatus());
      return Written{queries.Read(), keys.Read(), values.Read()};
    };
    const Written wide = placed(EnqueuePlace), plain = placed(EnqueuePlaceReference);
    EXPECT_EQ(wide, plain) << "head size " << d << ", " << form.rows << " rows";
    const auto untouched = std::count(wide[1].begin(), wide[1].end(), kUntouched);
    EXPECT_LT(untouched, static_cast<int64_t>(cached)) << "no key was written";
  }
}

}  // namespace
}  // namespace specfabric::model::cuda
