// With SPECFABRIC_WRITE_SEEDS=FOLDER in the environment a libFuzzer binary writes its seeds there,
// one file each, and ends.

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* folder = std::getenv("SPECFABRIC_WRITE_SEEDS");
  if (folder == nullptr) return 0;
  int count = 0;
  for (const specfabric::fuzz::Bytes& seed : specfabric::fuzz::Seeds()) {
    const std::string path = std::string(folder) + "/seed-" + std::to_string(count++);
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(seed.data()),
               static_cast<std::streamsize>(seed.size()));
    if (!file.flush()) {
      std::fprintf(stderr, "cannot write %s\n", path.c_str());
      std::exit(1);
    }
  }
  std::exit(0);
}
