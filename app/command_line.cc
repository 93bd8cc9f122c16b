#include "app/command_line.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "gflags/gflags.h"

namespace specfabric::app {
namespace {

constexpr absl::string_view kFlagFile = "flagfile";

bool Has(const CommandLine& line, absl::string_view name) {
  return name == kFlagFile || absl::c_linear_search(line.flags, name);
}

absl::Status NoSuchFlag(const CommandLine& line, const std::string& name) {
  std::vector<absl::string_view> known = line.flags;
  known.push_back(kFlagFile);
  const absl::string_view nearest = Nearest(name, known);
  return absl::InvalidArgumentError(
      absl::StrCat(Dashed(name), ": no such flag; ",
                   nearest.empty() ? "" : absl::StrCat("did you mean ", Dashed(nearest), "? "), "`",
                   line.program, " --help` lists the ones there are"));
}

// The values that a flag of gflags' `type` takes.
absl::string_view AllowedValues(absl::string_view type) {
  if (type == "bool") return "true and false";
  if (type == "int32") return "whole numbers of 32 bits";
  if (type == "int64") return "whole numbers of 64 bits";
  if (type == "uint32" || type == "uint64") return "whole numbers from 0";
  return "numbers";
}

absl::Status SetFlag(const std::string& name, const std::string& value) {
  gflags::CommandLineFlagInfo info;
  gflags::GetCommandLineFlagInfo(name.c_str(), &info);
  if (gflags::SetCommandLineOption(name.c_str(), value.c_str()).empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Dashed(name), "=", value, ": allowed are ", AllowedValues(info.type)));
  }
  return absl::OkStatus();
}

bool IsBool(const CommandLine& line, const std::string& name) {
  gflags::CommandLineFlagInfo info;
  return Has(line, name) && gflags::GetCommandLineFlagInfo(name.c_str(), &info) &&
         info.type == "bool";
}

// A flag's value as given, before it is set.
struct Assignment {
  std::string name, value;
};
struct Arguments {
  std::vector<Assignment> assignments;
  std::vector<std::string> words;  // arguments that are no flag
};

// The boolean flag that `name` turns off ("nojson", "no_json"); empty if none.
std::string TurnedOff(const CommandLine& line, absl::string_view name) {
  if (!absl::ConsumePrefix(&name, "no")) return "";
  absl::ConsumePrefix(&name, "_");
  return IsBool(line, std::string(name)) ? std::string(name) : "";
}

// One argument, or two: --name=value, --name value, --name, --noname, or a word that is no
// flag. Advances *i.
absl::Status ParseArgument(const CommandLine& line, const std::vector<std::string>& args, size_t* i,
                           Arguments* read) {
  const std::string& arg = args[(*i)++];
  if (!absl::StartsWith(arg, "-") || arg == "-") {
    read->words.push_back(arg);
    return absl::OkStatus();
  }
  std::string name(arg.substr(absl::StartsWith(arg, "--") ? 2 : 1));
  const size_t equals = name.find('=');
  std::string value = equals == std::string::npos ? "" : name.substr(equals + 1);
  name.resize(std::min(equals, name.size()));
  absl::c_replace(name, '-', '_');
  if (equals == std::string::npos && IsBool(line, name)) {
    value = "true";
  } else if (std::string off; equals == std::string::npos && !Has(line, name) &&
                              !(off = TurnedOff(line, name)).empty()) {
    name = std::move(off);
    value = "false";
  } else if (!Has(line, name)) {
    return NoSuchFlag(line, name);
  } else if (equals == std::string::npos) {
    if (*i == args.size()) {
      return absl::InvalidArgumentError(absl::StrCat(Dashed(name), ": needs a value"));
    }
    value = args[(*i)++];
  }
  read->assignments.push_back({std::move(name), std::move(value)});
  return absl::OkStatus();
}

absl::StatusOr<Arguments> ParseArguments(const CommandLine& line,
                                         const std::vector<std::string>& args) {
  Arguments read;
  for (size_t i = 0; i < args.size();) {
    if (absl::Status parsed = ParseArgument(line, args, &i, &read); !parsed.ok()) return parsed;
  }
  return read;
}

absl::Status SetFlags(const std::vector<Assignment>& assignments) {
  for (const auto& [name, value] : assignments) {
    if (name == kFlagFile) continue;
    if (absl::Status set = SetFlag(name, value); !set.ok()) return set;
  }
  return absl::OkStatus();
}

absl::Status ReadFlagFile(const CommandLine& line, const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::InvalidArgumentError(absl::StrCat("--flagfile=", path, ": cannot read"));
  std::vector<std::string> args;
  for (std::string text; std::getline(file, text);) {
    const absl::string_view stripped = absl::StripAsciiWhitespace(text);
    if (!stripped.empty() && !absl::StartsWith(stripped, "#")) args.emplace_back(stripped);
  }
  const auto read = ParseArguments(line, args);
  if (!read.ok()) return read.status();
  if (!read->words.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--flagfile=", path, ": '", read->words.front(),
                                                   "': not a flag; one --name=value a line"));
  }
  return SetFlags(read->assignments);
}

absl::Status ReadEnvironment(const CommandLine& line) {
  std::vector<gflags::CommandLineFlagInfo> all;
  gflags::GetAllFlags(&all);
  for (const auto& info : all) {
    const std::string variable = absl::StrCat("SPECFABRIC_", absl::AsciiStrToUpper(info.name));
    const char* value = std::getenv(variable.c_str());
    const bool known = info.name != kFlagFile && Has(line, info.name);
    if (value == nullptr || !known) continue;
    if (absl::Status set = SetFlag(info.name, value); !set.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(variable, " in the environment: ", set.message()));
    }
  }
  return absl::OkStatus();
}

std::string FlagFileOf(const std::vector<Assignment>& assignments) {
  for (auto it = assignments.rbegin(); it != assignments.rend(); ++it) {
    if (it->name == kFlagFile) return it->value;
  }
  const char* value = std::getenv("SPECFABRIC_FLAGFILE");
  return value == nullptr ? "" : value;
}

// Edit distance: insertions, deletions, replacements and swaps of neighbours.
size_t Distance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> before, last, row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t differs = a[i - 1] == b[j - 1] ? 0 : 1;
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + differs});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ReadFlags(const CommandLine& line,
                                                   const std::vector<std::string>& args) {
  auto read = ParseArguments(line, args);
  if (!read.ok()) return read.status();
  if (const std::string path = FlagFileOf(read->assignments); !path.empty()) {
    if (absl::Status file = ReadFlagFile(line, path); !file.ok()) return file;
  }
  if (absl::Status environment = ReadEnvironment(line); !environment.ok()) return environment;
  if (absl::Status set = SetFlags(read->assignments); !set.ok()) return set;
  return std::move(read->words);
}

absl::string_view Nearest(absl::string_view given, const std::vector<absl::string_view>& known) {
  // With more than a third of its letters changed it is another word, not a misspelling.
  const size_t most = given.size() <= 3 ? 1 : std::max<size_t>(2, given.size() / 3);
  size_t least = most + 1;
  absl::string_view nearest;
  for (absl::string_view word : known) {
    const size_t longer = std::max(word.size(), given.size());
    // Also bounds the time, which grows with the product of the lengths.
    if (longer - std::min(word.size(), given.size()) > most) continue;
    const size_t distance = Distance(given, word);
    if (distance >= least || distance == longer) continue;
    least = distance;
    nearest = word;
  }
  if (!nearest.empty() || given.size() < 3) return nearest;
  for (absl::string_view word : known) {
    const bool shorter = nearest.empty() || word.size() < nearest.size();
    if (absl::StartsWith(word, given) && shorter) nearest = word;
  }
  return nearest;
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
