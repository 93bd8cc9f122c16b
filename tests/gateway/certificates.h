#ifndef SPECFABRIC_TESTS_GATEWAY_CERTIFICATES_H_
#define SPECFABRIC_TESTS_GATEWAY_CERTIFICATES_H_

#include <string>

namespace specfabric::gateway {

struct Certificate {
  std::string cert, key;  // PEM
};

enum class KeyKind { kEc, kRsa };

// A new key and its self-signed certificate for the name, valid for a day.
Certificate MakeCertificate(const std::string& name, KeyKind kind = KeyKind::kEc);
// The key in PEM under the passphrase "secret".
std::string Encrypted(const std::string& key);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_TESTS_GATEWAY_CERTIFICATES_H_
