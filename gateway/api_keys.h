#ifndef SPECFABRIC_GATEWAY_API_KEYS_H_
#define SPECFABRIC_GATEWAY_API_KEYS_H_

// The API keys that a gateway accepts (--api_key_file).

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "gateway/file_watch.h"

namespace specfabric::gateway {

// A list of keys. Keeps hashes of them under a secret of its own and compares all of them in
// constant time, so that the time of an answer says nothing about a key. Any thread.
class ApiKeys {
 public:
  static constexpr size_t kMaxKeys = 1024;
  static constexpr size_t kMaxKeyBytes = 512;

  // One key a line: visible ASCII. Empty lines and those that begin with # are skipped. Whoever may
  // see the error may not see keys, so it names their line only.
  static absl::StatusOr<ApiKeys> Parse(std::string_view text);

  bool Has(std::string_view key) const;
  size_t size() const { return hashes_.size(); }

 private:
  using Hash = std::array<uint8_t, 32>;
  ApiKeys();
  Hash HashOf(std::string_view key) const;

  Hash secret_;
  std::vector<Hash> hashes_;
};

// The keys of a file that may change. Any thread.
class ApiKeyFile {
 public:
  // Errors in one line, without the path.
  static absl::StatusOr<std::shared_ptr<ApiKeyFile>> Open(const std::string& path);

  bool Has(std::string_view key) const { return keys()->Has(key); }
  // Reads the file again if it has changed, and logs it. If it cannot be used now, the keys stay as
  // they are. Blocks; on one thread at a time.
  void Reload();

 private:
  ApiKeyFile(std::string path, FileWatch watch, ApiKeys keys);
  std::shared_ptr<const ApiKeys> keys() const;

  const std::string path_;
  FileWatch watch_;
  mutable std::mutex mutex_;
  std::shared_ptr<const ApiKeys> keys_;  // guarded by mutex_
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_API_KEYS_H_
