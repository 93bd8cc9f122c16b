#include "gateway/cors.h"

#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::gateway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

std::map<std::string, std::string> MapOf(const HttpHeaders& headers) {
  return {headers.begin(), headers.end()};
}

HttpRequest PreflightOf(const std::string& origin) {
  HttpRequest request;
  request.method = "OPTIONS";
  request.origin = origin;
  request.requested_method = "POST";
  return request;
}

TEST(CorsTest, OriginsAreSchemeHostAndPort) {
  for (const char* good :
       {"*", "https://app.example.com", "http://localhost:3000", "http://[::1]:80",
        "chrome-extension://abcdef", "HTTPS://App.Example.com"}) {
    EXPECT_TRUE(Cors::Check(good).ok()) << good;
  }
  for (const char* bad : {"", "app.example.com", "https://", "://x", "https://x/", "https://x/path",
                          "https://x?y", "https://a b", "null", "https://*.example.com",
                          "https://a\nb", "https://u@x", "ht tp://x"}) {
    const absl::Status refused = Cors::Check(bad);
    EXPECT_FALSE(refused.ok()) << bad;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("such as https://app.example.com"));
  }
}

TEST(CorsTest, WithoutAListThereAreNoHeaders) {
  const Cors cors({});
  EXPECT_TRUE(cors.Headers("https://a.example").empty());
  EXPECT_FALSE(cors.IsPreflight(PreflightOf("https://a.example")));
}

TEST(CorsTest, AListNamesTheOriginThatAsks) {
  const Cors cors({"https://A.example", "http://localhost:3000"});
  const auto headers = MapOf(cors.Headers("https://a.example"));
  EXPECT_EQ(headers.at("Access-Control-Allow-Origin"), "https://a.example");
  EXPECT_EQ(headers.at("Vary"), "Origin");
  EXPECT_THAT(headers.at("Access-Control-Expose-Headers"), HasSubstr("x-request-id"));
  EXPECT_EQ(MapOf(cors.Headers("http://localhost:3000")).count("Access-Control-Allow-Origin"), 1u);
  // The answer depends on the origin also where there is none, or another one.
  for (const char* other : {"", "https://b.example", "https://a.example:8443", "http://a.example",
                            "https://a.example.evil", "null"}) {
    EXPECT_THAT(cors.Headers(other), ElementsAre(Pair("Vary", "Origin"))) << other;
  }
}

TEST(CorsTest, AStarAllowsEveryPage) {
  const Cors cors({"https://a.example", "*"});
  for (const char* origin : {"https://b.example", "null"}) {
    const auto headers = MapOf(cors.Headers(origin));
    EXPECT_EQ(headers.at("Access-Control-Allow-Origin"), "*");
    EXPECT_EQ(headers.count("Vary"), 0u);
  }
  EXPECT_TRUE(cors.Headers("").empty()) << "not a page";
}

TEST(CorsTest, Preflight) {
  const Cors cors({"https://a.example"});
  HttpRequest request = PreflightOf("https://a.example");
  request.requested_headers = "authorization,content-type, x-stainless-os";
  ASSERT_TRUE(cors.IsPreflight(request));
  const auto answer = cors.Preflight(request);
  ASSERT_TRUE(std::holds_alternative<HttpResponse>(answer));
  const auto& response = std::get<HttpResponse>(answer);
  EXPECT_EQ(response.status, 204);
  EXPECT_EQ(response.body, "");
  const auto headers = MapOf(response.headers);
  EXPECT_EQ(headers.at("Access-Control-Allow-Headers"), request.requested_headers);
  EXPECT_EQ(headers.at("Access-Control-Allow-Methods"), "GET, HEAD, POST");
  EXPECT_EQ(headers.at("Access-Control-Max-Age"), "7200");

  request.requested_headers = "x: y";  // is not echoed
  const auto without = MapOf(std::get<HttpResponse>(cors.Preflight(request)).headers);
  EXPECT_EQ(without.count("Access-Control-Allow-Headers"), 0u);
}

TEST(CorsTest, APreflightOfAnotherPageIsRefused) {
  const Cors cors({"https://a.example"});
  const auto answer = cors.Preflight(PreflightOf("https://b.example"));
  ASSERT_TRUE(std::holds_alternative<ApiError>(answer));
  EXPECT_EQ(std::get<ApiError>(answer).status, 403);
  EXPECT_THAT(std::get<ApiError>(answer).message, HasSubstr("'https://b.example'"));
}

TEST(CorsTest, OtherOptionsRequestsAreNoPreflights) {
  const Cors cors({"*"});
  HttpRequest request = PreflightOf("https://a.example");
  EXPECT_TRUE(cors.IsPreflight(request));
  request.method = "POST";
  EXPECT_FALSE(cors.IsPreflight(request));
  request = PreflightOf("");
  EXPECT_FALSE(cors.IsPreflight(request));
  request = PreflightOf("https://a.example");
  request.requested_method.clear();
  EXPECT_FALSE(cors.IsPreflight(request));
}

}  // namespace
}  // namespace specfabric::gateway
