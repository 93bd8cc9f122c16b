// What a grammar costs a node of a tree, on one core, with a byte-level vocabulary of 128,256
// tokens made up here: the mask of what may follow, and to go down to the node and back. Texts are
// drawn from what each grammar allows.
//
//   mask_bench [TOKENS]

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "nlohmann/json.hpp"
#include "tests/base/temp_dir.h"
#include "tokenizer/grammar.h"
#include "tokenizer/tokenizer.h"

namespace specfabric::tokenizer {
namespace {

using base::GrammarLanguage;
using base::TokenId;
using Json = nlohmann::json;

constexpr int kVocabulary = 128'256;
constexpr int kEnd = 256;  // after the bytes
constexpr const char* kEndText = "<|end|>";

// The character that stands for a byte, as byte-level tokenizers write it.
std::string ByteCharacter(int byte) {
  const bool itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
  int point = byte;
  if (!itself) {
    point = 0x100;
    for (int other = 0; other < byte; ++other) {
      point += (other >= 0x21 && other <= 0x7E) || (other >= 0xA1 && other != 0xAD) ? 0 : 1;
    }
  }
  if (point < 0x80) return std::string(1, static_cast<char>(point));
  return {static_cast<char>(0xC0 | point >> 6), static_cast<char>(0x80 | (point & 0x3F))};
}

// Merges of pairs at random, most of letters, as those of texts are.
Json MakeTokenizer() {
  std::mt19937 random(1);
  std::vector<std::string> letters, others;
  Json vocabulary = Json::object(), merges = Json::array();
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary[ByteCharacter(byte)] = byte;
    const bool letter = (byte >= 'a' && byte <= 'z') || byte == ' ' || (byte >= '0' && byte <= '9');
    if (byte >= ' ' && byte < 0x7F) (letter ? letters : others).push_back(ByteCharacter(byte));
  }
  vocabulary[kEndText] = kEnd;
  std::unordered_set<std::string> known(letters.begin(), letters.end());
  known.insert(others.begin(), others.end());
  int size = kEnd + 1;
  while (size < kVocabulary) {
    std::vector<std::string>& from = random() % 8 == 0 ? others : letters;
    const std::string a = from[random() % from.size()], b = from[random() % from.size()];
    if (a.size() + b.size() > 16 || !known.insert(a + b).second) continue;
    merges.push_back(a + " " + b);
    vocabulary[a + b] = size++;
    from.push_back(a + b);
  }
  return {{"version", "1.0"},
          {"added_tokens", Json::array({{{"id", kEnd},
                                         {"content", kEndText},
                                         {"single_word", false},
                                         {"lstrip", false},
                                         {"rstrip", false},
                                         {"normalized", false},
                                         {"special", true}}})},
          {"pre_tokenizer",
           {{"type", "ByteLevel"},
            {"add_prefix_space", false},
            {"trim_offsets", true},
            {"use_regex", true}}},
          {"decoder",
           {{"type", "ByteLevel"},
            {"add_prefix_space", false},
            {"trim_offsets", true},
            {"use_regex", true}}},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}}};
}

template <typename T>
T Checked(absl::StatusOr<T> made) {
  if (made.ok()) return *std::move(made);
  std::fprintf(stderr, "mask_bench: %s\n", std::string(made.status().message()).c_str());
  std::exit(1);
}

double Microseconds(base::Nanos time) { return static_cast<double>(time) / base::kMicrosecond; }

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

struct Costs {
  std::vector<double> mask, walk;  // microseconds
};

// Texts one after the other, so many tokens of them.
Costs Draw(const GrammarMatcher& start, int tokens) {
  std::mt19937 random(2);
  std::vector<uint32_t> mask(MaskWords(kVocabulary));
  GrammarMatcher matcher = start.Clone();
  Costs costs;
  for (int i = 0; i < tokens; ++i) {
    const base::Nanos began = base::Now();
    const bool masked = matcher.Mask(absl::MakeSpan(mask)).ok();
    costs.mask.push_back(Microseconds(base::Now() - began));
    std::vector<TokenId> allowed;
    for (TokenId id = 0; masked && id < kVocabulary; ++id) {
      if (mask[id / 32] >> (id % 32) & 1) allowed.push_back(id);
    }
    const TokenId next = allowed.empty() ? kEnd : allowed[random() % allowed.size()];
    if (next == kEnd) {
      matcher = start.Clone();
      continue;
    }
    const base::Nanos down = base::Now();
    const bool good = matcher.Consume({next}).ok() && matcher.Rollback(1).ok();
    costs.walk.push_back(Microseconds(base::Now() - down));
    if (!good || !matcher.Consume({next}).ok()) matcher = start.Clone();
  }
  return costs;
}

int Main(int argc, char** argv) {
  const int tokens = argc > 1 ? std::atoi(argv[1]) : 2000;
  const base::TempDir dir;
  dir.Write("tokenizer.json", MakeTokenizer().dump());
  dir.Write("config.json", Json({{"eos_token_id", kEnd}}).dump());
  const auto tokenizer = Checked(Tokenizer::Load(dir.path()));
  const base::Nanos began = base::Now();
  const auto grammars = Checked(Grammars::Create(*tokenizer));
  std::printf("a vocabulary of %d tokens is prepared in %.0f ms\n\n", tokenizer->vocab_size(),
              Microseconds(base::Now() - began) / 1e3);
  const std::pair<const char*, base::Grammar> cases[] = {
      {"record",
       {GrammarLanguage::kJsonSchema,
        R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"},
                      "tags":{"type":"array","items":{"enum":["red","green","blue"]}}},
                      "required":["name","age","tags"],"additionalProperties":false})"}},
      {"any object", {GrammarLanguage::kJsonSchema, R"({"type":"object"})"}},
      {"bounded strings",
       {GrammarLanguage::kJsonSchema,
        R"({"type":"array","items":{"type":"string","maxLength":20}})"}},
      {"regex", {GrammarLanguage::kRegex, "([a-z]+ ){3,12}[0-9]{4}-[0-9]{2}"}},
      {"choice", {GrammarLanguage::kChoice, R"(["yes","no","perhaps not"])"}},
  };
  std::printf("| grammar | compile, ms | mask, us, median | p99 | down and back, us, median |\n");
  std::printf("|---|---|---|---|---|\n");
  for (const auto& [name, grammar] : cases) {
    const base::Nanos compiled = base::Now();
    const GrammarMatcher start = Checked(grammars->Compile(grammar));
    const double compile = Microseconds(base::Now() - compiled) / 1e3;
    const Costs costs = Draw(start, tokens);
    std::printf("| %s | %.1f | %.0f | %.0f | %.0f |\n", name, compile, Quantile(costs.mask, 0.5),
                Quantile(costs.mask, 0.99), Quantile(costs.walk, 0.5));
  }
  return 0;
}

}  // namespace
}  // namespace specfabric::tokenizer

int main(int argc, char** argv) { return specfabric::tokenizer::Main(argc, argv); }
