#include "model/checkpoint/stored_rows.h"

#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "model/checkpoint/float16.h"

namespace specfabric::model {
namespace {

using base::DataType;

// A matrix as a file holds it, at an odd address.
class Stored {
 public:
  Stored(StoredType type, int32_t rows, int32_t columns, uint32_t seed) {
    const size_t bytes = size_t(rows) * columns * ElementBytes(type);
    memory_.resize(bytes + 1);
    std::mt19937 random(seed);
    if (type == StoredType::kFloat32) {
      std::normal_distribution<float> normal;
      for (size_t i = 0; i < bytes; i += sizeof(float)) {
        const float value = normal(random);
        std::memcpy(&memory_[i + 1], &value, sizeof(value));
      }
    } else {  // every pattern of bits, but for NaNs
      for (size_t i = 0; i < bytes; i += 2) {
        const auto bits = static_cast<uint16_t>(random() & 0xBBFF);
        std::memcpy(&memory_[i + 1], &bits, sizeof(bits));
      }
    }
    tensor_.type = type;
    tensor_.shape = {rows, columns};
    tensor_.data = memory_.data() + 1;
    tensor_.bytes = static_cast<int64_t>(bytes);
  }
  const StoredTensor& tensor() const { return tensor_; }
  float at(int64_t element) const {
    float value = 0;
    ReadFloats(tensor_, element, 1, &value);
    return value;
  }

 private:
  std::vector<std::byte> memory_;
  StoredTensor tensor_;
};

std::vector<std::byte> BytesOf(float value, DataType type) {
  std::vector<std::byte> bytes(base::Bytes(type));
  if (type == DataType::kFloat32) {
    std::memcpy(bytes.data(), &value, sizeof(value));
  } else {
    const uint16_t bits = RoundToBFloat16(value);
    std::memcpy(bytes.data(), &bits, sizeof(bits));
  }
  return bytes;
}

// Rows and columns of three matrices, all rows at once, some across their borders, and one by one.
TEST(StoredRowsTest, AreThoseOfTheShardsInEitherType) {
  constexpr int32_t kInputs = 1500;  // more than are converted at once
  const Stored whole(StoredType::kBFloat16, 4, kInputs, 1);
  const Stored wide(StoredType::kFloat32, 5, 2 * kInputs, 2);
  const Stored half(StoredType::kFloat16, 6, kInputs, 3);
  StoredRows rows(kInputs);
  rows.Add({&whole.tensor(), kInputs, /*first_row=*/1, /*row_count=*/3, /*first_column=*/0});
  rows.Add({&wide.tensor(), 2 * kInputs, 2, 2, kInputs});
  rows.Add({&half.tensor(), kInputs, 0, 4, 0});
  ASSERT_EQ(rows.rows(), 9);
  const auto expected = [&](int32_t row, int32_t column) {
    if (row < 3) return whole.at(int64_t{row + 1} * kInputs + column);
    if (row < 5) return wide.at(int64_t{row - 3 + 2} * 2 * kInputs + kInputs + column);
    return half.at(int64_t{row - 5} * kInputs + column);
  };
  for (const DataType type : {DataType::kFloat32, DataType::kBFloat16}) {
    for (const auto& [first, count] : {std::pair{0, 9}, {1, 1}, {2, 2}, {4, 4}, {8, 1}}) {
      std::vector<std::byte> read(size_t(count) * kInputs * base::Bytes(type));
      rows.ReadAhead(first, count);
      rows.Read(first, count, type, read.data());
      for (int32_t row = 0; row < count; ++row) {
        for (int32_t column = 0; column < kInputs; ++column) {
          const size_t at = (size_t(row) * kInputs + column) * base::Bytes(type);
          const std::vector<std::byte> bytes = BytesOf(expected(first + row, column), type);
          ASSERT_EQ(std::memcmp(&read[at], bytes.data(), bytes.size()), 0)
              << "row " << first + row << ", column " << column;
        }
      }
    }
  }
}

TEST(StoredRowsTest, BFloat16IsCopiedAsItIs) {
  const uint16_t patterns[] = {0x7F81, 0xFFC0, 0x8000, 0x0001, 0x7F80, 0xFF80};  // NaNs among them
  StoredTensor tensor;
  tensor.type = StoredType::kBFloat16;
  tensor.data = reinterpret_cast<const std::byte*>(patterns);
  tensor.bytes = sizeof(patterns);
  uint16_t read[6] = {};
  ReadElements(tensor, 0, 6, DataType::kBFloat16, reinterpret_cast<std::byte*>(read));
  EXPECT_EQ(std::memcmp(read, patterns, sizeof(patterns)), 0);
}

}  // namespace
}  // namespace specfabric::model
