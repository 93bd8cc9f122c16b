#ifndef SPECFABRIC_APP_COMMAND_LINE_H_
#define SPECFABRIC_APP_COMMAND_LINE_H_

// How every program of app/ reads its gflags. Precedence: command line, SPECFABRIC_<FLAG> in the
// environment, --flagfile (one flag a line), default. gflags' own reader is not used because it
// ends the process on an error and knows no roles. Dashes in a flag's name are taken for
// underscores:
// --draft-model is --draft_model.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace specfabric::app {

struct CommandLine {
  std::string program;                   // for messages, e.g. "specfabric target"
  std::vector<absl::string_view> flags;  // besides "flagfile", which is always there
};

// Sets the flags and returns the arguments that are none, in order. InvalidArgument, in one line:
// a flag that the program does not have, with the nearest one that it has, or a value that does not
// parse, with what is allowed.
absl::StatusOr<std::vector<std::string>> ReadFlags(const CommandLine& line,
                                                   const std::vector<std::string>& args);

// The name among `known` of which `given` is most likely a misspelling or the beginning; empty if
// none is near.
absl::string_view Nearest(absl::string_view given, const std::vector<absl::string_view>& known);

// "--name", or "-n" where the name is a single letter.
std::string Dashed(absl::string_view flag);

// One line of --help: name, description, default.
std::string Describe(absl::string_view flag);

}  // namespace specfabric::app

#endif  // SPECFABRIC_APP_COMMAND_LINE_H_
