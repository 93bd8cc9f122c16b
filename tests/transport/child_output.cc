#include "tests/transport/child_output.h"

#include <unistd.h>

#include <cstdio>

namespace specfabric::transport {
namespace {

std::FILE* output = nullptr;

}  // namespace

bool TakeOutput() {
  output = fdopen(dup(STDOUT_FILENO), "w");
  return output != nullptr && dup2(STDERR_FILENO, STDOUT_FILENO) >= 0;
}

void Say(const std::string& line) {
  std::fprintf(output, "%s\n", line.c_str());
  std::fflush(output);
}

}  // namespace specfabric::transport
