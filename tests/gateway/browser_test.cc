// What web pages and proxies need of the gateway's HTTP: CORS, x-request-id, Date, headers of
// streams.

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gateway/gateway_fixture.h"

namespace specfabric::gateway {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

constexpr const char* kPage = "https://page.example";
constexpr const char* kPrompt = R"({"prompt": "no", "max_tokens": 9, "seed": 4})";
constexpr const char* kStream = R"({"prompt": "no", "max_tokens": 9, "seed": 4, "stream": true})";

class BrowserTest : public GatewayFixture {
 protected:
  void Start(const std::vector<std::string>& origins) {
    AddTarget();
    GatewayOptions options;
    options.cors_origins = origins;
    options.max_body_bytes = 1000;
    StartGateway(std::move(options), 1);
  }
  // A client of a page's script.
  HttpClient Page(const std::string& origin = kPage) const {
    HttpClient client = Client();
    client.SetHeader("Origin: " + origin);
    return client;
  }
  // "" where the page may not read the answer.
  static std::string Allowed(const ClientResponse& response) {
    const auto found = response.headers.find("access-control-allow-origin");
    return found == response.headers.end() ? "" : found->second;
  }
};

TEST_F(BrowserTest, APreflightIsAnswered) {
  Start({kPage});
  HttpClient client = Page();
  client.SetHeader("Access-Control-Request-Method: POST");
  client.SetHeader("Access-Control-Request-Headers: authorization,content-type");
  const ClientResponse answer = client.Request("OPTIONS", "/v1/chat/completions", "");
  EXPECT_EQ(answer.status, 204);
  EXPECT_EQ(answer.headers.count("content-length"), 0u);
  EXPECT_EQ(answer.headers.count("content-type"), 0u);
  EXPECT_EQ(Allowed(answer), kPage);
  EXPECT_EQ(answer.headers.at("access-control-allow-headers"), "authorization,content-type");
  EXPECT_EQ(answer.headers.at("vary"), "Origin");
  EXPECT_EQ(Metric(R"(specfabric_gateway_requests_total{code="204",endpoint="other"})"), 1);
  EXPECT_EQ(client.Get("/livez").status, 200) << "the connection stays open";

  HttpClient other = Page("https://other.example");
  other.SetHeader("Access-Control-Request-Method: POST");
  const ClientResponse refused = other.Request("OPTIONS", "/v1/chat/completions", "");
  EXPECT_THAT(ErrorOf(refused, 403), HasSubstr("https://other.example"));
  EXPECT_EQ(Allowed(refused), "");
  EXPECT_EQ(Client().Request("OPTIONS", "/livez", "").status, 405) << "not a preflight";
}

TEST_F(BrowserTest, AnswersSayWhichPageMayReadThem) {
  Start({kPage});
  const ClientResponse whole = Page().Post("/v1/completions", kPrompt);
  EXPECT_EQ(whole.status, 200);
  EXPECT_EQ(Allowed(whole), kPage);
  EXPECT_THAT(whole.headers.at("access-control-expose-headers"), HasSubstr("x-request-id"));
  HttpClient client = Page();
  const ClientResponse stream = client.Open("/v1/completions", kStream);
  EXPECT_EQ(stream.status, 200);
  EXPECT_EQ(Allowed(stream), kPage);
  EXPECT_EQ(stream.headers.at("vary"), "Origin");
  EXPECT_EQ(client.RestOfEvents().back(), "[DONE]");
  const ClientResponse other = Page("https://other.example").Post("/v1/completions", kPrompt);
  EXPECT_EQ(other.status, 200);
  EXPECT_EQ(Allowed(other), "");
  EXPECT_EQ(other.headers.at("vary"), "Origin");
}

// Otherwise a page's script sees a network error where there is a reason.
TEST_F(BrowserTest, PagesMayReadErrorsToo) {
  Start({"*"});
  EXPECT_EQ(Allowed(Page().Get("/nothing")), "*");
  EXPECT_EQ(Allowed(Page().Post("/v1/completions", "{")), "*");
  EXPECT_EQ(Allowed(Page().Get("/v1/completions")), "*");
  const ClientResponse large = Page().Post("/v1/completions", std::string(2000, ' '));
  EXPECT_EQ(large.status, 413);
  EXPECT_EQ(Allowed(large), "*");
  gateway_->Drain();
  const ClientResponse draining = Page().Post("/v1/completions", kPrompt);
  EXPECT_EQ(draining.status, 503);
  EXPECT_EQ(Allowed(draining), "*");
  EXPECT_THAT(draining.headers.at("access-control-expose-headers"), HasSubstr("retry-after"));
}

TEST_F(BrowserTest, WithoutAListNothingOfItIsThere) {
  Start({});
  HttpClient client = Page();
  client.SetHeader("Access-Control-Request-Method: POST");
  EXPECT_EQ(client.Request("OPTIONS", "/v1/completions", "").status, 405);
  const ClientResponse answer = client.Post("/v1/completions", kPrompt);
  EXPECT_EQ(answer.status, 200);
  for (const auto& [name, value] : answer.headers) {
    EXPECT_FALSE(name.starts_with("access-control") || name == "vary") << name;
  }
}

TEST_F(BrowserTest, EveryAnswerHasARequestIdAndADate) {
  Start({});
  HttpClient named = Client();
  named.SetHeader("X-Request-Id: page-17");
  for (const char* body : {kPrompt, "{"}) {
    const ClientResponse answer = named.Post("/v1/completions", body);
    EXPECT_EQ(answer.headers.at("x-request-id"), "page-17");
    EXPECT_THAT(answer.headers.at("date"), HasSubstr(" GMT"));
  }
  HttpClient stream = Client();
  stream.SetHeader("X-Request-Id: page-18");
  const ClientResponse header = stream.Open("/v1/completions", kStream);
  EXPECT_EQ(header.headers.at("x-request-id"), "page-18");
  EXPECT_THAT(header.headers.at("date"), HasSubstr(" GMT"));
  stream.RestOfEvents();

  HttpClient unnamed = Client();
  const std::string first = unnamed.Get("/livez").headers.at("x-request-id");
  EXPECT_THAT(first, MatchesRegex("req-[0-9a-f]+"));
  EXPECT_NE(unnamed.Get("/livez").headers.at("x-request-id"), first);
  const ClientResponse large = Client().Post("/v1/completions", std::string(2000, ' '));
  EXPECT_EQ(large.status, 413);
  EXPECT_THAT(large.headers.at("x-request-id"), MatchesRegex("req-[0-9a-f]+"));
}

TEST_F(BrowserTest, StreamsAreNotBufferedByProxies) {
  Start({});
  HttpClient client = Client();
  const ClientResponse stream = client.Open("/v1/completions", kStream);
  EXPECT_EQ(stream.headers.at("x-accel-buffering"), "no");
  EXPECT_EQ(stream.headers.at("cache-control"), "no-cache");
  EXPECT_EQ(client.RestOfEvents().back(), "[DONE]");
  EXPECT_EQ(Client().Post("/v1/completions", kPrompt).headers.count("x-accel-buffering"), 0u);
}

}  // namespace
}  // namespace specfabric::gateway
