#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "app/child.h"
#include "app/flags.h"
#include "app/process.h"
#include "app/roles.h"
#include "app/version.h"
#include "base/exit_code.h"

namespace specfabric::app {
namespace {

bool WantsHelp(const std::vector<std::string>& args) {
  for (const std::string& arg : args) {
    if (arg == "--help" || arg == "-h" || arg == "-help") return true;
  }
  return false;
}

int Fail(const std::string& role, const absl::Status& status) {
  // A child that did not start has printed its line already; a second one would say less.
  if (const auto code = ChildExitCode(status)) return *code;
  std::fprintf(stderr, "specfabric %s: %s\n", role.c_str(), std::string(status.message()).c_str());
  return ExitCode(status);
}

int Perftest(const std::vector<std::string>& args) { return Fail("perftest", RunPerftest(args)); }

int UnknownRole(const std::string& given) {
  std::fprintf(stderr, "specfabric: %s\n", NoSuchRole(given).c_str());
  return base::kExitUsage;
}

int Main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.empty() || words[0] == "help" || words[0] == "--help" || words[0] == "-h") {
    if (words.size() > 1 && words[1] == "perftest") return Perftest({"--help"});
    if (words.size() > 1 && !IsRole(words[1])) return UnknownRole(words[1]);
    std::fputs(Help(words.size() > 1 ? words[1] : "").c_str(), stdout);
    return words.empty() ? base::kExitUsage : base::kExitOk;
  }
  const std::string& role = words[0];
  if (role == "version" || role == "--version") {
    std::printf("specfabric %s\n", kVersion);
    return 0;
  }
  if (role == "perftest") return Perftest({words.begin() + 1, words.end()});
  if (!IsRole(role)) return UnknownRole(role);
  const std::vector<std::string> args(words.begin() + 1, words.end());
  if (WantsHelp(args)) {
    std::fputs(Help(role).c_str(), stdout);
    return 0;
  }
  if (absl::Status parsed = ParseFlags(role, args); !parsed.ok()) return Fail(role, parsed);
  BlockSignals();
  if (FLAGS_ready_fd >= 0) EndWithParent();
  if (absl::Status logging = StartLogging(role, FLAGS_log_level); !logging.ok()) {
    return Fail(role, logging);
  }
  static const std::map<std::string, std::function<absl::Status()>> roles = {
      {"up", RunUp},
      {"gateway", RunGateway},
      {"target", RunTarget},
      {"rank", RunRank},
      {"draft", RunDraft},
      {"generate", RunGenerate},
      {"simulate", RunSimulate},
      {"status", RunStatus},
  };
  const absl::Status ran = roles.at(role)();
  return ran.ok() ? 0 : Fail(role, ran);
}

}  // namespace
}  // namespace specfabric::app

int main(int argc, char** argv) { return specfabric::app::Main(argc, argv); }
