#include "app/command_line.h"

#include <cstdlib>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "gflags/gflags.h"

namespace specfabric::app {
namespace {

absl::Status SetFlag(const CommandLine& line, const std::string& name, const std::string& value) {
  gflags::CommandLineFlagInfo info;
  if (!line.has(name) || !gflags::GetCommandLineFlagInfo(name.c_str(), &info)) {
    return absl::InvalidArgumentError(absl::StrCat(Dashed(name), ": no such flag; `", line.program,
                                                   " --help` lists the ones there are"));
  }
  if (gflags::SetCommandLineOption(name.c_str(), value.c_str()).empty()) {
    return absl::InvalidArgumentError(absl::StrCat(Dashed(name), "=", value,
                                                   ": not a value of type ", info.type,
                                                   " (default ", info.default_value, ")"));
  }
  return absl::OkStatus();
}

bool IsBool(const std::string& name) {
  gflags::CommandLineFlagInfo info;
  return gflags::GetCommandLineFlagInfo(name.c_str(), &info) && info.type == "bool";
}

// One argument, or two: --name=value, --name value, --switch, --noswitch, or a word that is no
// flag. Advances *i.
absl::Status ReadArgument(const CommandLine& line, const std::vector<std::string>& args, size_t* i,
                          std::vector<std::string>* words) {
  const std::string& arg = args[(*i)++];
  if (!absl::StartsWith(arg, "-") || arg == "-") {
    words->push_back(arg);
    return absl::OkStatus();
  }
  std::string name(arg.substr(absl::StartsWith(arg, "--") ? 2 : 1));
  if (const size_t equals = name.find('='); equals != std::string::npos) {
    const std::string value = name.substr(equals + 1);
    name.resize(equals);
    return name == "flagfile" ? absl::OkStatus() : SetFlag(line, name, value);
  }
  if (IsBool(name)) return SetFlag(line, name, "true");
  if (absl::StartsWith(name, "no") && IsBool(name.substr(2))) {
    return SetFlag(line, name.substr(2), "false");
  }
  if (name != "flagfile" && !line.has(name)) return SetFlag(line, name, "");
  if (*i == args.size()) {
    return absl::InvalidArgumentError(absl::StrCat(Dashed(name), ": needs a value"));
  }
  const std::string& value = args[(*i)++];
  return name == "flagfile" ? absl::OkStatus() : SetFlag(line, name, value);
}

absl::StatusOr<std::vector<std::string>> ReadArguments(const CommandLine& line,
                                                       const std::vector<std::string>& args) {
  std::vector<std::string> words;
  for (size_t i = 0; i < args.size();) {
    if (absl::Status read = ReadArgument(line, args, &i, &words); !read.ok()) return read;
  }
  return words;
}

absl::Status ReadFlagFile(const CommandLine& line, const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::InvalidArgumentError(absl::StrCat("--flagfile=", path, ": cannot read"));
  std::vector<std::string> args;
  for (std::string text; std::getline(file, text);) {
    const absl::string_view stripped = absl::StripAsciiWhitespace(text);
    if (!stripped.empty() && !absl::StartsWith(stripped, "#")) args.emplace_back(stripped);
  }
  const auto words = ReadArguments(line, args);
  if (!words.ok()) return words.status();
  if (words->empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--flagfile=", path, ": '", words->front(),
                                                 "': not a flag; one --name=value a line"));
}

absl::Status ReadEnvironment(const CommandLine& line) {
  std::vector<gflags::CommandLineFlagInfo> all;
  gflags::GetAllFlags(&all);
  for (const auto& info : all) {
    const std::string variable = absl::StrCat("SPECFABRIC_", absl::AsciiStrToUpper(info.name));
    const char* value = std::getenv(variable.c_str());
    if (value == nullptr || info.name == "flagfile" || !line.has(info.name)) continue;
    if (absl::Status set = SetFlag(line, info.name, value); !set.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(variable, " in the environment: ", set.message()));
    }
  }
  return absl::OkStatus();
}

std::string FlagFileOf(const std::vector<std::string>& args) {
  for (size_t i = 0; i < args.size(); ++i) {
    absl::string_view arg = args[i];
    if (absl::ConsumePrefix(&arg, "--flagfile=")) return std::string(arg);
    if (arg == "--flagfile" && i + 1 < args.size()) return args[i + 1];
  }
  const char* value = std::getenv("SPECFABRIC_FLAGFILE");
  return value == nullptr ? "" : value;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ReadFlags(const CommandLine& line,
                                                   const std::vector<std::string>& args) {
  if (const std::string path = FlagFileOf(args); !path.empty()) {
    if (absl::Status read = ReadFlagFile(line, path); !read.ok()) return read;
  }
  if (absl::Status read = ReadEnvironment(line); !read.ok()) return read;
  return ReadArguments(line, args);
}

std::string Dashed(absl::string_view flag) {
  return absl::StrCat(flag.size() == 1 ? "-" : "--", flag);
}

std::string Describe(absl::string_view flag) {
  gflags::CommandLineFlagInfo info;
  if (!gflags::GetCommandLineFlagInfo(std::string(flag).c_str(), &info)) return "";
  const std::string shown =
      info.default_value.empty() ? "" : absl::StrCat(" (", info.default_value, ")");
  return absl::StrFormat("  %-25s %s%s\n", Dashed(flag), info.description, shown);
}

}  // namespace specfabric::app
