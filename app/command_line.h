#ifndef SPECFABRIC_APP_COMMAND_LINE_H_
#define SPECFABRIC_APP_COMMAND_LINE_H_

// How every program of app/ reads its gflags: the command line goes before SPECFABRIC_<FLAG> in the
// environment, that before --flagfile (one flag a line), that before the default. gflags' own
// reader ends the process by itself and knows no roles. Dashes in a flag's name are taken for
// underscores: --draft-model is --draft_model.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace specfabric::app {

struct CommandLine {
  std::string program;                   // for messages, e.g. "specfabric target"
  std::vector<absl::string_view> flags;  // besides "flagfile", which is always there
};

// Sets the flags, and returns the words that belong to none, in order. InvalidArgument: a flag that
// the program does not have, or a value that does not parse: one line with what was given and what
// is allowed, or the nearest flag there is.
absl::StatusOr<std::vector<std::string>> ReadFlags(const CommandLine& line,
                                                   const std::vector<std::string>& args);

// The one of `known` that `given` most likely is a misspelling or the beginning of; empty if none
// is near.
absl::string_view Nearest(absl::string_view given, const std::vector<absl::string_view>& known);

// "--name", or "-n" where the name is a single letter.
std::string Dashed(absl::string_view flag);

// One line of --help: name, description, default.
std::string Describe(absl::string_view flag);

}  // namespace specfabric::app

#endif  // SPECFABRIC_APP_COMMAND_LINE_H_
