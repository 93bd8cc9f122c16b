#include "tests/transport/process_info.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace specfabric::transport {
namespace {

size_t CountEntries(const std::string& folder) {
  std::error_code gone;
  size_t count = 0;
  for (std::filesystem::directory_iterator entry(folder, gone), end; !gone && entry != end;
       entry.increment(gone)) {
    ++count;
  }
  return count;
}

}  // namespace

ProcessInfo ProcessInfo::Of(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid);
  ProcessInfo info;
  size_t pages = 0;
  std::ifstream(folder + "/statm") >> pages >> pages;
  info.resident_bytes = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  info.file_descriptors = CountEntries(folder + "/fd");
  info.threads = CountEntries(folder + "/task");
  std::ifstream maps(folder + "/maps");
  for (std::string line; std::getline(maps, line);) {
    ++info.mappings;
    // "7f..-7f.. rw-s 00000000 00:01 42 /dev/shm/ucx_shm_posix_4a (deleted)"
    if (line.size() > 22 && line.find("s ") < 40) ++info.shared_mappings;
  }
  return info;
}

}  // namespace specfabric::transport
