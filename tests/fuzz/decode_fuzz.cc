// The messages' decoders: the first byte is the message's type, the rest its payload. What is
// accepted must encode to something that is accepted again and means the same.

#include <random>

#include "base/check.h"
#include "schemas/messages.h"
#include "tests/fuzz/target.h"
#include "tests/schemas/random_messages.h"

namespace specfabric {
namespace {

template <typename M>
void DecodeOnce(absl::Span<const uint8_t> payload) {
  const auto first = schemas::Decode<M>(payload);
  if (!first.ok()) return;
  const auto again = schemas::Decode<M>(schemas::Encode(*first));
  SPECFABRIC_CHECK(again.ok());
  SPECFABRIC_CHECK(schemas::Fields(*first) == schemas::Fields(*again));
}

void Dispatch(uint8_t type, absl::Span<const uint8_t> payload) {
  using namespace schemas;  // NOLINT: the list of messages names them alone
  switch (static_cast<MessageType>(type)) {
#define SPECFABRIC_CASE(M) \
  case kTypeOf<M>:         \
    return DecodeOnce<M>(payload);
    SPECFABRIC_MESSAGES(SPECFABRIC_CASE)
#undef SPECFABRIC_CASE
  }
}

template <typename M>
void AddSeeds(schemas::Rng& rng, std::vector<fuzz::Bytes>& seeds) {
  constexpr int kEach = 8;
  for (int i = 0; i < kEach; ++i) {
    fuzz::Bytes seed{static_cast<uint8_t>(schemas::kTypeOf<M>)};
    const fuzz::Bytes payload = schemas::Encode(schemas::RandomMessage<M>(rng));
    seed.insert(seed.end(), payload.begin(), payload.end());
    seeds.push_back(std::move(seed));
  }
}

}  // namespace

std::vector<fuzz::Bytes> fuzz::Seeds() {
  using namespace schemas;  // NOLINT: the list of messages names them alone
  Rng rng(1);
  std::vector<Bytes> seeds;
#define SPECFABRIC_SEEDS(M) AddSeeds<M>(rng, seeds);
  SPECFABRIC_MESSAGES(SPECFABRIC_SEEDS)
#undef SPECFABRIC_SEEDS
  return seeds;
}

}  // namespace specfabric

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  // A copy of exactly the payload's size, so that AddressSanitizer sees a read past its end.
  const std::vector<uint8_t> payload(data + 1, data + size);
  specfabric::Dispatch(data[0], payload);
  return 0;
}
