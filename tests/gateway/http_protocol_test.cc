// The gateway's HTTP: HEAD, request targets, ends of messages and of connections.

#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gateway/gateway_fixture.h"

namespace specfabric::gateway {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kPrompt = R"({"prompt": "no", "max_tokens": 9, "seed": 4})";

std::string PostOf(const std::string& body, const std::string& headers = "Host: x\r\n",
                   const std::string& version = "1.1") {
  return "POST /v1/completions HTTP/" + version + "\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

class HttpProtocolTest : public GatewayFixture {
 protected:
  void Start(FakeTargetOptions options) {
    AddTarget(std::move(options));
    StartGateway();
  }
  void Start() { Start(TargetOptions()); }
  FakeTarget& target() { return *targets_[0]; }

  // The answer to raw bytes.
  ClientResponse Answer(const std::string& bytes) {
    HttpClient client = Client();
    client.SendRaw(bytes);
    client.ShutdownSending();
    return client.ReadResponse();
  }
};

TEST_F(HttpProtocolTest, HeadIsGetWithoutTheBody) {
  Start();
  HttpClient client = Client();  // one connection: a body would be read as the next answer
  for (const char* path : {"/health", "/livez", "/readyz", "/metrics", "/v1/models", "/v1/models/m",
                           "/version", "/livez?x=1"}) {
    client.SendRaw("HEAD " + std::string(path) + " HTTP/1.1\r\nHost: x\r\n\r\n");
    const ClientResponse head = client.ReadHeadResponse();
    const ClientResponse get = client.Get(path);
    EXPECT_EQ(head.status, 200) << path;
    EXPECT_EQ(get.status, 200) << path;
    EXPECT_EQ(head.headers.at("content-type"), get.headers.at("content-type"));
    if (path != std::string("/metrics")) {  // its length changes with the counts
      EXPECT_EQ(head.headers.at("content-length"), get.headers.at("content-length")) << path;
    }
  }
}

TEST_F(HttpProtocolTest, HeadIsRefusedWithoutABody) {
  Start();
  HttpClient client = Client();
  const auto head = [&](const std::string& path) {
    client.SendRaw("HEAD " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
    return client.ReadHeadResponse();
  };
  EXPECT_EQ(head("/nothing").status, 404);
  EXPECT_EQ(head("/v1/models/other").status, 404);
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"}) {
    const ClientResponse refused = head(path);
    EXPECT_EQ(refused.status, 405) << path;
    EXPECT_EQ(refused.headers.at("allow"), "POST");
  }
  EXPECT_EQ(client.Get("/livez").body, "ok\n") << "the connection is in step";
  const ClientResponse method = client.Post("/v1/models", "");
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.headers.at("allow"), "GET, HEAD");
  EXPECT_EQ(client.Request("OPTIONS", "/livez", "").status, 405);
}

TEST_F(HttpProtocolTest, AMalformedHeadRequestGetsNoBody) {
  Start();
  for (const std::string& bytes :
       {std::string("HEAD /livez HTTP/1.1\r\n\r\n"), std::string("HEAD livez HTTP/1.1\r\n\r\n"),
        std::string("HEAD /%zz HTTP/1.1\r\nHost: x\r\n\r\n"),
        std::string("HEAD / HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n"),
        "HEAD / HTTP/1.1\r\nX: " + std::string(100000, 'y') + "\r\n\r\n"}) {
    HttpClient client = Client();
    client.SendRaw(bytes);
    const std::string all = client.ReadAll();
    EXPECT_THAT(all, StartsWith("HTTP/1.1 4"));
    EXPECT_THAT(all, EndsWith("\r\n\r\n"));
    EXPECT_EQ(all.find("\r\n\r\n"), all.size() - 4);
  }
}

TEST_F(HttpProtocolTest, ModelNamesInPathsAreDecoded) {
  AddTarget();
  GatewayOptions options;
  options.model_name = "Org/My-Model";
  StartGateway(std::move(options), 1);
  HttpClient client = Client();
  for (const char* path : {"/v1/models/Org%2FMy-Model", "/v1/models/Org/My-Model",
                           "/v1/models/Org%2fMy%2dModel", "/v1%2Fmodels/Org/My-Model?x=1"}) {
    EXPECT_EQ(Ok(client.Get(path))["id"], "Org/My-Model") << path;
  }
  EXPECT_THAT(ErrorOf(client.Get("/v1/models/Org%252FMy-Model"), 404), HasSubstr("Org%2FMy-Model"));
  EXPECT_THAT(ErrorOf(client.Get("/a/" + std::string(10000, 'x')), 404),
              ::testing::SizeIs(::testing::Lt(200)));
}

TEST_F(HttpProtocolTest, RequestTargets) {
  Start();
  const auto get = [&](const std::string& target) {
    return Answer("GET " + target + " HTTP/1.1\r\nHost: x\r\n\r\n");
  };
  EXPECT_EQ(get("http://host:8000/livez").body, "ok\n");
  EXPECT_EQ(get("HTTPS://host/livez?x").body, "ok\n");
  EXPECT_EQ(get("/live%7A").body, "ok\n");
  for (const char* target :
       {"*", "host:443", "livez", "http:///livez", "/%", "/%4", "/%zz", "/a%00b", "/livez%00"}) {
    EXPECT_FALSE(ErrorOf(get(target), 400).empty()) << target;
  }
  ErrorOf(Answer("CONNECT host:443 HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
  ErrorOf(Answer("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
}

TEST_F(HttpProtocolTest, Host) {
  Start();
  EXPECT_THAT(ErrorOf(Answer("GET /livez HTTP/1.1\r\n\r\n"), 400), HasSubstr("no Host"));
  EXPECT_THAT(ErrorOf(Answer("GET http://x/livez HTTP/1.1\r\n\r\n"), 400), HasSubstr("no Host"));
  EXPECT_THAT(ErrorOf(Answer("GET /livez HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n"), 400),
              HasSubstr("2 Host"));
  EXPECT_THAT(ErrorOf(Answer("GET /livez HTTP/1.1\r\nHost: a, b\r\n\r\n"), 400), HasSubstr("a, b"));
  EXPECT_EQ(Answer("GET /livez HTTP/1.1\r\nHost:\r\n\r\n").status, 200);
  EXPECT_EQ(Answer("GET /livez HTTP/1.0\r\n\r\n").status, 200);
  ErrorOf(Answer("GET /livez HTTP/2.0\r\nHost: x\r\n\r\n"), 505);
  ErrorOf(Answer("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);
  ErrorOf(Answer("GET /livez HTTP/1.2\r\nHost: x\r\n\r\n"), 505);
}

// The end of a body must not be ambiguous: a proxy that sees another end would treat a part of the
// body as the request of another client (request smuggling).
TEST_F(HttpProtocolTest, BodiesWhoseEndIsUnclear) {
  Start();
  const std::string chunks =
      "29\r\n"
      R"({"prompt": "no", "max_tokens": 9, "n": 1})"
      "\r\n0\r\n\r\n";
  const auto post = [&](const std::string& headers, const std::string& body) {
    return Answer("POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n" + body);
  };
  Ok(post("Transfer-Encoding: chunked\r\n", chunks));
  Ok(post("Transfer-Encoding: Chunked\r\n", "29;name=value\r\n" + chunks.substr(4)));
  for (const char* headers : {"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
                              "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
                              "Transfer-Encoding: gzip\r\n",
                              "Transfer-Encoding: gzip, chunked\r\n",
                              "Transfer-Encoding: chunked, identity\r\n",
                              "Transfer-Encoding: identity\r\n",
                              "Transfer-Encoding: xchunked\r\n",
                              "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
                              "Transfer-Encoding:\r\n",
                              "Content-Length: 5\r\nContent-Length: 6\r\n",
                              "Content-Length: 5, 6\r\n",
                              "Content-Length: +5\r\n",
                              "Content-Length: -1\r\n",
                              "Content-Length: 0x5\r\n",
                              "Content-Length: 5 5\r\n",
                              "Content-Length:\r\n",
                              "Content-Length: 99999999999999999999\r\n",
                              "Content-Length : 5\r\n",
                              " Content-Length: 5\r\n",
                              "Content-Length: 5\nX: y\r\n"}) {
    EXPECT_FALSE(ErrorOf(post(headers, chunks), 400).empty()) << headers;
  }
  ErrorOf(Answer("POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks),
          400);
  for (const char* broken :
       {"zz\r\n", "29\n{}", "-1\r\n", "fffffffffffffffff\r\n", "2\r\n{}x\r\n"}) {
    EXPECT_FALSE(ErrorOf(post("Transfer-Encoding: chunked\r\n", broken), 400).empty()) << broken;
  }
  EXPECT_EQ(target().submits().size(), 2u);
}

TEST_F(HttpProtocolTest, EndlessInputIsCutOff) {
  Start();
  const std::string start =
      "POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  ErrorOf(Answer(start + "2;" + std::string(1 << 20, 'e')), 431);
  ErrorOf(Answer(start + "0\r\nX: " + std::string(1 << 20, 'e')), 431);
}

TEST_F(HttpProtocolTest, BodiesShorterOrLongerThanContentLength) {
  Start();
  HttpClient shorter = Client();
  shorter.SendRaw("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n" +
                  std::string(kPrompt));
  shorter.ShutdownSending();
  EXPECT_THAT(ErrorOf(shorter.ReadResponse(), 400), HasSubstr("ended before"));
  HttpClient longer = Client();
  longer.SendRaw(PostOf(kPrompt) + "rubbish\r\n\r\n");
  Ok(longer.ReadResponse());
  ErrorOf(longer.ReadResponse(), 400);
}

TEST_F(HttpProtocolTest, CompressedBodies) {
  Start();
  for (const char* coding : {"gzip", "deflate", "br", "zstd", "gzip, identity"}) {
    const std::string headers = "Host: x\r\nContent-Encoding: " + std::string(coding) + "\r\n";
    const ClientResponse response = Answer(PostOf("\x1f\x8b\x08", headers));
    EXPECT_THAT(ErrorOf(response, 415), HasSubstr(coding));
    EXPECT_EQ(response.headers.at("accept-encoding"), "identity");
  }
  Ok(Answer(PostOf(kPrompt, "Host: x\r\nContent-Encoding: identity\r\n")));
  // What curl says by default of whatever it sends.
  Ok(Answer(PostOf(kPrompt, "Host: x\r\nContent-Type: application/x-www-form-urlencoded\r\n")));
}

// Clients that shut down their sending side after a request (nc -N, socket.shutdown) still read.
TEST_F(HttpProtocolTest, AHalfClosedClientIsAnswered) {
  Start();
  const std::string stream = R"({"prompt": "no", "max_tokens": 9, "seed": 4, "stream": true})";
  for (const std::string version : {"1.1", "1.0"}) {
    HttpClient whole = Client();
    whole.SendRaw(PostOf(kPrompt, "Host: x\r\n", version));
    whole.ShutdownSending();
    EXPECT_EQ(Ok(whole.ReadResponse())["choices"][0]["text"], TextOf(4, 9));
    HttpClient pieces = Client();
    pieces.SendRaw(PostOf(stream, "Host: x\r\n", version));
    pieces.ShutdownSending();
    const std::string all = pieces.ReadAll();
    EXPECT_THAT(all, StartsWith("HTTP/1.1 200"));
    EXPECT_THAT(all, HasSubstr("data: [DONE]\n\n"));
    HttpClient small = Client();
    small.SendRaw("GET /livez HTTP/" + version + "\r\nHost: x\r\n\r\n");
    small.ShutdownSending();
    EXPECT_EQ(small.ReadResponse().body, "ok\n");
  }
  HttpClient two = Client();
  two.SendRaw(PostOf(kPrompt) + PostOf(stream));
  two.ShutdownSending();
  EXPECT_THAT(two.ReadAll(), HasSubstr("data: [DONE]\n\n"));
  EXPECT_TRUE(target().cancels().empty());
}

// An answer that takes longer than a second: the client is probed meanwhile.
TEST_F(HttpProtocolTest, AHalfClosedClientGetsALateAnswer) {
  FakeTargetOptions options = TargetOptions();
  options.pace = 700 * base::kMillisecond;  // messages of three tokens
  Start(std::move(options));
  HttpClient whole = Client(), pieces = Client(), late = Client();
  whole.SendRaw(PostOf(kPrompt));
  whole.ShutdownSending();
  pieces.SendRaw(PostOf(R"({"prompt": "no", "max_tokens": 9, "seed": 4, "stream": true})"));
  pieces.ShutdownSending();
  late.SendRaw(PostOf(kPrompt));
  WaitFor([&] { return target().submits().size() == 3; }, "all are under way");
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  late.ShutdownSending();
  for (HttpClient* client : {&whole, &late}) {
    ClientResponse response = client->ReadResponse();
    while (response.status == 100) response = client->ReadResponse();
    EXPECT_EQ(Ok(response)["choices"][0]["text"], TextOf(4, 9));
  }
  EXPECT_THAT(pieces.ReadAll(), HasSubstr("data: [DONE]\n\n"));
  EXPECT_TRUE(target().cancels().empty());
}

TEST_F(HttpProtocolTest, AClosedConnectionIsAlwaysNoticed) {
  FakeTargetOptions options = TargetOptions();
  options.stall_after = 0;
  Start(std::move(options));
  const std::string stream = R"({"prompt": "no", "max_tokens": 9, "seed": 4, "stream": true})";
  size_t clients = 0;
  for (const std::string version : {"1.1", "1.0"}) {
    for (const std::string& body : {std::string(kPrompt), stream}) {
      for (const bool at_once : {true, false}) {
        HttpClient client = Client();
        client.SendRaw(PostOf(body, "Host: x\r\n", version));
        ++clients;
        if (!at_once) {
          WaitFor([&] { return target().submits().size() == clients; }, "it is under way");
        }
        client.Close();
      }
    }
  }
  WaitFor([&] { return target().submits().size() == clients; }, "all have come");
  WaitFor([&] { return gateway_->in_flight() == 0; }, "all are over");
  EXPECT_EQ(Metric("specfabric_gateway_client_disconnects_total"), clients);
}

// Half-closed first, closed later.
TEST_F(HttpProtocolTest, ClosingAfterAHalfCloseIsNoticed) {
  FakeTargetOptions options = TargetOptions();
  options.stall_after = 3;
  Start(std::move(options));
  HttpClient client = Client();
  client.SendRaw(PostOf(R"({"prompt": "no", "max_tokens": 9, "stream": true})"));
  client.ShutdownSending();
  WaitFor([&] { return target().submits().size() == 1; }, "it is under way");
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // past the first probe
  EXPECT_TRUE(target().cancels().empty());
  client.Close();
  WaitFor([&] { return gateway_->in_flight() == 0; }, "it is over");
  WaitFor([&] { return !target().cancels().empty(); }, "the target is told");
}

}  // namespace
}  // namespace specfabric::gateway
