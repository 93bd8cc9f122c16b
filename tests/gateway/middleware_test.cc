// API keys and the access log, over HTTP.

#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/log_capture.h"
#include "tests/base/temp_dir.h"
#include "tests/gateway/gateway_fixture.h"

namespace specfabric::gateway {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kPrompt = R"({"prompt": "no", "max_tokens": 9, "seed": 4})";
constexpr const char* kStream = R"({"prompt": "no", "max_tokens": 9, "seed": 4, "stream": true})";

class ApiKeyTest : public GatewayFixture {
 protected:
  ApiKeyTest() {
    dir_.Write("keys", "sk-one\nsk-two\n");
    AddTarget();
    GatewayOptions options;
    auto keys = ApiKeyFile::Open(dir_.File("keys"));
    EXPECT_TRUE(keys.ok()) << keys.status();
    options.api_keys = *keys;
    options.reload_interval = 5 * base::kMillisecond;
    options.cors_origins = {"*"};
    StartGateway(std::move(options), 1);
  }
  HttpClient With(const std::string& header) const {
    HttpClient client = Client();
    client.SetHeader(header);
    return client;
  }
  int StatusOf(const std::string& header) const {
    return With(header).Post("/v1/completions", kPrompt).status;
  }

  base::TempDir dir_;
};

TEST_F(ApiKeyTest, ValidKeysAreAccepted) {
  for (const char* header : {"Authorization: Bearer sk-one", "authorization: bearer sk-two",
                             "x-api-key: sk-one", "X-Api-Key: sk-two"}) {
    EXPECT_EQ(StatusOf(header), 200) << header;
  }
  // Both kinds of header with one key are one tenant.
  const auto submits = targets_[0]->submits();
  EXPECT_EQ(submits[0].sequence.tenant, submits[2].sequence.tenant);
  EXPECT_NE(submits[0].sequence.tenant, submits[1].sequence.tenant);
}

TEST_F(ApiKeyTest, OthersAreRefused) {
  for (const char* header :
       {"Authorization: Bearer sk-three", "Authorization: Bearer", "Authorization: Basic sk-one",
        "Authorization: sk-one", "x-api-key: sk", "X-Other: sk-one"}) {
    const ClientResponse refused = With(header).Post("/v1/completions", kPrompt);
    EXPECT_THAT(ErrorOf(refused, 401), Not(HasSubstr("sk-three")));
    EXPECT_EQ(Json::parse(refused.body)["error"]["code"], "invalid_api_key");
    EXPECT_EQ(refused.headers.at("www-authenticate"), "Bearer");
    EXPECT_EQ(refused.headers.count("x-request-id"), 1u);
  }
  for (const char* path : {"/v1/models", "/tokenize", "/nothing", "/v1/models/m"}) {
    ErrorOf(Client().Get(path), 401);
  }
  EXPECT_EQ(With("Authorization: Bearer sk-one").Get("/nothing").status, 404);
  EXPECT_TRUE(targets_[0]->submits().empty());
  EXPECT_EQ(Metric(R"(specfabric_gateway_requests_total{code="401",endpoint="other"})"), 10);
}

TEST_F(ApiKeyTest, ProbesAndMetricsNeedNone) {
  for (const char* path : {"/livez", "/readyz", "/health", "/metrics", "/version"}) {
    EXPECT_EQ(Client().Get(path).status, 200) << path;
  }
}

TEST_F(ApiKeyTest, ARefusalDoesNotWaitForTheBody) {
  HttpClient client = Client();
  client.SendRaw(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n"
      "Expect: 100-continue\r\n\r\n");
  ErrorOf(client.ReadResponse(), 401);  // and no "100 Continue" before it
}

// A preflight carries no key, and the page has to be able to read why it was refused.
TEST_F(ApiKeyTest, PagesLearnThatTheirKeyIsWrong) {
  HttpClient page = With("Origin: https://page.example");
  page.SetHeader("Access-Control-Request-Method: POST");
  page.SetHeader("Access-Control-Request-Headers: authorization");
  EXPECT_EQ(page.Request("OPTIONS", "/v1/completions", "").status, 204);
  const ClientResponse refused = With("Origin: https://page.example").Post("/v1/completions", "");
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.headers.at("access-control-allow-origin"), "*");
}

TEST_F(ApiKeyTest, ANewFileCountsWithoutARestart) {
  dir_.Write("next", "sk-three\n");
  std::filesystem::rename(dir_.File("next"), dir_.File("keys"));
  WaitFor([&] { return StatusOf("x-api-key: sk-three") == 200; }, "the new key is accepted");
  EXPECT_EQ(StatusOf("x-api-key: sk-one"), 401);
}

class AccessLogTest : public GatewayFixture {
 protected:
  void Start(bool on) {
    AddTarget();
    GatewayOptions options;
    options.access_log = on;
    options.max_body_bytes = 1000;
    StartGateway(std::move(options), 1);
  }
  // What was logged until the gateway has ended.
  std::string Lines() {
    gateway_.reset();
    return log_.text();
  }
  base::LogCapture log_;
};

TEST_F(AccessLogTest, EveryRequestIsALine) {
  Start(true);
  HttpClient client = Client();
  client.SetHeader("X-Request-Id: mine");
  const ClientResponse answer = client.Post("/v1/completions?x=secret", kPrompt);
  EXPECT_EQ(answer.status, 200);
  client.SetHeader("Authorization: Bearer sk-one");
  client.Open("/v1/completions", kStream);
  client.RestOfEvents();
  EXPECT_EQ(Client().Get("/no%20status=200%22").status, 404);
  EXPECT_EQ(Client().Get("/a/" + std::string(500, 'x')).status, 404);
  EXPECT_EQ(Client().Post("/tokenize", std::string(2000, ' ')).status, 413);
  const std::string lines = Lines();
  EXPECT_THAT(lines, ContainsRegex("access method=POST path=/v1/completions status=200 bytes=" +
                                   std::to_string(answer.body.size()) +
                                   " ms=[0-9.]+ request_id=mine tenant=none\n"));
  EXPECT_THAT(lines, ContainsRegex("access method=POST path=/v1/completions status=200 "
                                   "bytes=[0-9]+ ms=[0-9.]+ request_id=mine tenant=[0-9a-f]+\n"));
  EXPECT_THAT(lines, HasSubstr("access method=GET path=/no%20status=200%22 status=404"));
  EXPECT_THAT(lines, ContainsRegex("access method=GET path=/a/x+\\.\\.\\. status=404"));
  EXPECT_THAT(lines, ContainsRegex("access method=POST path=/tokenize status=413"));
  EXPECT_EQ(log_.Count("access method="), 5);
  EXPECT_THAT(lines, Not(HasSubstr("secret")));
  EXPECT_THAT(lines, Not(HasSubstr("sk-one")));
}

TEST_F(AccessLogTest, AClientThatLeftIsCode499) {
  FakeTargetOptions target = TargetOptions();
  target.stall_after = 0;
  AddTarget(std::move(target));
  GatewayOptions options;
  options.access_log = true;
  StartGateway(std::move(options), 1);
  HttpClient client = Client();
  client.SendRaw("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
                 std::to_string(std::string(kPrompt).size()) + "\r\n\r\n" + kPrompt);
  WaitFor([&] { return targets_[0]->submits().size() == 1; }, "it is under way");
  client.Close();
  WaitFor([&] { return gateway_->in_flight() == 0; }, "it is over");
  EXPECT_THAT(Lines(), ContainsRegex("path=/v1/completions status=499 bytes=0 "));
}

TEST_F(AccessLogTest, OffByDefault) {
  Start(false);
  EXPECT_EQ(Client().Get("/livez").status, 200);
  EXPECT_THAT(Lines(), Not(HasSubstr("access method")));
}

}  // namespace
}  // namespace specfabric::gateway
