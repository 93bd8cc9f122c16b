// Fuzz target for the decoders: the first byte picks the message, the rest is its payload. What is
// accepted must encode to something that is accepted again and means the same.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "schemas/messages.h"
#include "tests/schemas/random_messages.h"

namespace specfabric::schemas {
namespace {

template <typename M>
void DecodeOnce(absl::Span<const uint8_t> payload) {
  const auto first = Decode<M>(payload);
  if (!first.ok()) return;
  const auto again = Decode<M>(Encode(*first));
  if (!again.ok() || Fields(*first) != Fields(*again)) {
    std::fprintf(stderr, "%s: accepted once, but not the same again\n", Name(kTypeOf<M>));
    std::abort();
  }
}

using Decoder = void (*)(absl::Span<const uint8_t>);
#define SPECFABRIC_DECODER(M) DecodeOnce<M>,
constexpr Decoder kDecoders[] = {SPECFABRIC_MESSAGES(SPECFABRIC_DECODER)};
#undef SPECFABRIC_DECODER

}  // namespace
}  // namespace specfabric::schemas

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using specfabric::schemas::kDecoders;
  if (size == 0) return 0;
  // A copy of exactly the payload's size, so that AddressSanitizer sees a read past its end.
  const std::vector<uint8_t> payload(data + 1, data + size);
  kDecoders[data[0] % std::size(kDecoders)](payload);
  return 0;
}
