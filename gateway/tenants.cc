#include "gateway/tenants.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace specfabric::gateway {

std::string_view ApiKeyOf(std::string_view authorization, std::string_view x_api_key) {
  constexpr std::string_view kScheme = "bearer ";
  absl::string_view key(authorization.data(), authorization.size());
  if (absl::StartsWithIgnoreCase(key, {kScheme.data(), kScheme.size()})) {
    key.remove_prefix(kScheme.size());
  } else {
    key = {x_api_key.data(), x_api_key.size()};
  }
  key = absl::StripAsciiWhitespace(key);
  return {key.data(), key.size()};
}

Tenant Tenants::Of(std::string_view api_key, std::string_view cache_salt) const {
  Tenant tenant;
  if (!api_key.empty()) tenant.id = Hash("tenant", api_key, "");
  if (!api_key.empty() || !cache_salt.empty()) {
    tenant.cache_salt = Hash("cache salt", api_key, cache_salt);
  }
  return tenant;
}

uint64_t Tenants::Hash(std::string_view label, std::string_view api_key,
                       std::string_view salt) const {
  // The length marks the end of the key, so that no other key and salt give the same text.
  std::string text = absl::StrCat(std::string(label), "\n", api_key.size(), "\n");
  text.append(api_key).append(salt);
  unsigned char digest[EVP_MAX_MD_SIZE];
  SPECFABRIC_CHECK(HMAC(EVP_sha256(), secret_.data(), static_cast<int>(secret_.size()),
                        reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest,
                        nullptr) != nullptr);
  uint64_t hash = 0;
  std::memcpy(&hash, digest, sizeof(hash));
  return std::max<uint64_t>(hash, 1);
}

}  // namespace specfabric::gateway
