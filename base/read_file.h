#ifndef SPECFABRIC_BASE_READ_FILE_H_
#define SPECFABRIC_BASE_READ_FILE_H_

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace specfabric::base {

// The bytes of a file or pipe. InvalidArgument, "cannot read: " and why, if it cannot be read;
// OutOfRange if it has more than `max_bytes`.
inline absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes) {
  const auto unreadable = [](int error) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read: ", strerror(error)));
  };
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return unreadable(errno);
  std::string bytes(max_bytes + 1, '\0');
  size_t size = 0;
  ssize_t received = 0;
  do {
    received = read(file, bytes.data() + size, bytes.size() - size);
    if (received > 0) size += static_cast<size_t>(received);
  } while ((received > 0 && size < bytes.size()) || (received < 0 && errno == EINTR));
  const int error = errno;
  close(file);
  if (received < 0) return unreadable(error);
  if (size > max_bytes) {
    return absl::OutOfRangeError(absl::StrCat("longer than ", max_bytes, " bytes"));
  }
  bytes.resize(size);
  return bytes;
}

}  // namespace specfabric::base

#endif  // SPECFABRIC_BASE_READ_FILE_H_
