// specfabric-perftest as its user meets it: a server and clients, over the wire that
// tests/transport/network.h tells, and one clear line for everything that can go wrong.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/exit_code.h"
#include "nlohmann/json.hpp"
#include "tests/app/program.h"
#include "tests/base/sanitizers.h"
#include "tests/transport/network.h"
#include "transport/ucx_context.h"

namespace specfabric::perftest {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Words = std::vector<std::string>;

std::string Perftest() { return SPECFABRIC_PERFTEST; }

Words With(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// A running server and the port it listens on.
struct Server {
  // `wrapper`: words in front of the program's.
  explicit Server(const Words& more = {}, const Words& wrapper = {})
      : program(With(With(wrapper, {Perftest(), "-p", "0", "--bind", transport::TestHost(),
                                    "--devices", transport::TestDevices()}),
                     more)) {
    const std::string begin = "listening on " + transport::TestHost() + ":";
    if (!program.AwaitError(begin)) {
      ADD_FAILURE() << "no server: " << program.errors();
      return;
    }
    const std::string text = program.errors();
    port = std::to_string(std::atoi(text.c_str() + text.find(begin) + begin.size()));
  }

  Program program;
  std::string port;
};

std::unique_ptr<Program> StartClient(const std::string& port, const Words& more = {}) {
  return std::make_unique<Program>(
      With({Perftest(), transport::TestHost(), "-p", port, "--devices", transport::TestDevices()},
           more));
}

// The last line of its standard error, which is the only one but for logs.
std::string LastLine(const Program& program) {
  std::string text = program.errors();
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

std::string MakeSecret(const std::string& name, const std::string& content) {
  const std::string path = ::testing::TempDir() + "/perftest_" + std::to_string(getpid()) + name;
  std::ofstream(path) << content << "\n";
  return path;
}

class Pairs : public ::testing::TestWithParam<std::tuple<std::string, bool>> {};

TEST_P(Pairs, MeasureOverTheWire) {
  const auto& [test, threaded] = GetParam();
  const Words thread = threaded ? Words{"--threaded"} : Words{};
  Server server(thread);
  const auto client =
      StartClient(server.port, With({"-t", test, "-n", "12", "-w", "2", "-s", "4096", "-O", "8",
                                     "--nodes", "16", "--vocab", "32000", "--json"},
                                    thread));
  ASSERT_EQ(client->Wait(), 0) << client->errors();
  EXPECT_EQ(server.program.Wait(), 0) << server.program.errors();
  const auto json = nlohmann::json::parse(client->output(), nullptr, false);
  ASSERT_TRUE(json.is_object()) << client->output();
  EXPECT_EQ(json["test"], test);
  EXPECT_THAT(json["transport"].get<std::string>(), HasSubstr(transport::TestWire()));
  EXPECT_EQ(json["memory"], "host");
  EXPECT_EQ(json["iterations"], 12);
  EXPECT_GT(json["avg_us"], 0);
  EXPECT_GT(json["mb_per_s"], 0);
  EXPECT_GT(json["messages_per_s"], 0);
  if (test == "am_bw") {
    EXPECT_TRUE(json["p50_us"].is_null());
  } else {
    EXPECT_GT(json["min_us"], 0);
    EXPECT_LE(json["min_us"], json["p50_us"]);
    EXPECT_LE(json["p50_us"], json["p99_us"]);
    EXPECT_LE(json["p99_us"], json["max_us"]);
    EXPECT_GE(json["stdev_us"], 0);
  }
  if (test == "tree") {
    // Request and reply: 64 nodes take three numbers each. Small messages are copied for safety.
    EXPECT_GT(json["bytes"], 64 * 3 * 4);
    EXPECT_GT(json["bytes_copied"], 0);
  } else {
    EXPECT_EQ(json["bytes"], test == "logits" ? 16 * 32000 * 2 : 4096);
    EXPECT_EQ(json["bytes_copied"], 0) << "tensors go as they are";
  }
  if (test == "logits" && transport::HasMatureProtocols()) {
    EXPECT_THAT(json["payload_transport"].get<std::string>(), HasSubstr(transport::TestWire()));
  }
}

INSTANTIATE_TEST_SUITE_P(Perftest, Pairs,
                         ::testing::Combine(::testing::Values("am_lat", "am_bw", "tree", "logits"),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return std::get<0>(info.param) +
                                  (std::get<1>(info.param) ? "_threaded" : "_inline");
                         });

TEST(Perftest, MeasuresEverySizeWithoutCopying) {
  for (const char* size : {"1", "8", "8191", "8192", "32768", "1048577"}) {
    Server server;
    const auto client = StartClient(server.port, {"-s", size, "-n", "5", "--json"});
    ASSERT_EQ(client->Wait(), 0) << client->errors();
    const auto json = nlohmann::json::parse(client->output(), nullptr, false);
    ASSERT_TRUE(json.is_object()) << client->output();
    EXPECT_EQ(json["bytes_copied"], 0) << size;
    EXPECT_EQ(server.program.Wait(), 0) << server.program.errors();
  }
}

TEST(Perftest, PrintsTableAndCsv) {
  for (const auto& [flag, said] : {std::pair("--nocsv", "t_typical"), {"--csv", "p50_us"}}) {
    Server server;
    const auto client = StartClient(server.port, {"-n", "5", flag});
    ASSERT_EQ(client->Wait(), 0) << client->errors();
    EXPECT_THAT(client->output(), HasSubstr(said));
    EXPECT_EQ(server.program.Wait(), 0) << server.program.errors();
  }
}

TEST(Perftest, HelpNamesEveryFlag) {
  Program program({Perftest(), "--help"});
  EXPECT_EQ(program.Wait(), 0);
  for (const char* flag : {" -t ", " -s ", " -n ", " -w ", " -O ", " -p ", " -m ", "--threaded",
                           "--join_secret_file", "--require_rdma", "--bind"}) {
    EXPECT_THAT(program.output(), HasSubstr(flag));
  }
}

struct BadInput {
  Words words;
  std::string said;
};

class BadFlags : public ::testing::TestWithParam<BadInput> {};

TEST_P(BadFlags, AreOneLine) {
  Program program(With({Perftest()}, GetParam().words));
  EXPECT_EQ(program.Wait(), base::kExitUsage);
  EXPECT_EQ(program.output(), "");
  EXPECT_THAT(program.errors(), AllOf(StartsWith("specfabric-perftest: "),
                                      HasSubstr(GetParam().said), EndsWith("\n")));
  EXPECT_EQ(program.errors().find('\n'), program.errors().size() - 1) << program.errors();
}

INSTANTIATE_TEST_SUITE_P(
    Perftest, BadFlags,
    ::testing::Values(
        BadInput{{"-t", "am_late"}, "-t am_late: must be am_lat, am_bw, tree or logits"},
        BadInput{{"-s", "0"},
                 "-s=0: allowed are sizes from 1 to 1073741824 bytes, such as 4096, 64KiB"},
        BadInput{{"-s", "1073741825"}, "-s=1073741825: allowed are sizes"},
        BadInput{{"-s", "-1"}, "-s=-1: allowed are sizes from 1"},
        BadInput{{"-n", "-1"}, "-n -1: must be from 0 to 100000000"},
        BadInput{{"-n", "100000001"}, "-n 100000001: must be"},
        BadInput{{"-n", "many"}, "-n=many: allowed are whole numbers of 64 bits"},
        BadInput{{"-n"}, "-n: needs a value"},
        BadInput{{"-w", "-2"}, "-w -2: must be from -1 to 100000000"},
        BadInput{{"-O", "0"}, "-O 0: must be from 1 to 1024"},
        BadInput{{"-O", "1025"}, "-O 1025: must be"},
        BadInput{{"-p", "65536"}, "-p 65536: must be from 0 to 65535"},
        BadInput{{"127.0.0.1", "-p", "0"}, "-p 0: must be from 1 to 65535"},
        BadInput{{"-m", "device"}, "-m device: must be host or cuda"},
        BadInput{{"-t", "logits", "--nodes", "257"}, "--nodes 257: must be from 1 to 256"},
        BadInput{{"--vocab=0"}, "--vocab 0: must be from 1 to 1000000"},
        BadInput{{"--spin", "-1"}, "--spin=-1: allowed are durations from 0 to 1s"},
        BadInput{{"--spin", "nan"}, "--spin=nan: allowed are durations from 0"},
        BadInput{{"-t", "am_bw", "-s", "1073741824"}, "must be at most 8589934592"},
        BadInput{{"--json", "--csv"}, "one of them at most"},
        BadInput{{"--bogus"}, "--bogus: no such flag"},
        BadInput{{"--fromenv=t"}, "--fromenv: no such flag"},
        BadInput{{"one", "two"}, "'two': one host at most"},
        BadInput{{"no-such-host.invalid"}, "no-such-host.invalid"},
        BadInput{{""}, "must be host:port"},
        BadInput{{"--flagfile=/nowhere/flags"}, "--flagfile=/nowhere/flags: cannot read"},
        BadInput{{"--join_secret_file=/nowhere/secret"}, "/nowhere/secret: cannot read"}));

TEST(Perftest, ASecretHasItsLength) {
  const std::string path = MakeSecret("short", "15 bytes of it.");
  Program program({Perftest(), "--join_secret_file", path});
  EXPECT_EQ(program.Wait(), base::kExitUsage);
  EXPECT_THAT(program.errors(), AllOf(HasSubstr(path), HasSubstr("15 bytes: allowed are 16")));
  unlink(path.c_str());
}

TEST(Perftest, WithoutServerEndsAtOnce) {
  const auto client = StartClient("1");  // nobody's port
  EXPECT_EQ(client->Wait(), base::kExitSurroundings);
  EXPECT_THAT(LastLine(*client), HasSubstr(":1: Connection refused"));
}

TEST(Perftest, APortCanBeTaken) {
  Server server;
  Program second({Perftest(), "-p", server.port, "--bind", transport::TestHost()});
  EXPECT_EQ(second.Wait(), base::kExitSurroundings);
  EXPECT_THAT(LastLine(second), HasSubstr("Address already in use"));
}

// On the caller's thread, and by the progress thread.
class Ends : public ::testing::TestWithParam<bool> {
 protected:
  Words Thread() const { return GetParam() ? Words{"--threaded"} : Words{}; }

  // One that the server has taken, and that measures for longer than any test lasts.
  std::unique_ptr<Program> StartEndless(Server& server) const {
    auto client = StartClient(server.port, With({"-t", "tree", "-n", "100000000"}, Thread()));
    EXPECT_TRUE(server.program.AwaitError("a client has connected over")) << client->errors();
    return client;
  }
};

TEST_P(Ends, WhenTheServerDies) {
  Server server(Thread());
  const auto client = StartEndless(server);
  server.program.Signal(SIGKILL);
  EXPECT_EQ(server.program.Wait(), -SIGKILL);
  EXPECT_EQ(client->Wait(), base::kExitSurroundings);
  EXPECT_THAT(LastLine(*client), StartsWith("specfabric-perftest: "));
  EXPECT_EQ(client->output(), "") << "half a measurement is none";
}

TEST_P(Ends, WhenTheClientDies) {
  Server server(Thread());
  const auto client = StartEndless(server);
  client->Signal(SIGKILL);
  EXPECT_EQ(server.program.Wait(), base::kExitSurroundings);
  EXPECT_THAT(LastLine(server.program), StartsWith("specfabric-perftest: "));
}

TEST_P(Ends, ForASecondClientAlone) {
  Server server(Thread());
  const auto first = StartEndless(server);
  const auto second = StartClient(server.port, Thread());
  EXPECT_EQ(second->Wait(), base::kExitSurroundings);
  EXPECT_THAT(LastLine(*second), HasSubstr("refused: it has too many peers already"));
  first->Signal(SIGTERM);
  EXPECT_EQ(first->Wait(), -SIGTERM) << "the first has not noticed: " << first->errors();
  EXPECT_EQ(server.program.Wait(), base::kExitSurroundings);
}

TEST_P(Ends, ForClientsWithoutTheSecret) {
  const std::string right = MakeSecret("right", "the secret of these two");
  const std::string wrong = MakeSecret("wrong", "the secret of two others");
  Server server(With({"--join_secret_file", right}, Thread()));
  for (const Words& secret : {Words{}, Words{"--join_secret_file", wrong}}) {
    const auto client = StartClient(server.port, With(secret, Thread()));
    EXPECT_EQ(client->Wait(), base::kExitSurroundings);
    EXPECT_THAT(LastLine(*client), EndsWith("refused: the join secret differs"));
  }
  const auto client =
      StartClient(server.port, With({"-n", "5", "--join_secret_file", right}, Thread()));
  EXPECT_EQ(client->Wait(), 0) << client->errors();
  EXPECT_EQ(server.program.Wait(), 0) << server.program.errors();
  for (const std::string& path : {right, wrong}) unlink(path.c_str());
}

TEST_P(Ends, WithoutCudaInUcxBeforeItBothersTheServer) {
  if (access("/dev/nvidiactl", F_OK) == 0) GTEST_SKIP() << "this machine has a GPU";
  const auto client = StartClient("1", With({"-m", "cuda"}, Thread()));
  EXPECT_EQ(client->Wait(), base::kExitSurroundings);
  EXPECT_THAT(LastLine(*client),
              AllOf(HasSubstr("of cuda memory: this UCX has no support for it")));
}

#if !SPECFABRIC_SANITIZED  // they take terabytes
constexpr char kLittleMemory[] = "ulimit -v 1000000; exec \"$@\"";

TEST_P(Ends, WhenThereIsNoMemoryForTheSlots) {
  Program client(With({"/bin/sh", "-c", kLittleMemory, "sh", Perftest(), transport::TestHost(),
                       "-p", "1", "-s", "500000000"},
                      Thread()));
  EXPECT_EQ(client.Wait(), base::kExitSurroundings);
  EXPECT_THAT(LastLine(client), HasSubstr("no memory for 2000"));
}

TEST_P(Ends, WhenTheServerHasNoMemoryForTheSlots) {
  Server server(Thread(), {"/bin/sh", "-c", kLittleMemory, "sh"});
  const auto client = StartClient(server.port, With({"-s", "500000000", "-n", "1"}, Thread()));
  EXPECT_EQ(client->Wait(), base::kExitSurroundings);
  EXPECT_THAT(LastLine(*client), HasSubstr("the server refused: no memory for 2000"));
  EXPECT_EQ(server.program.Wait(), base::kExitSurroundings);
  EXPECT_THAT(LastLine(server.program), HasSubstr("no memory for 2000"));
}
#endif

INSTANTIATE_TEST_SUITE_P(Perftest, Ends, ::testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "threaded" : "inline");
});

}  // namespace
}  // namespace specfabric::perftest
