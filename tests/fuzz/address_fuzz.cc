// "host:port" of numeric hosts. The linker sends the resolver's calls here (--wrap), so that no
// name ever leaves the process. What is accepted must come back the same from its own text.

#include <netdb.h>

#include <cstring>

#include "base/check.h"
#include "tests/fuzz/target.h"
#include "transport/address.h"

// The linker names them (--wrap).
// NOLINTBEGIN(bugprone-reserved-identifier)
extern "C" int __real_getaddrinfo(const char* host, const char* service, const addrinfo* hints,
                                  addrinfo** found);
extern "C" int __wrap_getaddrinfo(const char* host, const char* service, const addrinfo* hints,
                                  addrinfo** found) {
  addrinfo numeric = *hints;
  numeric.ai_flags |= AI_NUMERICHOST;
  return __real_getaddrinfo(host, service, &numeric, found);
}
// NOLINTEND(bugprone-reserved-identifier)

namespace specfabric {
namespace {

using transport::SocketAddress;

void CheckAccepted(const SocketAddress& address) {
  SPECFABRIC_CHECK(address.size > 0 && address.size <= sizeof(address.storage));
  const std::string text = transport::FormatAddress(address.storage);
  const auto again = transport::ResolveAddress(text);
  SPECFABRIC_CHECK(again.ok());
  SPECFABRIC_CHECK(transport::FormatAddress(again->storage) == text);
  SPECFABRIC_CHECK(transport::IsLoopback(again->storage) == transport::IsLoopback(address.storage));
}

}  // namespace

std::vector<fuzz::Bytes> fuzz::Seeds() {
  return {ToBytes("127.0.0.1:7000"),     ToBytes("0.0.0.0:0"),      ToBytes("10.1.2.3:65535"),
          ToBytes("[::1]:7000"),         ToBytes("[fe80::1]:1"),    ToBytes("[::ffff:1.2.3.4]:80"),
          ToBytes("[2001:db8::7]:8080"), ToBytes("0x7f.1:0000080"), ToBytes("127.0.0.1")};
}

}  // namespace specfabric

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto address = specfabric::transport::ResolveAddress(text);
  if (address.ok()) specfabric::CheckAccepted(*address);
  return 0;
}
