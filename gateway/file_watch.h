#ifndef SPECFABRIC_GATEWAY_FILE_WATCH_H_
#define SPECFABRIC_GATEWAY_FILE_WATCH_H_

#include <sys/stat.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace specfabric::gateway {

// Whether files have changed, by what the file system says of them: also where a name leads to
// another file now, as in a mounted Secret of Kubernetes. Looks when it is asked, which may block.
class FileWatch {
 public:
  // What a file holds now is not a change. Make the object before the file is read.
  explicit FileWatch(std::vector<std::string> paths)
      : paths_(std::move(paths)), stamps_(Stamps()) {}

  // Since the last call, or since the object was made. Pipes never change.
  bool Changed() {
    std::vector<Stamp> now = Stamps();
    if (now == stamps_) return false;
    stamps_ = std::move(now);
    return true;
  }

 private:
  using Stamp = std::array<int64_t, 7>;

  std::vector<Stamp> Stamps() const {
    std::vector<Stamp> stamps;
    for (const std::string& path : paths_) {
      struct stat file = {};
      const bool there = stat(path.c_str(), &file) == 0;
      if (there && !S_ISREG(file.st_mode)) file = {};
      stamps.push_back({there ? 1 : 0, static_cast<int64_t>(file.st_dev),
                        static_cast<int64_t>(file.st_ino), file.st_size, file.st_mtim.tv_sec,
                        file.st_mtim.tv_nsec,
                        file.st_ctim.tv_sec * 1'000'000'000 + file.st_ctim.tv_nsec});
    }
    return stamps;
  }

  const std::vector<std::string> paths_;
  std::vector<Stamp> stamps_;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_FILE_WATCH_H_
