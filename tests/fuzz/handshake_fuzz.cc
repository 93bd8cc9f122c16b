// The control connection's messages: the input is all that came of one. What is accepted must be
// the only message of its bytes, and say the same when it is encoded and read again.

#include "base/check.h"
#include "tests/fuzz/target.h"
#include "transport/handshake.h"

namespace specfabric {
namespace {

using transport::HandshakeMessage;

std::vector<fuzz::Bytes> Messages() {
  using transport::Refusal;
  const auto address = [](const char* text) { return transport::ResolveAddress(text).value(); };
  transport::Nonce nonce;
  transport::Proof proof;
  nonce.fill(0x11);
  proof.fill(0x22);
  const HandshakeMessage messages[] = {
      transport::Greeting{nonce},
      transport::Claim{0x0123456789ABCDEF, proof},
      transport::Answer{7, address("127.0.0.1:4000"), proof},
      transport::Answer{8, address("[fe80::1]:65535"), proof},
      Refusal::kVersion,
      Refusal::kSecret,
      Refusal::kFull,
  };
  std::vector<fuzz::Bytes> encoded;
  for (const HandshakeMessage& message : messages) {
    encoded.push_back(transport::EncodeHandshake(message));
  }
  return encoded;
}

// Whatever is cut off at the end is waited for; whatever comes on top is refused.
void CheckBounds(const fuzz::Bytes& stream) {
  for (size_t size = 0; size < stream.size(); ++size) {
    const fuzz::Bytes part(stream.begin(), stream.begin() + static_cast<ptrdiff_t>(size));
    const auto message = transport::ParseHandshake(part);
    SPECFABRIC_CHECK(message.ok() && !message->has_value());
  }
  fuzz::Bytes longer = stream;
  longer.push_back(0);
  SPECFABRIC_CHECK(!transport::ParseHandshake(longer).ok());
}

}  // namespace

std::vector<fuzz::Bytes> fuzz::Seeds() { return Messages(); }

}  // namespace specfabric

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace specfabric;  // NOLINT: the entry point cannot be inside
  const fuzz::Bytes stream(data, data + size);
  const auto message = transport::ParseHandshake(stream);
  if (!message.ok() || !message->has_value()) return 0;
  CheckBounds(stream);
  const fuzz::Bytes encoded = transport::EncodeHandshake(**message);
  const auto again = transport::ParseHandshake(encoded);
  SPECFABRIC_CHECK(again.ok() && again->has_value());
  SPECFABRIC_CHECK((*again)->index() == (*message)->index());
  SPECFABRIC_CHECK(transport::EncodeHandshake(**again) == encoded);
  return 0;
}
