#include "gateway/tenants.h"

#include <set>

#include "gtest/gtest.h"

namespace specfabric::gateway {
namespace {

TEST(ApiKeyTest, OnlyBearerHeadersHaveAKey) {
  EXPECT_EQ(ApiKeyOf("Bearer sk-1", ""), "sk-1");
  EXPECT_EQ(ApiKeyOf("bearer  sk-1 ", ""), "sk-1");
  EXPECT_EQ(ApiKeyOf("Basic dXNlcg==", ""), "");
  EXPECT_EQ(ApiKeyOf("Bearer", ""), "");
  EXPECT_EQ(ApiKeyOf("Bearer ", ""), "");
  EXPECT_EQ(ApiKeyOf("", ""), "");
  EXPECT_EQ(ApiKeyOf("", " sk-2 "), "sk-2");
  EXPECT_EQ(ApiKeyOf("Basic dXNlcg==", "sk-2"), "sk-2");
  EXPECT_EQ(ApiKeyOf("Bearer sk-1", "sk-2"), "sk-1");
}

TEST(TenantsTest, WithoutAKeyTheTenantIsZero) {
  const Tenant nobody = Tenants("secret").Of("", "");
  EXPECT_EQ(nobody.id, 0u);
  EXPECT_EQ(nobody.cache_salt, 0u);
}

TEST(TenantsTest, DifferentKeysAndSaltsGiveDifferentTenants) {
  const Tenants tenants("secret");
  std::set<uint64_t> salts, ids;
  for (const auto& [key, salt] :
       {std::pair{"a", ""}, {"b", ""}, {"", "a"}, {"", "ab"}, {"a", "b"}, {"ab", ""}, {"a", "a"}}) {
    const Tenant tenant = tenants.Of(key, salt);
    EXPECT_TRUE(salts.insert(tenant.cache_salt).second) << key << " " << salt;
    ids.insert(tenant.id);
  }
  EXPECT_EQ(salts.count(0), 0u);
  EXPECT_EQ(ids.size(), 4u);  // none, a, b, ab
  EXPECT_EQ(tenants.Of("a", "").id, tenants.Of("a", "salt").id);
}

TEST(TenantsTest, TenantsDependOnTheSecret) {
  const Tenant one = Tenants("secret").Of("a", "s");
  const Tenant same = Tenants("secret").Of("a", "s");
  const Tenant other = Tenants("").Of("a", "s");
  EXPECT_EQ(one.id, same.id);
  EXPECT_EQ(one.cache_salt, same.cache_salt);
  EXPECT_NE(one.id, other.id);
  EXPECT_NE(one.cache_salt, other.cache_salt);
}

}  // namespace
}  // namespace specfabric::gateway
