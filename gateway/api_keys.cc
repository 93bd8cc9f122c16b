#include "gateway/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/random.h"
#include "base/read_file.h"
#include "base/status.h"
#include "spdlog/spdlog.h"

namespace specfabric::gateway {
namespace {

constexpr size_t kMaxKeyFileBytes = 1 << 20;

absl::StatusOr<ApiKeys> Read(const std::string& path) {
  const auto text = base::ReadFile(path, kMaxKeyFileBytes);
  if (!text.ok()) return absl::InvalidArgumentError(text.status().message());
  return ApiKeys::Parse(*text);
}

}  // namespace

ApiKeys::ApiKeys() {
  for (size_t i = 0; i < secret_.size(); i += sizeof(uint64_t)) {
    const uint64_t bits = base::RandomNonzero64();
    std::memcpy(secret_.data() + i, &bits, sizeof(bits));
  }
}

ApiKeys::Hash ApiKeys::HashOf(std::string_view key) const {
  Hash hash;
  SPECFABRIC_CHECK(HMAC(EVP_sha256(), secret_.data(), static_cast<int>(secret_.size()),
                        reinterpret_cast<const unsigned char*>(key.data()), key.size(), hash.data(),
                        nullptr) != nullptr);
  return hash;
}

absl::StatusOr<ApiKeys> ApiKeys::Parse(std::string_view text) {
  ApiKeys keys;
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    ++number;
    const absl::string_view key = absl::StripAsciiWhitespace(line);
    if (key.empty() || key.front() == '#') continue;
    const bool visible =
        std::all_of(key.begin(), key.end(), [](unsigned char c) { return absl::ascii_isgraph(c); });
    if (!visible || key.size() > kMaxKeyBytes) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number,
                                                     " is no key: allowed are 1 to ", kMaxKeyBytes,
                                                     " visible ASCII characters"));
    }
    if (keys.hashes_.size() == kMaxKeys) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, " is one key too many: allowed are 1 to ", kMaxKeys));
    }
    keys.hashes_.push_back(keys.HashOf({key.data(), key.size()}));
  }
  if (keys.hashes_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("it has no key: allowed are 1 to ", kMaxKeys));
  }
  return keys;
}

bool ApiKeys::Has(std::string_view key) const {
  const Hash hash = HashOf(key);
  bool found = false;
  for (const Hash& known : hashes_) {
    found |= CRYPTO_memcmp(hash.data(), known.data(), hash.size()) == 0;
  }
  return found;
}

ApiKeyFile::ApiKeyFile(std::string path, FileWatch watch, ApiKeys keys)
    : path_(std::move(path)),
      watch_(std::move(watch)),
      keys_(std::make_shared<const ApiKeys>(std::move(keys))) {}

absl::StatusOr<std::shared_ptr<ApiKeyFile>> ApiKeyFile::Open(const std::string& path) {
  FileWatch watch({path});
  auto keys = Read(path);
  if (!keys.ok()) return keys.status();
  return std::shared_ptr<ApiKeyFile>(new ApiKeyFile(path, std::move(watch), *std::move(keys)));
}

std::shared_ptr<const ApiKeys> ApiKeyFile::keys() const {
  std::lock_guard lock(mutex_);
  return keys_;
}

void ApiKeyFile::Reload() {
  if (!watch_.Changed()) return;
  auto keys = Read(path_);
  if (!keys.ok()) {
    spdlog::warn("gateway: the API keys stay as they are; {}: {}", path_,
                 base::Message(keys.status()));
    return;
  }
  auto next = std::make_shared<const ApiKeys>(*std::move(keys));
  spdlog::info("gateway: {} API keys read from {}", next->size(), path_);
  std::lock_guard lock(mutex_);
  keys_ = std::move(next);
}

}  // namespace specfabric::gateway
