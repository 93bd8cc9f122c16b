// Compares the policies that choose among drafters (speculation/drafter_choice.h) on workloads of
// two halves, code and then prose, in which the best drafter changes.
//
//   drafters_bench [ROUNDS]      rounds of each half of the synthetic workload; run it in the
//                                repository's root
//
// Two workloads, both with modelled times (a step of 20 ms; a reply of 2 ms):
//   synthetic  each drafter's trees agree with the text for a geometric number of levels, with a
//              probability that depends on the half
//   recorded   the repository's own text, as words: half of its Python sources, then half of its
//              documents. Two drafters propose by n-gram lookup (speculation/ngram_lookup.h), each
//              in the other half of one of these; a third only in the text so far
//
// A round yields 1 + levels tokens and takes a step plus the chosen drafter's reply, or the slowest
// reply if all are asked. Prints each policy's tokens per second on each half, and as a part of
// what the best drafter of that half alone reaches. The oracle policy knows each round's best
// drafter.

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "speculation/drafter_choice.h"
#include "speculation/merge.h"
#include "speculation/ngram_lookup.h"

namespace specfabric::bench {
namespace {

using base::TokenId;
using speculation::ChoicePolicy;
using speculation::DrafterChoice;
using speculation::NgramLookup;

constexpr double kStep = 20e-3, kReply = 2e-3;  // s
constexpr int kMostLevels = 8;  // that a reward counts, as in target/drafter_selection.cc

// The levels of each drafter's tree that agree with the text, round by round. Advance says by how
// many tokens the text has gone on.
class Workload {
 public:
  virtual ~Workload() = default;
  virtual int drafters() const = 0;
  virtual void Restart() = 0;
  virtual bool Done(int half) const = 0;
  virtual std::vector<int> Levels() = 0;  // of each drafter, here
  virtual void Advance(int tokens) = 0;
};

class Synthetic final : public Workload {
 public:
  explicit Synthetic(int rounds) : rounds_(rounds) {}
  int drafters() const override { return 2; }
  void Restart() override {
    random_.seed(5);
    round_ = 0;
  }
  bool Done(int half) const override { return round_ >= rounds_ * (half + 1); }
  std::vector<int> Levels() override {
    static constexpr double kChance[2][2] = {{.8, .5}, {.4, .7}};  // [half][drafter]
    std::vector<int> levels;
    for (double chance : kChance[round_ >= rounds_]) {
      int level = 0;
      while (level < 6 && std::uniform_real_distribution<>()(random_) < chance) ++level;
      levels.push_back(level);
    }
    return levels;
  }
  void Advance(int /*tokens*/) override { ++round_; }

 private:
  int rounds_;
  int round_ = 0;
  std::mt19937 random_;
};

std::string Read(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Files of this kind, in a fixed order, every second one: which = 0 or 1.
std::string Sources(const std::string& extension, int which) {
  std::vector<std::filesystem::path> paths;
  for (const char* folder : {"scripts", "tests", "bench", "docs"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (entry.path().extension() == extension) paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  std::string text;
  for (size_t i = which; i < paths.size(); i += 2) text += Read(paths[i]);
  return text;
}

// Words, runs of blanks, and other characters one by one.
std::vector<TokenId> Words(const std::string& text, std::unordered_map<std::string, TokenId>* ids) {
  std::vector<TokenId> words;
  for (size_t at = 0; at < text.size();) {
    size_t end = at + 1;
    const auto kind = [&](size_t i) {
      const auto c = static_cast<unsigned char>(text[i]);
      return std::isalnum(c) != 0 || c == '_' ? 1 : c == ' ' ? 2 : 0;
    };
    while (kind(at) != 0 && end < text.size() && kind(end) == kind(at)) ++end;
    words.push_back(ids->try_emplace(text.substr(at, end - at), ids->size()).first->second);
    at = end;
  }
  return words;
}

class Recorded final : public Workload {
 public:
  explicit Recorded(size_t most) {
    std::unordered_map<std::string, TokenId> ids;
    const char* extensions[] = {".py", ".md"};
    for (int half = 0; half < 2; ++half) {
      known_[half] = Words(Sources(extensions[half], 1), &ids);
      std::vector<TokenId> words = Words(Sources(extensions[half], 0), &ids);
      words.resize(std::min(words.size(), most));
      text_.insert(text_.end(), words.begin(), words.end());
      ends_[half] = text_.size();
    }
    Restart();
  }
  int drafters() const override { return 3; }
  void Restart() override {
    ngram_lookups_.assign(3, NgramLookup({.candidates = 8}));
    for (int half = 0; half < 2; ++half) ngram_lookups_[half].Append(known_[half]);
    at_ = 0;
    Advance(8);
  }
  bool Done(int half) const override { return at_ >= ends_[half]; }
  std::vector<int> Levels() override {
    std::vector<int> levels;
    const auto rest = absl::MakeConstSpan(text_).subspan(at_);
    for (size_t d = 0; d < ngram_lookups_.size(); ++d) {
      levels.push_back(speculation::AgreesWith(ngram_lookups_[d].Propose(16, 8), rest).levels);
    }
    return levels;
  }
  void Advance(int tokens) override {
    for (; tokens > 0 && at_ < text_.size(); --tokens, ++at_) {
      for (NgramLookup& ngram_lookup : ngram_lookups_) ngram_lookup.Append(text_[at_]);
    }
  }

 private:
  std::vector<TokenId> known_[2], text_;
  size_t ends_[2] = {}, at_ = 0;
  std::vector<NgramLookup> ngram_lookups_;
};

double Reward(int levels) {
  return (1.0 + std::min(levels, kMostLevels)) / (1 + kMostLevels) * kStep / (kStep + kReply);
}

struct Result {
  double rate[2] = {};  // tokens a second, by half
};

Result Play(Workload* workload, const speculation::ChoiceOptions& options) {
  DrafterChoice choice(options, workload->drafters());
  workload->Restart();
  Result result;
  for (int half = 0; half < 2; ++half) {
    double tokens = 0, seconds = 0;
    while (!workload->Done(half)) {
      const std::vector<int> levels = workload->Levels();
      std::vector<double> rewards;
      for (int level : levels) rewards.push_back(Reward(level));
      if (options.policy == ChoicePolicy::kOracle) choice.Foresee(rewards);
      const DrafterChoice::Round round = choice.Next();
      choice.Rewarded(round.drafter, rewards[round.drafter]);
      const int right = levels[round.drafter];
      if (round.score_all) {
        choice.Scored(std::vector<std::optional<double>>(rewards.begin(), rewards.end()));
      }
      tokens += 1 + right;
      // Each further drafter that is asked adds a pass, as if they shared one machine.
      seconds += kStep + kReply * (round.score_all ? workload->drafters() : 1);
      workload->Advance(1 + right);
    }
    result.rate[half] = tokens / seconds;
  }
  return result;
}

void Compare(const char* name, Workload* workload) {
  std::vector<Result> fixed;
  int best[2] = {0, 0};
  for (int d = 0; d < workload->drafters(); ++d) {
    fixed.push_back(Play(workload, {.policy = ChoicePolicy::kFixed, .fixed = d}));
    for (int half = 0; half < 2; ++half) {
      if (fixed[d].rate[half] > fixed[best[half]].rate[half]) best[half] = d;
    }
  }
  std::printf("%-10s %-10s %12s %12s %10s %10s\n", name, "policy", "half 1", "half 2", "of best",
              "of best");
  const auto print = [&](const std::string& policy, const Result& result) {
    std::printf("%-10s %-10s %8.1f t/s %8.1f t/s %9.1f%% %9.1f%%\n", "", policy.c_str(),
                result.rate[0], result.rate[1], 100 * result.rate[0] / fixed[best[0]].rate[0],
                100 * result.rate[1] / fixed[best[1]].rate[1]);
  };
  for (size_t d = 0; d < fixed.size(); ++d) print("fixed " + std::to_string(d), fixed[d]);
  for (const ChoicePolicy policy : {ChoicePolicy::kHedge, ChoicePolicy::kUcb1,
                                    ChoicePolicy::kThompson, ChoicePolicy::kOracle}) {
    print(Name(policy), Play(workload, {.policy = policy, .seed = 3}));
  }
}

}  // namespace
}  // namespace specfabric::bench

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 2000;
  if (rounds < 1) {
    std::fprintf(stderr, "ROUNDS=%s: allowed are 1 or more\n", argv[1]);
    return 2;
  }
  specfabric::bench::Synthetic synthetic(rounds);
  specfabric::bench::Compare("synthetic", &synthetic);
  specfabric::bench::Recorded recorded(20'000);
  specfabric::bench::Compare("recorded", &recorded);
  return 0;
}
