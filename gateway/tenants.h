#ifndef SPECFABRIC_GATEWAY_TENANTS_H_
#define SPECFABRIC_GATEWAY_TENANTS_H_

// Whose a request is, in words of 64 bits that tell a target nothing else. Any key is a tenant's:
// there is no list of them. Pure.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace specfabric::gateway {

struct Tenant {
  uint64_t id = 0;          // 0: came without a key
  uint64_t cache_salt = 0;  // 0: came without a key and without a salt
};

// The key in a header "Bearer KEY", empty for anything else.
std::string_view ApiKeyOf(std::string_view authorization);

class Tenants {
 public:
  // Gateways of one secret tell a tenant alike; who does not know it cannot find a salt that gives
  // another tenant's (HMAC with SHA-256).
  explicit Tenants(std::string secret) : secret_(std::move(secret)) {}

  Tenant Of(std::string_view api_key, std::string_view cache_salt) const;

 private:
  uint64_t Hash(std::string_view label, std::string_view api_key, std::string_view salt) const;

  const std::string secret_;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_TENANTS_H_
