#ifndef SPECFABRIC_TESTS_BASE_TEMP_DIR_H_
#define SPECFABRIC_TESTS_BASE_TEMP_DIR_H_

#include <stdlib.h>  // mkdtemp

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace specfabric::base {

// A new folder under the system's temporary one; removed with its contents on destruction. Where it
// cannot do what it is asked it ends the process with a message.
class TempDir {
 public:
  TempDir() : path_((std::filesystem::temp_directory_path() / "specfabric_XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr) Die("cannot make " + path_);
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }
  // Folders in `name` are made.
  void Write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories(std::filesystem::path(File(name)).parent_path());
    std::ofstream file(File(name), std::ios::binary);
    if (!(file << content)) Die("cannot write " + File(name));
  }

 private:
  [[noreturn]] static void Die(const std::string& message) {
    std::fprintf(stderr, "%s\n", message.c_str());
    std::abort();
  }

  std::string path_;
};

}  // namespace specfabric::base

#endif  // SPECFABRIC_TESTS_BASE_TEMP_DIR_H_
