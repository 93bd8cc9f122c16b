#ifndef SPECFABRIC_TESTS_TRANSPORT_NETWORK_H_
#define SPECFABRIC_TESTS_TRANSPORT_NETWORK_H_

// The network of the tests: loopback, unless the environment names another one of this machine, as
// tests/transport/verbs_suite.sh does:
//   SPECFABRIC_TEST_HOST        the IPv4 address that tests listen on (127.0.0.1)
//   SPECFABRIC_TEST_DEVICES     the devices that UCX may use, as in UCX_NET_DEVICES (lo)
//   SPECFABRIC_TEST_PEER_DEVICES  those of fault_matrix_test's other process, where there must be a
//                               cable between the two (SPECFABRIC_TEST_DEVICES)
//   SPECFABRIC_TEST_WIRE        part of the name of the wire that two processes must use
//                               (tcp/lo with UCX_TLS=tcp, else /memory)
//   SPECFABRIC_TEST_CYCLES      how often connections are made and closed in search of leaks (500)
//   SPECFABRIC_TEST_CONNECT_MS  what connecting may take where a test lets it pass (300)
//   SPECFABRIC_TEST_SILENCE_MS  silence that a living peer never keeps (2000)
//   SPECFABRIC_TEST_LOSSY       devices, separated by spaces, that tests may make lose packets
//   (none)

#include <cstddef>
#include <cstdlib>
#include <string>

#include "base/clock.h"
#include "transport/fabric.h"

namespace specfabric::transport {

inline std::string EnvironmentOr(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

inline std::string TestHost() { return EnvironmentOr("SPECFABRIC_TEST_HOST", "127.0.0.1"); }

// What the addresses of both peers begin with: TestHost up to its last dot.
inline std::string TestNetwork() {
  const std::string host = TestHost();
  return host.substr(0, host.rfind('.') + 1);
}

// TestHost with any free port.
inline std::string AnyPort() { return TestHost() + ":0"; }

inline std::string TestDevices() { return EnvironmentOr("SPECFABRIC_TEST_DEVICES", "lo"); }

inline std::string TestPeerDevices() {
  return EnvironmentOr("SPECFABRIC_TEST_PEER_DEVICES", TestDevices());
}

inline std::string TestWire() {
  return EnvironmentOr("SPECFABRIC_TEST_WIRE",
                       EnvironmentOr("UCX_TLS", "") == "tcp" ? "tcp/lo" : "/memory");
}

inline size_t TestCycles() { return std::stoul(EnvironmentOr("SPECFABRIC_TEST_CYCLES", "500")); }

// A connect_timeout that a test may wait for, and that is still enough to connect.
inline base::Nanos ShortConnectTimeout() {
  return std::stoll(EnvironmentOr("SPECFABRIC_TEST_CONNECT_MS", "300")) * base::kMillisecond;
}

// A silence_timeout that a test may wait for, and that no healthy peer reaches.
inline base::Nanos ShortSilenceTimeout() {
  return std::stoll(EnvironmentOr("SPECFABRIC_TEST_SILENCE_MS", "2000")) * base::kMillisecond;
}

inline FabricOptions LoopbackOptions() {
  FabricOptions options;
  options.net_devices = TestDevices();
  options.connect_timeout = 20 * base::kSecond;  // enough on a loaded machine
  return options;
}

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TESTS_TRANSPORT_NETWORK_H_
