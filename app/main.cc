#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "app/child.h"
#include "app/flags.h"
#include "app/process.h"
#include "app/roles.h"
#include "app/test_hooks.h"
#include "app/version.h"
#include "base/exit_code.h"
#include "spdlog/spdlog.h"

namespace specfabric::app {
namespace {

// What `arg` asks for, if it is a help argument.
std::optional<HelpScope> HelpAsked(absl::string_view arg) {
  if (arg == "--help=all" || arg == "-help=all") return HelpScope::kAll;
  if (arg == "--help" || arg == "-help" || arg == "-h") return HelpScope::kCommon;
  return std::nullopt;
}

std::optional<HelpScope> HelpAsked(const std::vector<std::string>& args) {
  std::optional<HelpScope> asked;
  for (const std::string& arg : args) {
    const auto one = HelpAsked(absl::string_view(arg));
    if (one.has_value()) asked = one;
  }
  return asked;
}

int Fail(const std::string& role, const absl::Status& status) {
  // A child that did not start has already printed why.
  if (const auto code = ChildExitCode(status)) return *code;
  std::fprintf(stderr, "specfabric %s: %s\n", role.c_str(), std::string(status.message()).c_str());
  return ExitCode(status);
}

int Perftest(const std::vector<std::string>& args) { return Fail("perftest", RunPerftest(args)); }

int UnknownRole(const std::string& given) {
  std::fprintf(stderr, "specfabric: %s\n", NoSuchRole(given).c_str());
  return base::kExitUsage;
}

// `specfabric`, `specfabric help [ROLE]`, `specfabric --help`.
int PrintHelp(const std::vector<std::string>& words) {
  if (words.size() < 2) {
    std::fputs(Overview().c_str(), stdout);
    return words.empty() ? base::kExitUsage : base::kExitOk;
  }
  const std::string& role = words[1];
  if (role == "perftest") return Perftest({"--help"});
  if (!IsRole(role)) return UnknownRole(role);
  std::fputs(Help(role, HelpAsked(words).value_or(HelpScope::kCommon)).c_str(), stdout);
  return base::kExitOk;
}

int Main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.empty() || words[0] == "help" || HelpAsked(absl::string_view(words[0])).has_value()) {
    return PrintHelp(words);
  }
  const std::string& role = words[0];
  if (role == "version" || role == "--version") {
    std::printf("specfabric %s\n", kVersion);
    return 0;
  }
  if (role == "perftest") return Perftest({words.begin() + 1, words.end()});
  if (!IsRole(role)) return UnknownRole(role);
  const std::vector<std::string> args(words.begin() + 1, words.end());
  for (const std::string& arg : args) {
    if (absl::StartsWith(arg, "--help=") && !HelpAsked(absl::string_view(arg)).has_value()) {
      return Fail(role, absl::InvalidArgumentError(absl::StrCat(arg, ": allowed is --help=all")));
    }
  }
  if (const auto scope = HelpAsked(args)) {
    std::fputs(Help(role, *scope).c_str(), stdout);
    return base::kExitOk;
  }
  if (absl::Status parsed = ParseFlags(role, args); !parsed.ok()) return Fail(role, parsed);
  BlockSignals();
  if (FLAGS_ready_fd >= 0) EndWithParent();
  if (absl::Status logging = StartLogging(role, FLAGS_log_level); !logging.ok()) {
    return Fail(role, logging);
  }
  if (const auto hooks = ReadTestHooks(); !hooks.ok()) return Fail(role, hooks.status());
  if (const char* hooks = std::getenv(kTestHooksVariable)) {
    spdlog::warn("{}={}: test hooks are set", kTestHooksVariable, hooks);
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
