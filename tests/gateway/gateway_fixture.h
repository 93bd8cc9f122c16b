#ifndef SPECFABRIC_TESTS_GATEWAY_GATEWAY_FIXTURE_H_
#define SPECFABRIC_TESTS_GATEWAY_GATEWAY_FIXTURE_H_

// A gateway between a real HTTP client and fake targets over a real link, in one process.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gateway/gateway.h"
#include "gateway/json_fields.h"
#include "gtest/gtest.h"
#include "tests/gateway/fake_target.h"
#include "tests/gateway/http_client.h"
#include "tests/tokenizer/fixture.h"

namespace specfabric::gateway {

class GatewayFixture : public ::testing::Test {
 protected:
  FakeTargetOptions TargetOptions() const {
    FakeTargetOptions options;
    options.corpus =
        tokenizer_->Encode("that he said: the light is right, \u6F22 over there. ", false).value();
    options.vocabulary = tokenizer_->vocab_size();
    options.tokenizer_fingerprint = tokenizer_->Fingerprint();
    return options;
  }
  FakeTarget& AddTarget(FakeTargetOptions options) {
    targets_.push_back(std::make_unique<FakeTarget>(std::move(options)));
    return *targets_.back();
  }
  FakeTarget& AddTarget() { return AddTarget(TargetOptions()); }

  // Starts a gateway with all targets and waits until `up` of them are connected.
  void StartGateway(GatewayOptions options, int up) {
    options.listen = "127.0.0.1:0";
    if (options.model_name.empty()) options.model_name = "m";
    options.tokenizer = tokenizer_;
    options.version = "1.2.3";
    for (const auto& target : targets_) options.targets.push_back(target->address());
    auto gateway = Gateway::Start(std::move(options), &registry_);
    ASSERT_TRUE(gateway.ok()) << gateway.status();
    gateway_ = *std::move(gateway);
    WaitFor([&] { return Metric("specfabric_gateway_targets_up") == up; }, "targets are up");
  }
  void StartGateway() { StartGateway({}, static_cast<int>(targets_.size())); }

  HttpClient Client() const { return HttpClient(gateway_->listen_address()); }

  Json Ok(const ClientResponse& response) const {
    EXPECT_EQ(response.status, 200) << response.body;
    Json json = Json::parse(response.body, nullptr, false);
    EXPECT_FALSE(json.is_discarded()) << response.body;
    return json;
  }
  Json Complete(const std::string& body) const {
    return Ok(Client().Post("/v1/completions", body));
  }
  // The message of OpenAI's error object.
  std::string ErrorOf(const ClientResponse& response, int status) const {
    EXPECT_EQ(response.status, status) << response.body;
    Json json = Json::parse(response.body, nullptr, false);
    if (json.is_discarded() || !json.contains("error") || json["error"].size() != 4) {
      ADD_FAILURE() << response.body;
      return "";
    }
    return json["error"]["message"].get<std::string>();
  }

  // The text of a fake target's first `count` tokens after `prompt`.
  std::string TextOf(uint64_t seed, int32_t count) const {
    return tokenizer_->Decode(targets_[0]->Output(seed, count), true).value();
  }

  // The value of the series `name`, labels included; -1 if there is none.
  double Metric(const std::string& name) {
    const std::string text = "\n" + registry_.Render();
    const size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
  }

  // Time limit after which the test fails.
  static void WaitFor(const std::function<bool()>& condition, const char* what) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) FAIL() << "still not so: " << what;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_ =
      tokenizer::LoadFixture("byte_level_words");
  metrics::Registry registry_;
  std::vector<std::unique_ptr<FakeTarget>> targets_;
  std::unique_ptr<Gateway> gateway_;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_TESTS_GATEWAY_GATEWAY_FIXTURE_H_
