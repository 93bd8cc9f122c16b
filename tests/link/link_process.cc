// A draft worker's link without the worker, for tests that kill or stop it: link_process HOST:PORT
// keeps connected to that address until its standard input ends.

#include <unistd.h>

#include <cstdio>

#include "tests/link/service.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: link_process HOST:PORT\n");
    return 2;
  }
  using specfabric::link::LinkOptions;
  LinkOptions options = specfabric::link::TestOptions(specfabric::schemas::Role::kDraft);
  options.connect = {argv[1]};
  options.fabric.silence_timeout = 500 * specfabric::base::kMillisecond;
  specfabric::link::Service service(options);
  char ignored;
  while (read(STDIN_FILENO, &ignored, 1) > 0) {
  }
  return 0;
}
