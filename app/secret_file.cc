#include "app/secret_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace specfabric::app {

namespace {

constexpr size_t kMinBytes = 16;
constexpr size_t kMaxBytes = 4096;

}  // namespace

absl::StatusOr<std::string> ReadJoinSecret(const std::string& path) {
  const auto refused = [&path](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat("--join_secret_file=", path, ": ", why...));
  };
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return refused("cannot read: ", strerror(errno));
  // One byte more than allowed, and a line end.
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

}  // namespace specfabric::app
