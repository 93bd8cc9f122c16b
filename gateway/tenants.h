#ifndef SPECFABRIC_GATEWAY_TENANTS_H_
#define SPECFABRIC_GATEWAY_TENANTS_H_

// The tenant of a request, as 64-bit hashes from which a target cannot tell the API key. Every key
// is a tenant; which keys there are is api_keys.h's. Pure.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace specfabric::gateway {

struct Tenant {
  uint64_t id = 0;          // 0: the request has no key
  uint64_t cache_salt = 0;  // 0: the request has neither key nor salt
};

// The key of a request: that of the header `Authorization: Bearer KEY`, or else the value of
// `x-api-key`, which Anthropic's clients send. Empty for none.
std::string_view ApiKeyOf(std::string_view authorization, std::string_view x_api_key);

class Tenants {
 public:
  // Gateways with the same secret give a tenant the same values. Without the secret nobody can
  // choose a salt that results in another tenant's cache_salt (HMAC with SHA-256).
  explicit Tenants(std::string secret) : secret_(std::move(secret)) {}

  Tenant Of(std::string_view api_key, std::string_view cache_salt) const;

 private:
  uint64_t Hash(std::string_view label, std::string_view api_key, std::string_view salt) const;

  const std::string secret_;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_TENANTS_H_
