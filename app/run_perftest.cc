#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "app/roles.h"

namespace specfabric::app {

absl::Status RunPerftest(const std::vector<std::string>& args) {
  std::error_code error;
  const auto own = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::UnavailableError(absl::StrCat("/proc/self/exe: ", error.message()));
  std::string program = own.parent_path() / "specfabric-perftest";
  std::vector<char*> argv = {program.data()};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  return absl::UnavailableError(absl::StrCat("cannot run ", program, ": ", std::strerror(errno)));
}

}  // namespace specfabric::app
