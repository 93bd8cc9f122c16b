#include "app/admin_server.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/no_descriptors.h"
#include "tests/base/rest_without_descriptors.h"
#include "tests/gateway/http_client.h"

namespace specfabric::app {
namespace {

using gateway::HttpClient;
using ::testing::HasSubstr;

class AdminServerTest : public ::testing::Test {
 protected:
  AdminServerTest() {
    registry_.SetBuildInfo("target", "1", "m");
    server_ = AdminServer::Start(Options("127.0.0.1:0")).value();
    server_->Show(Pages());
  }
  AdminOptions Options(const std::string& listen) {
    return {.listen = listen, .registry = &registry_};
  }
  AdminPages Pages() {
    AdminPages pages;
    pages.ready = [this] { return ready_.load(); };
    pages.pages["/debug"] = [] { return "{}"; };
    return pages;
  }
  gateway::ClientResponse Get(const std::string& path) {
    return HttpClient(server_->listen_address()).Get(path);
  }

  metrics::Registry registry_;
  std::atomic<bool> ready_ = false;
  std::unique_ptr<AdminServer> server_;
};

TEST_F(AdminServerTest, Metrics) {
  const auto response = Get("/metrics");
  EXPECT_EQ(response.status, 200);
  EXPECT_THAT(response.headers.at("content-type"), HasSubstr("version=0.0.4"));
  EXPECT_THAT(response.body, HasSubstr("specfabric_build_info{"));
}

TEST_F(AdminServerTest, HandlersDecide) {
  EXPECT_EQ(Get("/livez").status, 200);
  EXPECT_EQ(Get("/readyz").status, 503);
  ready_ = true;
  const auto ready = Get("/readyz?verbose");
  EXPECT_EQ(ready.status, 200);
  EXPECT_EQ(ready.body, "ok\n");
  EXPECT_EQ(Get("/debug").headers.at("content-type"), "application/json");
}

TEST_F(AdminServerTest, AnswersThatItIsUnavailableWhileThereIsNothingToTell) {
  const auto starting = AdminServer::Start(Options("127.0.0.1:0")).value();
  ready_ = true;
  for (const char* path : {"/livez", "/readyz", "/metrics", "/debug", "/nothing"}) {
    EXPECT_EQ(HttpClient(starting->listen_address()).Get(path).status, 503) << path;
    EXPECT_NE(Get(path).status, 503) << path;
  }
  starting->Show(Pages());
  EXPECT_EQ(HttpClient(starting->listen_address()).Get("/livez").status, 200);
  starting->Hide();
  EXPECT_EQ(HttpClient(starting->listen_address()).Get("/livez").status, 503);
}

TEST_F(AdminServerTest, NoDescriptorForAClientTakesNoCpuAndIsLoggedOnce) {
  base::ExpectRestWithoutDescriptors(server_->listen_address());
}

TEST_F(AdminServerTest, RefusesTheRest) {
  EXPECT_EQ(Get("/nothing").status, 404);
  EXPECT_EQ(HttpClient(server_->listen_address()).Request("DELETE", "/metrics", "").status, 405);
  HttpClient broken(server_->listen_address());
  broken.SendRaw("GET\r\n\r\n");
  EXPECT_EQ(broken.ReadAll(), "");
  EXPECT_EQ(Get("/livez").status, 200);
}

TEST_F(AdminServerTest, HeadIsGetWithoutTheBody) {
  ready_ = true;
  HttpClient client(server_->listen_address());  // a body would be read as the next answer
  const std::pair<const char*, int> pages[] = {
      {"/metrics", 200}, {"/livez", 200}, {"/readyz", 200}, {"/debug", 200}, {"/nothing", 404}};
  for (const auto& [path, status] : pages) {
    client.SendRaw("HEAD " + std::string(path) + " HTTP/1.1\r\nHost: x\r\n\r\n");
    const auto head = client.ReadHeadResponse();
    const auto get = client.Get(path);
    EXPECT_EQ(head.status, status) << path;
    EXPECT_EQ(get.status, status) << path;
    EXPECT_EQ(head.headers.at("content-length"), get.headers.at("content-length")) << path;
  }
}

TEST_F(AdminServerTest, ASilentClientHoldsNobodyUp) {
  HttpClient silent(server_->listen_address());
  silent.SendRaw("GET /li");
  EXPECT_EQ(Get("/livez").status, 200);
  server_.reset();  // ends although the client is still there
}

TEST_F(AdminServerTest, ManyClientsAtOnce) {
  std::vector<std::thread> clients;
  std::vector<int> statuses(16, 0);
  for (int& status : statuses) {
    clients.emplace_back([this, &status] { status = Get("/metrics").status; });
  }
  for (auto& client : clients) client.join();
  EXPECT_THAT(statuses, ::testing::Each(200));
}

TEST_F(AdminServerTest, AddressesThatCannotBe) {
  const std::string taken = server_->listen_address();
  const auto again = AdminServer::Start(Options(taken));
  EXPECT_TRUE(absl::IsAlreadyExists(again.status()));
  EXPECT_THAT(std::string(again.status().message()), HasSubstr(taken));
  EXPECT_EQ(AdminAddress("::1:9100"), "[::1]:9100");
  for (const char* address : {"[::1]:9100", "127.0.0.1:9100", "host:1", "nonsense", "", ":"}) {
    EXPECT_EQ(AdminAddress(address), address);
  }
  for (const char* address : {"nonsense", "127.0.0.1:", ":80", "127.0.0.1:port"}) {
    const auto bad = AdminServer::Start(Options(address));
    EXPECT_TRUE(absl::IsInvalidArgument(bad.status())) << address;
    EXPECT_THAT(std::string(bad.status().message()), HasSubstr(address));
  }
}

}  // namespace
}  // namespace specfabric::app
