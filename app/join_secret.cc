#include "app/join_secret.h"

#include <sys/random.h>

#include <array>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "app/flags.h"
#include "app/secret_file.h"
#include "base/check.h"

namespace specfabric::app {

namespace {

// 64 hexadecimal digits, so that nothing in it looks like the end of a line.
std::string RandomSecret() {
  std::array<char, 32> bytes;
  // A read of up to 256 bytes is never short, and fails only early in the boot of old kernels.
  SPECFABRIC_CHECK(getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  return absl::BytesToHexString(absl::string_view(bytes.data(), bytes.size()));
}

}  // namespace

absl::StatusOr<std::string> JoinSecret() {
  static const auto* const secret = new absl::StatusOr<std::string>(
      FLAGS_join_secret_file.empty() ? std::string() : ReadJoinSecret(FLAGS_join_secret_file));
  return *secret;
}

absl::StatusOr<std::string> JoinSecretOrRandom() {
  auto secret = JoinSecret();
  if (secret.ok() && secret->empty()) return RandomSecret();
  return secret;
}

}  // namespace specfabric::app
