// Host time of the n-gram lookup: a token learned, and a proposal, in texts that repeat themselves
// and in such that do not.

#include <random>

#include "benchmark/benchmark.h"
#include "speculation/ngram_lookup.h"

namespace specfabric::speculation {
namespace {

// Phrases of 8 to 24 tokens out of so many, as in code; 0: no phrase ever returns.
std::vector<base::TokenId> Text(int phrases, int size) {
  std::mt19937 random(3);
  std::vector<std::vector<base::TokenId>> known(phrases);
  for (auto& phrase : known) {
    phrase.resize(8 + random() % 17);
    for (base::TokenId& token : phrase) token = static_cast<base::TokenId>(random() % 30'000);
  }
  std::vector<base::TokenId> text;
  while (static_cast<int>(text.size()) < size) {
    if (phrases == 0) {
      text.push_back(static_cast<base::TokenId>(random() % 30'000));
      continue;
    }
    const auto& phrase = known[random() % phrases];
    text.insert(text.end(), phrase.begin(), phrase.end());
  }
  text.resize(size);
  return text;
}

void Append(benchmark::State& state) {
  const auto text = Text(static_cast<int>(state.range(0)), 4096);
  for (auto _ : state) {
    NgramLookup ngram_lookup;
    ngram_lookup.Append(text);
    benchmark::DoNotOptimize(ngram_lookup.size());
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}
BENCHMARK(Append)->Arg(0)->Arg(20);

void Propose(benchmark::State& state) {
  const auto text = Text(static_cast<int>(state.range(0)), 4096);
  NgramLookup ngram_lookup;
  ngram_lookup.Append(absl::MakeConstSpan(text).first(4000));
  size_t at = 4000;
  int64_t nodes = 0;
  for (auto _ : state) {
    const TokenTree tree = ngram_lookup.Propose(24, 16);
    nodes += tree.size() - 1;
    state.PauseTiming();
    ngram_lookup.Append(text[at]);
    if (++at == text.size()) ngram_lookup.Truncate(static_cast<int32_t>(at = 4000));
    state.ResumeTiming();
  }
  state.counters["nodes"] = static_cast<double>(nodes) / static_cast<double>(state.iterations());
}
BENCHMARK(Propose)->Arg(0)->Arg(200)->Arg(20);

}  // namespace
}  // namespace specfabric::speculation
