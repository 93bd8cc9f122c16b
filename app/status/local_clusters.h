#ifndef SPECFABRIC_APP_STATUS_LOCAL_CLUSTERS_H_
#define SPECFABRIC_APP_STATUS_LOCAL_CLUSTERS_H_

// How `specfabric status` finds the clusters that `specfabric up` runs on this machine for the same
// user: each `up` keeps a file with its processes' admin addresses in the user's run directory,
// $XDG_RUNTIME_DIR/specfabric, or specfabric-<uid> in $TMPDIR or /tmp.

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "app/status/cluster_view.h"

namespace specfabric::app {

struct LocalCluster {
  pid_t pid = 0;        // of `up`
  int64_t started = 0;  // its start time in clock ticks since boot: process ids are used again
  std::string listen;   // of the gateway
  ClusterAddresses admin;
};

// The file of a cluster; removed with this object.
class LocalClusterFile {
 public:
  // Of this process. Makes the run directory (0700) where it is missing, and removes files of
  // clusters that are gone. FailedPrecondition: others may write to the directory. Unavailable: it
  // cannot be written.
  static absl::StatusOr<LocalClusterFile> Write(const std::string& listen,
                                                const ClusterAddresses& admin);
  LocalClusterFile(LocalClusterFile&& other) noexcept : path_(std::move(other.path_)) {
    other.path_.clear();
  }
  LocalClusterFile& operator=(LocalClusterFile&&) = delete;
  ~LocalClusterFile();

 private:
  explicit LocalClusterFile(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// The running clusters, the newest first. Skips files that are no cluster's, or one whose `up` has
// ended.
std::vector<LocalCluster> LocalClusters();

}  // namespace specfabric::app

#endif  // SPECFABRIC_APP_STATUS_LOCAL_CLUSTERS_H_
