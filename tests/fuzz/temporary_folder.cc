#include "tests/fuzz/temporary_folder.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/check.h"

namespace specfabric::fuzz {

TemporaryFolder::TemporaryFolder() {
  const bool in_memory = access("/dev/shm", W_OK) == 0;
  path_ = std::string(in_memory ? "/dev/shm" : "/tmp") + "/specfabric-fuzz-XXXXXX";
  SPECFABRIC_CHECK(mkdtemp(path_.data()) != nullptr);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void TemporaryFolder::Write(const char* name, std::string_view content) const {
  std::ofstream file(path_ + "/" + name, std::ios::binary | std::ios::trunc);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  SPECFABRIC_CHECK(file.flush());
}

void TemporaryFolder::Remove(const char* name) const { unlink((path_ + "/" + name).c_str()); }

}  // namespace specfabric::fuzz
