#include "app/secret_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/read_file.h"

namespace specfabric::app {

namespace {

constexpr size_t kMinBytes = 16;
constexpr size_t kMaxBytes = 4096;

}  // namespace

absl::StatusOr<std::string> ReadJoinSecret(const std::string& path) {
  const auto refused = [&path](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat("--join_secret_file=", path, ": ", why...));
  };
  const auto too_long = [&refused] {
    return refused("longer than ", kMaxBytes, " bytes: allowed are ", kMinBytes, " to ", kMaxBytes);
  };
  // A line end may follow.
  auto read = base::ReadFile(path, kMaxBytes + 2);
  if (absl::IsInvalidArgument(read.status())) return refused(read.status().message());
  if (!read.ok()) return too_long();
  std::string secret = *std::move(read);
  while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
  if (secret.size() > kMaxBytes) return too_long();
  if (secret.size() < kMinBytes) {
    return refused(secret.size(), " bytes: allowed are ", kMinBytes, " to ", kMaxBytes);
  }
  return secret;
}

}  // namespace specfabric::app
