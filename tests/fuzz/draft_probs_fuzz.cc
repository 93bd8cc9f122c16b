// The tensor of draft draft_probs: 12 bytes of shape, small numbers, then the rows. What is opened
// can be read to its last token, and its totals agree with its draft_probs.

#include <cmath>
#include <cstring>

#include "base/bfloat16.h"
#include "base/check.h"
#include "speculation/draft_probs.h"
#include "tests/fuzz/target.h"

namespace specfabric {
namespace {

using speculation::DraftProbs;
using speculation::DraftProbsShape;

constexpr size_t kHeader = 3 * sizeof(int32_t);

fuzz::Bytes Encoded(const DraftProbsShape& shape, const std::vector<uint16_t>& row) {
  fuzz::Bytes bytes(kHeader + shape.bytes());
  std::vector<uint64_t> slot(shape.bytes() / 8 + 1);
  speculation::DraftProbsWriter writer(shape, reinterpret_cast<uint8_t*>(slot.data()));
  for (int32_t i = 0; i < shape.rows; ++i) writer.Write(i, row);
  const int32_t header[] = {shape.rows, shape.vocabulary, shape.entries};
  std::memcpy(bytes.data(), header, kHeader);
  std::memcpy(bytes.data() + kHeader, slot.data(), shape.bytes());
  return bytes;
}

void CheckOpened(const DraftProbs& opened) {
  for (int32_t row = 0; row < opened.shape().rows; ++row) {
    double total = 0;
    for (base::TokenId token = 0; token < opened.shape().vocabulary; ++token) {
      const float prob = opened.prob(row, token);
      SPECFABRIC_CHECK(std::isfinite(prob) && prob >= 0);
      total += prob;
    }
    SPECFABRIC_CHECK(total == opened.total(row));
  }
}

}  // namespace

std::vector<fuzz::Bytes> fuzz::Seeds() {
  const std::vector<uint16_t> row = {base::RoundToBFloat16(1), 0, base::RoundToBFloat16(0.25f), 0};
  return {Encoded({2, 4, 4}, row), Encoded({3, 4, 2}, row)};
}

}  // namespace specfabric

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using specfabric::CheckOpened;
  using specfabric::kHeader;
  using specfabric::speculation::DraftProbs;
  if (size < kHeader) return 0;
  int32_t header[3];
  std::memcpy(header, data, kHeader);
  // Reading every token of a huge vocabulary would find nothing but patience.
  if (header[1] > 10'000) return 0;
  std::vector<uint64_t> aligned((size - kHeader) / 8 + 1);
  std::memcpy(aligned.data(), data + kHeader, size - kHeader);
  const auto opened =
      DraftProbs::Open({header[0], header[1], header[2]},
                       {reinterpret_cast<const uint8_t*>(aligned.data()), size - kHeader});
  if (opened.ok()) CheckOpened(*opened);
  return 0;
}
