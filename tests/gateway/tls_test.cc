// The gateway's HTTP over TLS: answers, ends of connections, renewed certificates.

#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/temp_dir.h"
#include "tests/gateway/certificates.h"
#include "tests/gateway/gateway_fixture.h"
#include "tests/gateway/tls_client.h"

namespace specfabric::gateway {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kPrompt = R"({"prompt": "no", "max_tokens": 9, "seed": 4})";
constexpr const char* kStream = R"({"prompt": "no", "max_tokens": 9, "seed": 4, "stream": true})";
constexpr const char* kDone = "data: [DONE]\n\n\r\n0\r\n\r\n";

std::string PostOf(const std::string& body, const std::string& headers = "") {
  return "POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

std::string GetOf(const std::string& path, const std::string& headers = "") {
  return "GET " + path + " HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n";
}

class TlsTest : public GatewayFixture {
 protected:
  // A target that sends `tokens` of a first attempt and then nothing; -1: all.
  void Start(int32_t tokens = -1) {
    FakeTargetOptions target = TargetOptions();
    target.stall_after = tokens;
    AddTarget(std::move(target));
    Write(MakeCertificate("first"));
    auto files = TlsFiles::Open(dir_.File("cert"), dir_.File("key"));
    ASSERT_TRUE(files.ok()) << files.status();
    GatewayOptions options;
    options.tls = *files;
    options.reload_interval = 5 * base::kMillisecond;
    options.stream_header_delay = 20 * base::kMillisecond;
    options.max_body_bytes = 1000;
    StartGateway(std::move(options), 1);
  }
  void Write(const Certificate& made) {
    dir_.Write("key", made.key);
    dir_.Write("cert", made.cert);
  }
  const std::string& address() const { return gateway_->listen_address(); }

  base::TempDir dir_;
};

TEST_F(TlsTest, RequestsOneAfterAnotherOnOneConnection) {
  Start();
  TlsClient client(address());
  ASSERT_TRUE(client.connected());
  EXPECT_EQ(client.peer_name(), "first");
  for (int i = 0; i < 3; ++i) {
    client.Send(PostOf(kPrompt));
    EXPECT_THAT(client.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(client.ReadUntil("}}"), HasSubstr("\"text\":"));
    client.Send(PostOf(kStream));
    EXPECT_THAT(client.ReadUntil(kDone), HasSubstr("text/event-stream"));
  }
  client.Send(PostOf(kPrompt) + PostOf(kStream));  // the second is read during the first's answer
  client.ReadUntil("\r\n\r\n");
  EXPECT_THAT(client.ReadUntil(kDone), HasSubstr("text/event-stream"));
  client.Send(GetOf("/livez", "Connection: close\r\n"));
  EXPECT_THAT(client.ReadAll(), EndsWith("ok\n"));
  EXPECT_TRUE(client.closed_in_order());
  EXPECT_TRUE(targets_[0]->cancels().empty());
}

TEST_F(TlsTest, VersionsFrom12On) {
  Start();
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    TlsClient client(address(), version);
    ASSERT_TRUE(client.connected());
    EXPECT_EQ(client.version(), version);
    client.Send(GetOf("/livez"));
    EXPECT_THAT(client.ReadUntil("ok\n"), StartsWith("HTTP/1.1 200"));
  }
  for (const int version : {TLS1_VERSION, TLS1_1_VERSION}) {
    EXPECT_FALSE(TlsClient(address(), version).connected());
  }
}

TEST_F(TlsTest, AClosedConnectionIsNoticed) {
  Start(/*tokens=*/0);
  size_t clients = 0;
  for (const std::string body : {kPrompt, kStream}) {
    for (const bool in_order : {true, false}) {
      TlsClient client(address());
      client.Send(PostOf(body));
      ++clients;
      WaitFor([&] { return targets_[0]->submits().size() == clients; }, "it is under way");
      if (in_order) client.SendCloseNotify();
      client.Close();
    }
  }
  WaitFor([&] { return gateway_->in_flight() == 0; }, "all are over");
  EXPECT_EQ(Metric("specfabric_gateway_client_disconnects_total"), clients);
}

TEST_F(TlsTest, AHalfClosedClientIsAnswered) {
  FakeTargetOptions target = TargetOptions();
  target.pace = 700 * base::kMillisecond;  // three messages: longer than the first probe
  AddTarget(std::move(target));
  Write(MakeCertificate("first"));
  GatewayOptions options;
  options.tls = *TlsFiles::Open(dir_.File("cert"), dir_.File("key"));
  StartGateway(std::move(options), 1);
  TlsClient whole(address()), stream(address()), by_fin(address());
  whole.Send(PostOf(kPrompt));
  whole.SendCloseNotify();
  stream.Send(PostOf(kStream));
  stream.SendCloseNotify();
  by_fin.Send(PostOf(kPrompt));
  by_fin.ShutdownSending();
  for (TlsClient* client : {&whole, &by_fin}) {
    const std::string answer = client->ReadAll();
    EXPECT_THAT(answer, HasSubstr("HTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(answer, HasSubstr("\"finish_reason\":\"length\""));
  }
  EXPECT_THAT(stream.ReadAll(), HasSubstr(kDone));
  EXPECT_TRUE(targets_[0]->cancels().empty());
}

TEST_F(TlsTest, ARefusalIsRead) {
  Start();
  TlsClient client(address());
  client.Send(PostOf(std::string(100'000, ' ')));
  const std::string answer = client.ReadAll();
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(answer, HasSubstr("the body is too large"));
}

TEST_F(TlsTest, ARenewedCertificateIsThatOfNewConnections) {
  Start();
  TlsClient old(address());
  old.Send(PostOf(kStream));
  old.ReadUntil(kDone);
  Write(MakeCertificate("second"));
  WaitFor([&] { return TlsClient(address()).peer_name() == "second"; }, "the new one is shown");
  old.Send(PostOf(kStream));
  EXPECT_THAT(old.ReadUntil(kDone), HasSubstr("text/event-stream"));
  EXPECT_EQ(old.peer_name(), "first");
}

TEST_F(TlsTest, PlainHttpIsNoHandshake) {
  Start();
  HttpClient plain = Client();
  plain.SendRaw(GetOf("/livez"));
  EXPECT_THAT(plain.ReadAll(), Not(HasSubstr("HTTP/1.1 200")));
  TlsClient client(address());
  client.Send(GetOf("/livez"));
  EXPECT_THAT(client.ReadUntil("ok\n"), StartsWith("HTTP/1.1 200"));
}

// Neither holds up other clients, nor the end of the gateway.
TEST_F(TlsTest, HandshakesThatDoNotEnd) {
  Start();
  HttpClient silent = Client(), half = Client();
  half.SendRaw(std::string("\x16\x03\x01\x02\x00\x01", 6));
  TlsClient client(address());
  client.Send(GetOf("/livez"));
  EXPECT_THAT(client.ReadUntil("ok\n"), StartsWith("HTTP/1.1 200"));
  const auto begin = std::chrono::steady_clock::now();
  gateway_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(8));
  EXPECT_EQ(silent.ReadAll(), "");
}

}  // namespace
}  // namespace specfabric::gateway
