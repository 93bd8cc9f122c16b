#ifndef SPECFABRIC_TESTS_FUZZ_TEMPORARY_FOLDER_H_
#define SPECFABRIC_TESTS_FUZZ_TEMPORARY_FOLDER_H_

// A folder of the process's own, in memory where the machine has such a place, gone at the end.

#include <string>
#include <string_view>

namespace specfabric::fuzz {

class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  void Write(const char* name, std::string_view content) const;
  void Remove(const char* name) const;

 private:
  std::string path_;
};

}  // namespace specfabric::fuzz

#endif  // SPECFABRIC_TESTS_FUZZ_TEMPORARY_FOLDER_H_
