// Drives a fuzz target without libFuzzer: its seeds and a corpus, then mutations of both. The seed
// of the random numbers and the count are arguments, so that a failure can be repeated:
//   decode_fuzz CORPUS_FOLDER [inputs] [seed]

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "tests/fuzz/target.h"

namespace specfabric::fuzz {
namespace {

using Rng = std::mt19937_64;

size_t RandomBelow(Rng& rng, size_t end) { return rng() % end; }

// In the order of their names, which are the same everywhere.
std::vector<Bytes> ReadCorpus(const std::string& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry);
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> corpus;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

// One edit: a flipped bit, a byte, an interesting 32-bit word, a cut, a removed or an inserted
// byte. Edits prefer the first bytes, where offsets and sizes often lie.
void Mutate(Bytes& input, Rng& rng) {
  if (input.empty()) return input.push_back(static_cast<uint8_t>(rng()));
  const size_t reach = RandomBelow(rng, 2) == 0 ? std::min<size_t>(input.size(), 96) : input.size();
  const size_t at = RandomBelow(rng, reach);
  switch (RandomBelow(rng, 6)) {
    case 0:
      input[at] ^= static_cast<uint8_t>(1u << RandomBelow(rng, 8));
      break;
    case 1:
      input[at] = static_cast<uint8_t>(rng());
      break;
    case 2: {
      constexpr uint32_t kWords[] = {0, 1, 4, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x7FC00000};
      const uint32_t word = kWords[RandomBelow(rng, std::size(kWords))];
      for (size_t i = 0; i < 4 && at + i < input.size(); ++i) {
        input[at + i] = static_cast<uint8_t>(word >> (8 * i));
      }
      break;
    }
    case 3:
      input.resize(at);
      break;
    case 4: {
      const size_t end = std::min(input.size(), at + 1 + RandomBelow(rng, 16));
      input.erase(input.begin() + static_cast<ptrdiff_t>(at),
                  input.begin() + static_cast<ptrdiff_t>(end));
      break;
    }
    default:
      input.insert(input.begin() + static_cast<ptrdiff_t>(at), static_cast<uint8_t>(rng()));
      break;
  }
}

int Run(const std::string& corpus_folder, int inputs, uint64_t seed) {
  std::vector<Bytes> starts = Seeds();
  const std::vector<Bytes> corpus = ReadCorpus(corpus_folder);
  starts.insert(starts.end(), corpus.begin(), corpus.end());
  std::printf("%zu seeds, corpus of %zu, %d mutations, seed %llu\n", starts.size() - corpus.size(),
              corpus.size(), inputs, static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  for (const Bytes& input : starts) LLVMFuzzerTestOneInput(input.data(), input.size());
  Rng rng(seed);
  for (int i = 0; i < inputs; ++i) {
    Bytes input = starts[RandomBelow(rng, starts.size())];
    for (size_t edits = 1 + RandomBelow(rng, 4); edits > 0; --edits) Mutate(input, rng);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  return 0;
}

}  // namespace
}  // namespace specfabric::fuzz

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s CORPUS_FOLDER [inputs] [seed]\n", argv[0]);
    return 2;
  }
  const int inputs = argc > 2 ? std::atoi(argv[2]) : 100'000;
  const uint64_t seed = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
  return specfabric::fuzz::Run(argv[1], inputs, seed);
}
