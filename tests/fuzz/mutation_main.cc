// Drives a libFuzzer target without libFuzzer: valid messages, mutated. The seed and the number of
// inputs are arguments, so that a failure can be repeated: decode_fuzz [inputs] [seed].

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "tests/schemas/random_messages.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace specfabric::schemas {
namespace {

using Bytes = std::vector<uint8_t>;

// Valid messages in the fuzz target's own format: the index of the message, then its payload.
std::vector<Bytes> SeedInputs(Rng& rng, int each) {
  std::vector<Bytes> inputs;
  uint8_t index = 0;
  const auto add = [&](auto make) {
    for (int i = 0; i < each; ++i) {
      Bytes input{index};
      const Bytes payload = Encode(make());
      input.insert(input.end(), payload.begin(), payload.end());
      inputs.push_back(std::move(input));
    }
    ++index;
  };
#define SPECFABRIC_SEEDS(M) add([&rng] { return RandomMessage<M>(rng); });
  SPECFABRIC_MESSAGES(SPECFABRIC_SEEDS)
#undef SPECFABRIC_SEEDS
  return inputs;
}

size_t RandomIndex(Rng& rng, size_t size) {
  return std::uniform_int_distribution<size_t>(0, size - 1)(rng);
}

// One edit: a flipped bit, a byte, an interesting 32-bit word, a cut, or a removed stretch. Edits
// prefer the first bytes, where offsets and vtables often lie.
void Mutate(Bytes& input, Rng& rng) {
  if (input.empty()) return;
  const size_t reach =
      RandomInt(rng, 0, 1) == 0 ? std::min<size_t>(input.size(), 96) : input.size();
  const size_t at = RandomIndex(rng, reach);
  switch (RandomInt(rng, 0, 5)) {
    case 0:
      input[at] ^= static_cast<uint8_t>(1u << RandomInt(rng, 0, 7));
      break;
    case 1:
      input[at] = static_cast<uint8_t>(rng());
      break;
    case 2: {
      constexpr uint32_t kWords[] = {0, 1, 4, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x7FC00000};
      const uint32_t word = kWords[RandomIndex(rng, std::size(kWords))];
      for (size_t i = 0; i < 4 && at + i < input.size(); ++i) {
        input[at + i] = static_cast<uint8_t>(word >> (8 * i));
      }
      break;
    }
    case 3:
      input.resize(at);
      break;
    case 4:
      input.erase(input.begin() + at,
                  input.begin() + std::min(input.size(), at + RandomIndex(rng, 16)));
      break;
    default:
      input.insert(input.begin() + at, static_cast<uint8_t>(rng()));
      break;
  }
}

int Run(int inputs, uint64_t seed) {
  std::printf("decode_fuzz: %d inputs, seed %llu\n", inputs, static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  Rng rng(seed);
  const std::vector<Bytes> seeds = SeedInputs(rng, 20);
  for (const Bytes& input : seeds) LLVMFuzzerTestOneInput(input.data(), input.size());
  for (int i = 0; i < inputs; ++i) {
    Bytes input = seeds[RandomIndex(rng, seeds.size())];
    for (int edits = RandomInt(rng, 1, 4); edits > 0; --edits) Mutate(input, rng);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  return 0;
}

}  // namespace
}  // namespace specfabric::schemas

int main(int argc, char** argv) {
  const int inputs = argc > 1 ? std::atoi(argv[1]) : 100'000;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  return specfabric::schemas::Run(inputs, seed);
}
