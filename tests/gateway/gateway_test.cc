#include "gateway/gateway.h"

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gateway/gateway_fixture.h"

namespace specfabric::gateway {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class GatewayTest : public GatewayFixture {
 protected:
  GatewayTest() {
    AddTarget();
    StartGateway();
  }
  FakeTarget& target() { return *targets_[0]; }
};

TEST_F(GatewayTest, Completion) {
  const Json answer = Complete(
      R"({"model": "m", "prompt": "no", "max_tokens": 10, "seed": 4, "return_token_ids": true})");
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["text"], TextOf(4, 10));
  EXPECT_EQ(choice["token_ids"], Json(target().Output(4, 10)));
  EXPECT_EQ(choice["prompt_token_ids"], Json(tokenizer_->Encode("no", true).value()));
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 10);
  EXPECT_EQ(answer["usage"]["speculation"], Json({{"rounds", 4},
                                                  {"drafted", 16},
                                                  {"accepted", 8},
                                                  {"verification", "coupled"},
                                                  {"accepted_per_position", {4, 4}}}));
  const Json& metrics = answer["metrics"]["speculative_decoding"];
  EXPECT_EQ(metrics["acceptance_histogram"], Json({0, 0, 4}));
  EXPECT_EQ(metrics["mean_acceptance_length"], 3.0);
  EXPECT_EQ(answer["exactness"], "token");
  EXPECT_EQ(answer["system_fingerprint"], "fp_0000000000000001");
  EXPECT_THAT(answer["id"].get<std::string>(), StartsWith("cmpl-"));
  EXPECT_EQ(Metric("specfabric_gateway_tokens_total{kind=\"output\"}"), 10);
  EXPECT_EQ(Metric("specfabric_gateway_time_to_first_token_seconds_count"), 1);
}

TEST_F(GatewayTest, TheRequestedVerificationIsSubmittedAndReported) {
  const Json distribution =
      Complete(R"({"prompt": "no", "max_tokens": 5, "verification": "traversal"})");
  EXPECT_EQ(distribution["usage"]["speculation"]["verification"], "traversal");
  EXPECT_EQ(distribution["exactness"], "distribution");
  const Json lossy = Complete(R"({"prompt": "no", "max_tokens": 5, "verification": "typical"})");
  EXPECT_EQ(lossy["exactness"], "none");
}

TEST_F(GatewayTest, SubmitsHaveTenantAndSalt) {
  const std::string plain = R"({"prompt": "no", "max_tokens": 3})";
  const std::string salted = R"({"prompt": "no", "max_tokens": 3, "cache_salt": "s"})";
  Complete(plain);
  Complete(salted);
  HttpClient client = Client();
  client.SetHeader("Authorization: Bearer key-1");
  Ok(client.Post("/v1/completions", plain));
  Ok(client.Post("/v1/completions", salted));
  const auto submits = target().submits();
  ASSERT_EQ(submits.size(), 4u);
  EXPECT_EQ(submits[0].sequence.tenant, 0u);
  EXPECT_EQ(submits[0].sequence.cache_salt, 0u);
  EXPECT_EQ(submits[1].sequence.tenant, 0u);
  EXPECT_NE(submits[2].sequence.tenant, 0u);
  EXPECT_EQ(submits[2].sequence.tenant, submits[3].sequence.tenant);
  std::set<uint64_t> salts;
  for (const schemas::Submit& submit : submits) salts.insert(submit.sequence.cache_salt);
  EXPECT_EQ(salts.size(), 4u);
}

TEST_F(GatewayTest, AStreamedCompletionEqualsAWholeOne) {
  HttpClient client = Client();
  const auto head = client.Open("/v1/completions",
                                R"({"prompt": "no", "max_tokens": 50, "seed": 4, "stream": true,
                                    "stream_options": {"include_usage": true}})");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-type"), "text/event-stream");
  auto events = client.RestOfEvents();
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events.back(), "[DONE]");
  events.pop_back();
  const Json usage = Json::parse(events.back());
  EXPECT_EQ(usage["choices"], Json::array());
  EXPECT_EQ(usage["usage"]["completion_tokens"], 50);
  events.pop_back();
  std::string text;
  for (size_t i = 0; i < events.size(); ++i) {
    const Json event = Json::parse(events[i]);
    text += event["choices"][0]["text"].get<std::string>();
    EXPECT_TRUE(event["usage"].is_null());
    EXPECT_EQ(event["choices"][0]["finish_reason"].is_null(), i + 1 < events.size());
  }
  EXPECT_EQ(text, TextOf(4, 50));
  // The connection can be used for another request.
  EXPECT_EQ(client.Get("/livez").status, 200);
}

class CachedPromptTest : public GatewayFixture {
 protected:
  CachedPromptTest() {
    FakeTargetOptions options = TargetOptions();
    options.cached_tokens = 2;
    AddTarget(options);
    StartGateway();
  }
};

TEST_F(CachedPromptTest, CachedTokensCountEachPromptOnce) {
  const std::string prompt = R"({"prompt": [[1, 2, 3], [4]], "n": 2, "max_tokens": 4)";
  const Json whole = Complete(prompt + "}");
  EXPECT_EQ(whole["usage"]["prompt_tokens"], 4);
  EXPECT_EQ(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
  HttpClient client = Client();
  client.Open("/v1/completions",
              prompt + R"(, "stream": true, "stream_options": {"include_usage": true}})");
  const auto events = client.RestOfEvents();
  ASSERT_GE(events.size(), 2u);
  const Json usage = Json::parse(events[events.size() - 2])["usage"];
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 3);
}

TEST_F(CachedPromptTest, ChatsReportThem) {
  const Json answer = Ok(Client().Post(
      "/v1/chat/completions",
      R"({"messages": [{"role": "user", "content": "no"}], "max_completion_tokens": 5})"));
  EXPECT_EQ(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
}

TEST_F(GatewayTest, Chat) {
  const std::string body =
      R"({"messages": [{"role": "user", "content": "no"}], "max_completion_tokens": 5, "seed": 1)";
  const Json answer = Ok(Client().Post("/v1/chat/completions", body + "}"));
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["choices"][0]["message"]["content"], TextOf(1, 5));
  HttpClient client = Client();
  client.Open("/v1/chat/completions", body + R"(, "stream": true})");
  const auto events = client.RestOfEvents();
  std::string text;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const Json delta = Json::parse(events[i])["choices"][0]["delta"];
    EXPECT_EQ(delta.contains("role"), i == 0);
    text += delta.value("content", "");
  }
  EXPECT_EQ(text, TextOf(1, 5));
}

TEST_F(GatewayTest, ChoicesAndPrompts) {
  const Json answer = Complete(R"({"prompt": ["no", "that"], "n": 2, "max_tokens": 8, "seed": 3})");
  ASSERT_EQ(answer["choices"].size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(answer["choices"][i]["index"], i);
    EXPECT_EQ(answer["choices"][i]["text"], TextOf(base::ChoiceSeed(3, i % 2), 8));
  }
  EXPECT_EQ(answer["usage"]["completion_tokens"], 32);
  HttpClient client = Client();
  client.Open("/v1/completions",
              R"({"prompt": ["no", "that"], "n": 2, "max_tokens": 8, "seed": 3, "stream": true})");
  std::vector<std::string> texts(4);
  for (const auto& event : client.RestOfEvents()) {
    if (event == "[DONE]") continue;
    const Json choice = Json::parse(event)["choices"][0];
    texts[choice["index"].get<int>()] += choice["text"].get<std::string>();
  }
  for (int i = 0; i < 4; ++i) EXPECT_EQ(texts[i], answer["choices"][i]["text"]);
}

TEST_F(GatewayTest, AStopStringEndsTheTextAndCancels) {
  const std::string whole = TextOf(2, 60);
  const std::string stop = whole.substr(12, 5);
  const std::string body =
      R"({"prompt": "no", "max_tokens": 100, "seed": 2, "stop": ")" + stop + "\"";
  const Json answer = Complete(body + "}");
  EXPECT_EQ(answer["choices"][0]["text"], whole.substr(0, whole.find(stop)));
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_LT(answer["usage"]["completion_tokens"], 60);
  WaitFor([&] { return !target().cancels().empty(); }, "the target is told");
  HttpClient client = Client();
  client.Open("/v1/completions", body + R"(, "stream": true})");
  std::string text, reason;
  for (const auto& event : client.RestOfEvents()) {
    if (event == "[DONE]") continue;
    const Json choice = Json::parse(event)["choices"][0];
    text += choice["text"].get<std::string>();
    reason = choice.value("finish_reason", Json()).dump();
  }
  EXPECT_EQ(text, answer["choices"][0]["text"]);
  EXPECT_EQ(reason, "\"stop\"");
}

TEST_F(GatewayTest, EchoScoresThePrompt) {
  const Json answer =
      Complete(R"({"prompt": "that he", "max_tokens": 0, "echo": true, "logprobs": 1})");
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["text"], "that he");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 0);
  const auto ids = tokenizer_->Encode("that he", true).value();
  const Json& scores = choice["logprobs"]["token_logprobs"];
  ASSERT_EQ(scores.size(), ids.size());
  EXPECT_TRUE(scores[0].is_null());
  for (size_t i = 1; i < ids.size(); ++i) {
    EXPECT_EQ(scores[i].get<float>(), -0.001f * static_cast<float>(ids[i]));
  }
  const Json more =
      Complete(R"({"prompt": "that he", "max_tokens": 3, "seed": 1, "echo": true, "logprobs": 1})");
  EXPECT_EQ(more["choices"][0]["text"], "that he" + TextOf(1, 3));
  EXPECT_EQ(more["choices"][0]["logprobs"]["tokens"].size(), ids.size() + 3);
}

TEST_F(GatewayTest, ARequestForNoTokensNeedsNoTarget) {
  const Json answer = Complete(R"({"prompt": "no", "max_tokens": 0})");
  EXPECT_EQ(answer["choices"][0]["text"], "");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(target().submits().empty());
  HttpClient client = Client();
  client.Open("/v1/completions", R"({"prompt": "no", "max_tokens": 0, "stream": true})");
  EXPECT_EQ(client.RestOfEvents().size(), 2u);
}

TEST_F(GatewayTest, LongPrompts) {
  const std::string prompt(20 << 10, 'n');  // encoded on the thread for long work
  EXPECT_THAT(ErrorOf(Client().Post("/v1/completions", "{\"prompt\": \"" + prompt + "\"}"), 400),
              HasSubstr("maximum context length is 500 tokens"));
}

TEST_F(GatewayTest, SmallEndpoints) {
  HttpClient client = Client();
  EXPECT_EQ(Ok(client.Get("/v1/models"))["data"][0]["id"], "m");
  EXPECT_EQ(Ok(client.Get("/v1/models/m"))["max_model_len"], 500);
  EXPECT_EQ(client.Get("/v1/models/other").status, 404);
  EXPECT_EQ(Ok(client.Get("/version"))["version"], "1.2.3");
  for (const char* path : {"/livez", "/readyz", "/health"}) {
    EXPECT_EQ(client.Get(path).status, 200) << path;
  }
  EXPECT_THAT(client.Get("/metrics").body, HasSubstr("specfabric_gateway_targets_up 1"));
  const Json tokens = Ok(client.Post("/tokenize", R"({"prompt": "that he"})"));
  EXPECT_EQ(tokens["tokens"], Json(tokenizer_->Encode("that he", true).value()));
  EXPECT_EQ(tokens["max_model_len"], 500);
  const std::string ids = tokens["tokens"].dump();
  EXPECT_EQ(Ok(client.Post("/detokenize", "{\"tokens\": " + ids + "}"))["prompt"], "that he");
}

TEST_F(GatewayTest, Refusals) {
  HttpClient client = Client();
  EXPECT_THAT(ErrorOf(client.Post("/v1/completions", "{"), 400), HasSubstr("JSON"));
  EXPECT_THAT(ErrorOf(client.Post("/v1/completions", R"({"prompt": "a", "n": 0})"), 400),
              HasSubstr("'n'"));
  EXPECT_THAT(ErrorOf(client.Post("/v1/completions", R"({"prompt": "a", "model": "x"})"), 404),
              HasSubstr("'x'"));
  ErrorOf(client.Get("/nothing"), 404);
  const auto method = client.Get("/v1/completions");
  ErrorOf(method, 405);
  EXPECT_EQ(method.headers.at("allow"), "POST");
  const std::string counted =
      "specfabric_gateway_requests_total{code=\"405\",endpoint=\"/v1/completions\"}";
  WaitFor([&] { return Metric(counted) == 1; }, "it is counted");
  EXPECT_TRUE(target().submits().empty());
}

TEST_F(GatewayTest, BrokenHttp) {
  for (const std::string& bytes :
       {std::string("GET\r\n\r\n"), std::string("\x16\x03\x01\x02\x00\x01\x00", 7),
        "GET / HTTP/1.1\r\nX: " + std::string(100000, 'y') + "\r\n\r\n",
        std::string("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n")}) {
    HttpClient client = Client();
    client.SendRaw(bytes);
    const auto response = client.ReadResponse();
    EXPECT_TRUE(response.status == 400 || response.status == 431) << response.status;
  }
  {
    HttpClient cut = Client();
    cut.SendRaw("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc");
  }
  EXPECT_EQ(Client().Get("/livez").status, 200);
}

TEST_F(GatewayTest, PipelinedRequests) {
  HttpClient client = Client();
  const std::string body = R"({"prompt": "no", "max_tokens": 4, "seed": 4})";
  const std::string post =
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
      "\r\n\r\n" + body;
  client.SendRaw(post + post + "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string text = TextOf(4, 4);
  EXPECT_EQ(Ok(client.ReadResponse())["choices"][0]["text"], text);
  EXPECT_EQ(Ok(client.ReadResponse())["choices"][0]["text"], text);
  EXPECT_EQ(client.ReadResponse().body, "ok\n");
}

TEST_F(GatewayTest, Http10AndExpectContinue) {
  const std::string body = R"({"prompt": "no", "max_tokens": 9, "seed": 4, "stream": true})";
  const std::string length = std::to_string(body.size());
  HttpClient old_client = Client();
  old_client.SendRaw("POST /v1/completions HTTP/1.0\r\nContent-Length: " + length + "\r\n\r\n" +
                     body);
  const std::string all = old_client.ReadAll();
  EXPECT_THAT(all, ::testing::Not(HasSubstr("chunked")));
  EXPECT_THAT(all, ::testing::EndsWith("data: [DONE]\n\n"));
  HttpClient careful = Client();
  careful.SendRaw(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: " +
      length + "\r\n\r\n");
  EXPECT_EQ(careful.ReadResponse().status, 100);
  careful.SendRaw(body);
  EXPECT_EQ(careful.ReadResponse().status, 200);
}

TEST_F(GatewayTest, ManyClientsAtOnce) {
  std::vector<std::thread> clients;
  std::vector<int> right(24, 0);
  for (size_t i = 0; i < right.size(); ++i) {
    clients.emplace_back([this, i, &right] {
      const std::string seed = std::to_string(i);
      for (int repeat = 0; repeat < 5; ++repeat) {
        HttpClient client = Client();
        client.Open("/v1/completions",
                    R"({"prompt": "no", "max_tokens": 30, "stream": true, "seed": )" + seed + "}");
        std::string text;
        for (const auto& event : client.RestOfEvents()) {
          if (event == "[DONE]") continue;
          text += Json::parse(event)["choices"][0]["text"].get<std::string>();
        }
        right[i] += text == TextOf(i, 30);
      }
    });
  }
  for (auto& client : clients) client.join();
  EXPECT_THAT(right, Each(5));
  WaitFor([&] { return gateway_->in_flight() == 0; }, "nothing is under way");
}

}  // namespace
}  // namespace specfabric::gateway
