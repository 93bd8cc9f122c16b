// The gateway when clients or targets disconnect, fail or drain, and when it ends itself.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/no_descriptors.h"
#include "tests/base/rest_without_descriptors.h"
#include "tests/gateway/gateway_fixture.h"

namespace specfabric::gateway {
namespace {

using ::testing::HasSubstr;

class GatewayFailureTest : public GatewayFixture {
 protected:
  FakeTarget& AddStalling(int32_t after) {
    FakeTargetOptions options = TargetOptions();
    options.stall_after = after;
    return AddTarget(std::move(options));
  }
  // Text and token ids of a stream of one choice.
  struct Collected {
    std::string text;
    Json ids = Json::array();
    void Take(const std::string& event) {
      const Json choice = Json::parse(event)["choices"][0];
      text += choice["text"].get<std::string>();
      for (const Json& id : choice["token_ids"]) ids.push_back(id);
    }
    // Reads to the end; returns the last event before [DONE].
    std::string TakeAll(HttpClient& client) {
      std::string last;
      for (std::string event = client.NextEvent(); event != "[DONE]"; event = client.NextEvent()) {
        if (event.empty()) {
          ADD_FAILURE() << "the stream broke off";
          break;
        }
        Take(event);
        last = event;
      }
      return last;
    }
  };
};

TEST_F(GatewayFailureTest, ClosingAStreamCancelsIt) {
  FakeTarget& target = AddStalling(6);
  StartGateway();
  HttpClient client = Client();
  client.Open("/v1/completions", R"({"prompt": "no", "max_tokens": 90, "stream": true})");
  client.NextEvent();
  EXPECT_TRUE(target.cancels().empty());
  client.Close();
  // Once, and again for each message that crossed it.
  WaitFor([&] { return !target.cancels().empty(); }, "the target is told");
  EXPECT_EQ(target.cancels()[0].request_id, target.submits()[0].request_id);
  WaitFor([&] { return gateway_->in_flight() == 0; }, "the request is over");
  EXPECT_EQ(Metric("specfabric_gateway_client_disconnects_total"), 1);
  EXPECT_EQ(Metric("specfabric_gateway_requests_total{code=\"499\",endpoint=\"/v1/completions\"}"),
            1);
}

TEST_F(GatewayFailureTest, ClosingBeforeTheAnswerCancelsIt) {
  FakeTarget& target = AddStalling(0);
  StartGateway();
  HttpClient client = Client();
  client.SendRaw(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 34\r\n\r\n"
      R"({"prompt": "no", "max_tokens": 90})");
  WaitFor([&] { return target.submits().size() == 1; }, "the target has it");
  client.Close();
  // Once, and again for each message that crossed it.
  WaitFor([&] { return !target.cancels().empty(); }, "the target is told");
}

TEST_F(GatewayFailureTest, TextOfALostTargetContinuesOnAnother) {
  AddStalling(20);
  AddStalling(20);
  StartGateway();
  Collected got;
  HttpClient client = Client();
  client.Open("/v1/completions", R"({"prompt": "no", "max_tokens": 60, "seed": 5, "stream": true,
                                     "return_token_ids": true})");
  while (got.ids.size() < 20) got.Take(client.NextEvent());
  const size_t chosen = targets_[0]->submits().empty() ? 1 : 0;
  EXPECT_TRUE(targets_[1 - chosen]->submits().empty());
  targets_[chosen]->Die();
  got.TakeAll(client);
  EXPECT_EQ(got.text, TextOf(5, 60));
  EXPECT_EQ(got.ids, Json(targets_[0]->Output(5, 60)));
  const auto submits = targets_[1 - chosen]->submits();
  ASSERT_EQ(submits.size(), 1u);
  EXPECT_EQ(submits[0].sequence.generated, targets_[0]->Output(5, 20));
  EXPECT_EQ(submits[0].sequence.attempt, 1u);
  EXPECT_EQ(submits[0].sequence.sampling.seed, 5u);
  EXPECT_EQ(Metric("specfabric_gateway_resubmissions_total"), 1);
}

TEST_F(GatewayFailureTest, AHungTargetIsDroppedDespiteItsConnection) {
  AddStalling(20);
  AddStalling(20);
  GatewayOptions options;
  options.stall_timeout = base::kSecond;
  StartGateway(std::move(options), 2);
  Collected got;
  HttpClient client = Client();
  client.Open("/v1/completions", R"({"prompt": "no", "max_tokens": 60, "seed": 5, "stream": true,
                                     "return_token_ids": true})");
  got.TakeAll(client);
  EXPECT_EQ(got.ids, Json(targets_[0]->Output(5, 60)));
  EXPECT_EQ(Metric("specfabric_gateway_stalled_targets_total"), 1);
  EXPECT_EQ(Metric("specfabric_gateway_resubmissions_total"), 1);
  // Its link reconnects, but it gets no work.
  WaitFor([&] { return Metric("specfabric_fabric_reconnects_total") == 1; }, "it is connected");
  EXPECT_EQ(Metric("specfabric_gateway_targets_up"), 1);
  EXPECT_EQ(targets_[0]->submits().size() + targets_[1]->submits().size(), 2u);
}

TEST_F(GatewayFailureTest, ARestartedTargetContinuesTheText) {
  FakeTarget& target = AddStalling(20);
  GatewayOptions options;
  options.target_wait = 60 * base::kSecond;
  StartGateway(std::move(options), 1);
  Collected got;
  HttpClient client = Client();
  client.Open("/v1/completions", R"({"prompt": "no", "max_tokens": 60, "seed": 5, "stream": true,
                                     "return_token_ids": true})");
  while (got.ids.size() < 20) got.Take(client.NextEvent());
  FakeTargetOptions again = TargetOptions();
  again.listen = target.address();
  again.numerics_fingerprint = 2;  // another build: exact in distribution only
  target.Die();
  AddTarget(std::move(again));
  const std::string last = got.TakeAll(client);
  EXPECT_EQ(got.ids, Json(targets_[1]->Output(5, 60)));
  EXPECT_EQ(Json::parse(last)["exactness"], "distribution");
}

TEST_F(GatewayFailureTest, WithoutATargetAnswersAre503) {
  GatewayOptions options;
  options.context = 100;
  options.target_wait = 200 * base::kMillisecond;
  options.targets = {"127.0.0.1:1"};
  StartGateway(std::move(options), 0);
  for (const char* stream : {"false", "true"}) {
    const auto response = Client().Post(
        "/v1/completions", std::string(R"({"prompt": "no", "stream": )") + stream + "}");
    EXPECT_THAT(ErrorOf(response, 503), HasSubstr("no target"));
    EXPECT_EQ(response.headers.at("retry-after"), "1");
  }
  ErrorOf(Client().Get("/readyz"), 503);
  EXPECT_EQ(Client().Get("/livez").status, 200);
}

TEST_F(GatewayFailureTest, TheStreamEndsWithAnErrorIfNoTargetReturns) {
  FakeTarget& target = AddStalling(6);
  GatewayOptions options;
  options.target_wait = 200 * base::kMillisecond;
  StartGateway(std::move(options), 1);
  HttpClient client = Client();
  client.Open("/v1/completions", R"({"prompt": "no", "max_tokens": 60, "stream": true})");
  client.NextEvent();
  target.Die();
  auto events = client.RestOfEvents();
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(Json::parse(events[events.size() - 2])["error"]["code"], "no_target");
}

TEST_F(GatewayFailureTest, ADrainingGatewayRefusesAndFinishes) {
  AddStalling(6);
  StartGateway();
  HttpClient client = Client();
  client.Open("/v1/completions", R"({"prompt": "no", "max_tokens": 60, "stream": true})");
  client.NextEvent();
  gateway_->Drain();
  EXPECT_EQ(gateway_->in_flight(), 1);
  const auto refused = Client().Post("/v1/completions", R"({"prompt": "no"})");
  EXPECT_THAT(ErrorOf(refused, 503), HasSubstr("draining"));
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  ErrorOf(Client().Get("/readyz"), 503);
}

TEST_F(GatewayFailureTest, RequestsBeyondTheLimitAreRefused) {
  AddStalling(0);
  GatewayOptions options;
  options.max_choices = 2;
  StartGateway(std::move(options), 1);
  HttpClient waiting = Client();
  waiting.SendRaw(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 34\r\n\r\n"
      R"({"prompt": "no", "max_tokens": 90})");
  WaitFor([&] { return targets_[0]->submits().size() == 1; }, "one is under way");
  const auto refused = Client().Post("/v1/completions", R"({"prompt": "no", "n": 2})");
  EXPECT_THAT(ErrorOf(refused, 429), HasSubstr("room"));
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
}

TEST_F(GatewayFailureTest, ARequestThatTakesTooLongEndsWith504) {
  AddStalling(0);
  GatewayOptions options;
  options.stream_header_delay = 60 * base::kSecond;
  StartGateway(std::move(options), 1);
  const auto late = Client().Post("/v1/completions", R"({"prompt": "no", "timeout": 0.2})");
  EXPECT_THAT(ErrorOf(late, 504), HasSubstr("0.2 s"));
  WaitFor([&] { return !targets_[0]->cancels().empty(); }, "the target is told");
  HttpClient client = Client();
  const auto head =
      client.Open("/v1/completions", R"({"prompt": "no", "stream": true, "timeout": 0.2})");
  EXPECT_EQ(head.status, 504);  // there was no output to begin a stream with
  // Counted after the answer was sent, so the client may see the answer first.
  const std::string counted =
      "specfabric_gateway_requests_total{code=\"504\",endpoint=\"/v1/completions\"}";
  WaitFor([&] { return Metric(counted) == 2; }, "both are counted");
}

TEST_F(GatewayFailureTest, AStreamThatTakesTooLongEndsWithAnError) {
  AddStalling(6);
  GatewayOptions options;
  options.request_timeout = 300 * base::kMillisecond;
  StartGateway(std::move(options), 1);
  HttpClient client = Client();
  // The gateway's limit is the shorter one.
  const auto head = client.Open(
      "/v1/completions", R"({"prompt": "no", "max_tokens": 60, "stream": true, "timeout": 50})");
  EXPECT_EQ(head.status, 200);
  const auto events = client.RestOfEvents();
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events.back(), "[DONE]");
  const Json error = Json::parse(events[events.size() - 2])["error"];
  EXPECT_EQ(error["code"], "timeout");
  EXPECT_EQ(error["type"], "timeout_error");
  WaitFor([&] { return !targets_[0]->cancels().empty(); }, "the target is told");
}

TEST_F(GatewayFailureTest, RefusalsOfTargets) {
  FakeTargetOptions options = TargetOptions();
  options.refusal = schemas::Finish::kOverloaded;
  AddTarget(options);
  StartGateway();
  EXPECT_THAT(ErrorOf(Client().Post("/v1/completions", R"({"prompt": "no"})"), 429),
              HasSubstr("because the test says so"));
  gateway_.reset();
  targets_.clear();
  options.refusal = schemas::Finish::kRejected;
  AddTarget(options);
  StartGateway();
  EXPECT_THAT(ErrorOf(Client().Post("/v1/completions", R"({"prompt": "no"})"), 400),
              HasSubstr("because the test says so"));
}

TEST_F(GatewayFailureTest, ADrainingTargetGetsNoNewRequests) {
  FakeTarget& first = AddTarget();
  FakeTarget& second = AddTarget();
  StartGateway();
  WaitFor([&] { return first.peers() == 1; }, "the target knows the gateway");
  first.SendDrain();
  WaitFor([&] { return Metric("specfabric_gateway_targets_up") == 1; }, "one is left");
  for (int i = 0; i < 4; ++i) Complete(R"({"prompt": "no", "max_tokens": 3})");
  EXPECT_TRUE(first.submits().empty());
  EXPECT_EQ(second.submits().size(), 4u);
}

TEST_F(GatewayFailureTest, ATargetOfAnotherVocabularyIsRefused) {
  FakeTargetOptions options = TargetOptions();
  options.vocabulary += 1;
  AddTarget(std::move(options));
  AddTarget();
  StartGateway({}, 1);
  WaitFor([&] { return Metric("specfabric_fabric_refused_hellos_total") >= 1; }, "it is refused");
  for (int i = 0; i < 3; ++i) Complete(R"({"prompt": "no", "max_tokens": 3})");
  EXPECT_TRUE(targets_[0]->submits().empty());
}

TEST_F(GatewayFailureTest, LargeBodiesAreRefused) {
  AddTarget();
  GatewayOptions options;
  options.max_body_bytes = 1 << 20;
  StartGateway(std::move(options), 1);
  HttpClient client = Client();
  const auto response =
      client.Post("/v1/completions", "{\"prompt\": \"" + std::string(8 << 20, 'x') + "\"}");
  EXPECT_THAT(ErrorOf(response, 413), HasSubstr("1048576"));
  HttpClient chunked = Client();
  chunked.SendRaw(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n200000\r\n" +
      std::string(2 << 20, 'x') + "\r\n0\r\n\r\n");
  ErrorOf(chunked.ReadResponse(), 413);
}

TEST_F(GatewayFailureTest, TheGatewayCanStopDuringStreams) {
  AddStalling(6);
  StartGateway();
  HttpClient streaming = Client(), waiting = Client(), idle = Client();
  streaming.Open("/v1/completions", R"({"prompt": "no", "max_tokens": 60, "stream": true})");
  streaming.NextEvent();
  waiting.SendRaw(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 34\r\n\r\n"
      R"({"prompt": "no", "max_tokens": 90})");
  WaitFor([&] { return targets_[0]->submits().size() == 2; }, "both are under way");
  gateway_.reset();
  WaitFor([&] { return targets_[0]->cancels().size() >= 2; }, "the target is told");
  EXPECT_EQ(waiting.ReadResponse().status, 0);
}

TEST_F(GatewayFailureTest, WithoutDescriptorsItNeitherSpinsNorFloodsTheLog) {
  AddTarget();
  StartGateway();
  base::ExpectRestWithoutDescriptors(gateway_->listen_address());
}

TEST_F(GatewayFailureTest, APortInUse) {
  AddTarget();
  StartGateway();
  GatewayOptions options;
  options.listen = gateway_->listen_address();
  options.tokenizer = tokenizer_;
  metrics::Registry registry;
  const auto second = Gateway::Start(std::move(options), &registry);
  EXPECT_TRUE(absl::IsAlreadyExists(second.status()));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(gateway_->listen_address()));
}

}  // namespace
}  // namespace specfabric::gateway
