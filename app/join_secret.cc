#include "app/join_secret.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "app/flags.h"
#include "base/check.h"

namespace specfabric::app {

namespace {

constexpr size_t kMinBytes = 16;
constexpr size_t kMaxBytes = 4096;

// 64 hexadecimal digits, so that nothing in it looks like the end of a line.
std::string RandomSecret() {
  std::array<char, 32> bytes;
  // So few bytes are never cut short, and only an old kernel's early boot could fail.
  SPECFABRIC_CHECK(getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  return absl::BytesToHexString(absl::string_view(bytes.data(), bytes.size()));
}

}  // namespace

absl::StatusOr<std::string> ReadJoinSecret(const std::string& path) {
  const auto refused = [&path](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat("--join_secret_file=", path, ": ", why...));
  };
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return refused("cannot read: ", strerror(errno));
  // Room for one byte too many, and for a line end.
  std::string secret(kMaxBytes + 3, '\0');
  size_t size = 0;
  ssize_t received = 0;
  do {
    received = read(file, secret.data() + size, secret.size() - size);
    if (received > 0) size += static_cast<size_t>(received);
  } while ((received > 0 && size < secret.size()) || (received < 0 && errno == EINTR));
  const int error = errno;
  close(file);
  if (received < 0) return refused("cannot read: ", strerror(error));
  secret.resize(size);
  while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
  if (secret.size() > kMaxBytes) {
    return refused("longer than ", kMaxBytes, " bytes: allowed are ", kMinBytes, " to ", kMaxBytes);
  }
  if (secret.size() < kMinBytes) {
    return refused(secret.size(), " bytes: allowed are ", kMinBytes, " to ", kMaxBytes);
  }
  return secret;
}

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
