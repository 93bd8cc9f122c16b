#include "app/status/local_clusters.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"

namespace specfabric::app {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;

std::string RunDirectory() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  // After a change of users (sudo) the variable often names another user's.
  if (runtime != nullptr && *runtime == '/' && access(runtime, W_OK | X_OK) == 0) {
    return absl::StrCat(runtime, "/specfabric");
  }
  const char* temporary = std::getenv("TMPDIR");
  const bool given = temporary != nullptr && *temporary == '/';
  return absl::StrCat(given ? temporary : "/tmp", "/specfabric-", geteuid());
}

// Whether the directory is this user's alone: in /tmp any user may have created it.
absl::Status CheckOwned(const std::string& directory) {
  struct stat info = {};
  if (lstat(directory.c_str(), &info) != 0) {
    return absl::UnavailableError(absl::StrCat(directory, ": ", std::strerror(errno)));
  }
  if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 022) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(directory, ": is not a directory that this user alone may write to"));
  }
  return absl::OkStatus();
}

// Field 22 of /proc/<pid>/stat; nothing where no such process runs.
std::optional<int64_t> StartTime(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t name_end = text.rfind(") ");  // the name may hold anything
  if (name_end == std::string::npos) return std::nullopt;
  const std::vector<std::string> fields = absl::StrSplit(text.substr(name_end + 2), ' ');
  int64_t time = 0;
  if (fields.size() < 20 || fields[0] == "Z" || !absl::SimpleAtoi(fields[19], &time)) {
    return std::nullopt;
  }
  return time;
}

// False: not written, errno says why.
bool WriteFile(const std::string& path, const std::string& text) {
  const std::string unfinished = absl::StrCat(path, ".new");
  const int fd = open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW,
                      S_IRUSR | S_IWUSR);
  if (fd < 0) return false;
  const bool written = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  close(fd);
  if (written && std::rename(unfinished.c_str(), path.c_str()) == 0) return true;
  const int error = errno;
  unlink(unfinished.c_str());
  errno = error;
  return false;
}

std::vector<std::string> Strings(const nlohmann::json& list) {
  std::vector<std::string> strings;
  if (!list.is_array()) return strings;
  for (const auto& one : list) {
    if (one.is_string()) strings.push_back(one.get<std::string>());
  }
  return strings;
}

// Nothing: no cluster's file.
std::optional<LocalCluster> ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::string text(kMaxFileBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  const auto number = [&json](const char* name) -> int64_t {
    const auto it = json.find(name);
    return it != json.end() && it->is_number_integer() ? it->get<int64_t>() : 0;
  };
  const auto list = [&json](const char* name) {
    const auto it = json.find(name);
    return it == json.end() ? std::vector<std::string>() : Strings(*it);
  };
  LocalCluster cluster;
  cluster.pid = static_cast<pid_t>(number("pid"));
  cluster.started = number("started");
  const auto listen = json.find("listen");
  if (listen != json.end() && listen->is_string()) cluster.listen = listen->get<std::string>();
  cluster.admin = {list("gateways"), list("targets"), list("drafts")};
  return cluster;
}

bool Runs(const LocalCluster& cluster) {
  return cluster.pid > 0 && StartTime(cluster.pid) == cluster.started;
}

// The paths of what may be clusters' files.
std::vector<std::string> FilesIn(const std::string& directory) {
  std::vector<std::string> paths;
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(opendir(directory.c_str()), closedir);
  if (entries == nullptr) return paths;
  while (const dirent* entry = readdir(entries.get())) {
    const absl::string_view name = entry->d_name;
    if (absl::StartsWith(name, "up-") && absl::EndsWith(name, ".json")) {
      paths.push_back(absl::StrCat(directory, "/", name));
    }
  }
  return paths;
}

}  // namespace

absl::StatusOr<LocalClusterFile> LocalClusterFile::Write(const std::string& listen,
                                                         const ClusterAddresses& admin) {
  const std::string directory = RunDirectory();
  if (mkdir(directory.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
    return absl::UnavailableError(absl::StrCat(directory, ": ", std::strerror(errno)));
  }
  if (absl::Status owned = CheckOwned(directory); !owned.ok()) return owned;
  for (const std::string& path : FilesIn(directory)) {
    const auto cluster = ReadFile(path);
    if (!cluster || !Runs(*cluster)) unlink(path.c_str());
  }
  const nlohmann::json json = {
      {"pid", getpid()},          {"started", StartTime(getpid()).value_or(0)},
      {"listen", listen},         {"gateways", admin.gateways},
      {"targets", admin.targets}, {"drafts", admin.drafts}};
  const std::string path = absl::StrCat(directory, "/up-", getpid(), ".json");
  if (!WriteFile(path, json.dump() + "\n")) {
    return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  return LocalClusterFile(path);
}

LocalClusterFile::~LocalClusterFile() {
  if (!path_.empty()) unlink(path_.c_str());
}

std::vector<LocalCluster> LocalClusters() {
  const std::string directory = RunDirectory();
  std::vector<LocalCluster> clusters;
  if (!CheckOwned(directory).ok()) return clusters;
  for (const std::string& path : FilesIn(directory)) {
    auto cluster = ReadFile(path);
    if (cluster && Runs(*cluster)) clusters.push_back(*std::move(cluster));
  }
  std::sort(clusters.begin(), clusters.end(), [](const LocalCluster& a, const LocalCluster& b) {
    return std::pair(a.started, a.pid) > std::pair(b.started, b.pid);
  });
  return clusters;
}

}  // namespace specfabric::app
