// Cost of verification on the CPU: 8 sequences of 64 nodes over 128,256 tokens, float32 logits, one
// thread. Each way is compared with a plain read of the same logits, measured in the same turn.
//
//   verify_bench [REPETITIONS]

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/isa.h"
#include "bench/plain_read.h"
#include "sampling/draft_row.h"
#include "sampling/gumbel.h"
#include "sampling/sampling.h"
#include "speculation/draft_probs.h"
#include "speculation/tree.h"
#include "verification/cpu/tree_verifier.h"
#include "verification/randomness.h"

namespace specfabric::target {
namespace {

using speculation::SiblingDraw;
using speculation::TokenTree;
using speculation::VerificationMethod;

constexpr int kSequences = 8;
constexpr int kNodes = 64;
constexpr int kVocabulary = 128'256;
constexpr uint32_t kPosition = 100;
constexpr double kRowBytes = 4.0 * kVocabulary;
// Where a draft's logits differ from the target's by normal noise of this deviation, the total
// variation of the two distributions is about one half.
constexpr float kDisagreement = 1.4f;

// --- What is verified ---------------------------------------------------------------------------

// A draft's reply: the tree and, where siblings were drawn by chance, the rows that they came from.
struct Reply {
  TokenTree tree = TokenTree::Root(0);
  std::vector<int32_t> row_of = {0};
  std::vector<uint64_t> slot = {};
  speculation::DraftProbs draft_probs = {};
};

struct Sequence {
  absl::Span<const float> logits;  // [kNodes][kVocabulary]
  Reply drawn;                     // siblings without replacement from a draft that half agrees
  Reply certain;                   // a chain that rejection and traversal accept to its end
  Reply shared_noise;              // the draft's best perturbed scores

  absl::Span<const float> Row(int node) const {
    return logits.subspan(static_cast<size_t>(node) * kVocabulary, kVocabulary);
  }
};

// Rows in which a few tokens have most of the mass, as a language model's do.
std::vector<float> MakeLogits() {
  std::vector<float> logits(static_cast<size_t>(kSequences) * kNodes * kVocabulary);
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 2.5f);
  for (float& logit : logits) logit = normal(random);
  for (size_t row = 0; row < static_cast<size_t>(kSequences) * kNodes; ++row) {
    for (int i = 0; i < 10; ++i) {
      logits[row * kVocabulary + random() % kVocabulary] = 13.0f + normal(random) / 2;
    }
  }
  return logits;
}

void FillSlot(const std::vector<std::vector<uint16_t>>& rows, Reply* reply) {
  const speculation::DraftProbsShape shape{
      .rows = static_cast<int32_t>(rows.size()), .vocabulary = kVocabulary, .entries = kVocabulary};
  reply->slot.resize((shape.bytes() + 7) / 8);
  uint8_t* const slot = reinterpret_cast<uint8_t*>(reply->slot.data());
  speculation::DraftProbsWriter writer(shape, slot);
  for (int32_t row = 0; row < shape.rows; ++row) writer.Write(row, rows[row]);
  reply->draft_probs = speculation::DraftProbs::Open(shape, {slot, shape.bytes()}).value();
}

// Four children of the root, two of every other node, breadth first.
void DraftTrees(std::mt19937* random, Sequence* sequence) {
  std::normal_distribution<float> normal(0.0f, kDisagreement);
  std::vector<std::vector<uint16_t>> rows;
  std::vector<float> logits(kVocabulary), noise(kVocabulary);
  std::vector<uint16_t> draft_probs(kVocabulary);
  for (int node = 0; sequence->drawn.tree.size() < kNodes; ++node) {
    const int room = kNodes - sequence->drawn.tree.size();
    const int width = std::min(node == 0 ? 4 : 2, room);
    const absl::Span<const float> target = sequence->Row(node);
    for (int x = 0; x < kVocabulary; ++x) logits[x] = target[x] + normal(*random);
    sampling::MakeDraftProbs(logits, {}, 0, absl::MakeSpan(draft_probs));
    const sampling::DrawSite site{.purpose = sampling::Purpose::kDraft,
                                  .node = static_cast<uint32_t>(node)};
    for (base::TokenId token : sampling::DrawWithoutReplacement(draft_probs, width, 1, site)) {
      sequence->drawn.tree.Add(node, token, 0.0f);
      sequence->drawn.row_of.push_back(static_cast<int32_t>(rows.size()));
    }
    rows.push_back(draft_probs);

    const int depth = speculation::Depths(sequence->shared_noise.tree)[node];
    sampling::GumbelNoise(1, kPosition + depth, 0, absl::MakeSpan(noise));
    for (const sampling::ScoredToken& best : sampling::PerturbedTopK(logits, noise, 1.0f, width)) {
      sequence->shared_noise.tree.Add(node, best.token, 0.0f);
    }
  }
  FillSlot(rows, &sequence->drawn);
}

// The target's likeliest token under every node, from a draft to which all tokens are alike.
void DraftCertainChain(Sequence* sequence) {
  const std::vector<uint16_t> uniform(kVocabulary, 0x3F80);
  for (int node = 0; node + 1 < kNodes; ++node) {
    const sampling::ScoredToken best = sampling::PerturbedArgMax(sequence->Row(node), {}, 0.0f, 0);
    sequence->certain.tree.Add(node, best.token, 0.0f);
    sequence->certain.row_of.push_back(node);
  }
  FillSlot(std::vector<std::vector<uint16_t>>(kNodes - 1, uniform), &sequence->certain);
}

std::vector<Sequence> MakeSequences(const std::vector<float>& logits) {
  std::mt19937 random(2);
  std::vector<Sequence> sequences(kSequences);
  for (int i = 0; i < kSequences; ++i) {
    const size_t size = static_cast<size_t>(kNodes) * kVocabulary;
    sequences[i].logits = absl::MakeConstSpan(logits).subspan(i * size, size);
    DraftTrees(&random, &sequences[i]);
    DraftCertainChain(&sequences[i]);
  }
  return sequences;
}

// --- What is measured ---------------------------------------------------------------------------

// Does one round of all sequences, the `turn`-th; returns how many rows of logits it read.
using Way = std::function<int(uint32_t turn)>;

// Keeps results alive.
volatile int64_t sink = 0;

int Greedy(const std::vector<Sequence>& sequences) {
  for (const Sequence& sequence : sequences) {
    for (int node = 0; node < kNodes; ++node) {
      sink = sink + sampling::PerturbedArgMax(sequence.Row(node), {}, 0.0f, 0).token;
    }
  }
  return kSequences * kNodes;
}

int Verified(const std::vector<Sequence>& sequences, Reply Sequence::*which,
             VerificationMethod verification, uint32_t turn, verification::TreeVerifier* verifier) {
  static speculation::Accepted kept;
  speculation::Accepted* const accepted = &kept;
  int rows = 0;
  for (const Sequence& sequence : sequences) {
    const Reply& reply = sequence.*which;
    const verification::TreeToVerify task{.tree = reply.tree,
                                          .verification = verification,
                                          .draw = SiblingDraw::kWithoutReplacement,
                                          .draft_probs = &reply.draft_probs,
                                          .draft_row = reply.row_of};
    const auto row = [&](int node) {
      ++rows;
      return sequence.Row(node);
    };
    const verification::PhiloxRandomness random(1, kPosition, turn, reply.tree);
    verifier->Verify(task, row, random, accepted);
    sink = sink + accepted->tokens.back();
  }
  return rows;
}

int CoupledEverywhere(const std::vector<Sequence>& sequences) {
  std::vector<std::vector<float>> noise;  // by depth
  for (size_t i = 0; i < sequences.size(); ++i) {
    const TokenTree& tree = sequences[i].shared_noise.tree;
    const std::vector<int32_t> depths = speculation::Depths(tree);
    int made = 0;
    std::vector<base::TokenId> chosen;
    for (int node = 0; node < kNodes; ++node) {
      if (depths[node] == made) {
        if (static_cast<int>(noise.size()) == made) noise.emplace_back(kVocabulary);
        sampling::GumbelNoise(1, kPosition + made, 0, absl::MakeSpan(noise[made]));
        ++made;
      }
      chosen.push_back(
          sampling::PerturbedArgMax(sequences[i].Row(node), noise[depths[node]], 1.0f, 0).token);
    }
    sink = sink + speculation::WalkCoupled(tree, chosen).tokens.back();
  }
  return kSequences * kNodes;
}

int CoupledAlongThePath(const std::vector<Sequence>& sequences) {
  std::vector<float> noise(kVocabulary);
  int rows = 0;
  for (const Sequence& sequence : sequences) {
    const TokenTree& tree = sequence.shared_noise.tree;
    uint32_t position = kPosition;
    for (int node = 0; node >= 0; ++position, ++rows) {
      sampling::GumbelNoise(1, position, 0, absl::MakeSpan(noise));
      const base::TokenId token =
          sampling::PerturbedArgMax(sequence.Row(node), noise, 1.0f, 0).token;
      sink = sink + token;
      node = speculation::ChildWith(tree, node, token);
    }
  }
  return rows;
}

struct Measured {
  std::string name;
  Way way;
  std::vector<double> milliseconds = {}, gigabytes_per_second = {}, effective = {}, ratio = {};
  double rows = 0;
};

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// CPU time of this thread: other work on the machine is not counted.
double CpuSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

void Measure(uint32_t turn, double plain, Measured* measured) {
  const double begin = CpuSeconds();
  const int rows = measured->way(turn);
  const double seconds = CpuSeconds() - begin;
  const double speed = rows * kRowBytes / seconds / 1e9;
  measured->rows += rows;
  measured->milliseconds.push_back(seconds * 1e3);
  measured->gigabytes_per_second.push_back(speed);
  measured->effective.push_back(kSequences * kNodes * kRowBytes / seconds / 1e9);
  measured->ratio.push_back(plain > 0 ? speed / plain : 1);
}

// What a target does to every reply before it verifies: gigabytes of draft probabilities a second.
void PrintChecking(const std::vector<Sequence>& sequences, int repetitions) {
  std::vector<double> milliseconds;
  double bytes = 0;
  for (int turn = 0; turn < repetitions; ++turn) {
    const double begin = CpuSeconds();
    bytes = 0;
    for (const Sequence& sequence : sequences) {
      const speculation::DraftProbsShape& shape = sequence.drawn.draft_probs.shape();
      const uint8_t* const slot = reinterpret_cast<const uint8_t*>(sequence.drawn.slot.data());
      const bool sound = speculation::DraftProbs::Open(shape, {slot, shape.bytes()}).ok();
      sink = sink + static_cast<int64_t>(sound);
      bytes += static_cast<double>(shape.bytes());
    }
    milliseconds.push_back((CpuSeconds() - begin) * 1e3);
  }
  std::printf(
      "\nchecking and adding up the drafts' %.0f rows of draft probabilities: %.2f ms, %.1f GB/s\n",
      bytes / (2.0 * kVocabulary), Median(milliseconds), bytes / Median(milliseconds) / 1e6);
}

std::vector<Measured> Ways(const std::vector<Sequence>& sequences,
                           verification::TreeVerifier* verifier) {
  const auto verified = [&sequences, verifier](Reply Sequence::*which,
                                               VerificationMethod verification) {
    return [&sequences, verifier, which, verification](uint32_t turn) {
      return Verified(sequences, which, verification, turn, verifier);
    };
  };
  return {
      {"greedy, all rows", [&](uint32_t) { return Greedy(sequences); }},
      {"rejection, tree", verified(&Sequence::drawn, VerificationMethod::kRejection)},
      {"rejection, chain accepted whole",
       verified(&Sequence::certain, VerificationMethod::kRejection)},
      {"traversal, tree", verified(&Sequence::drawn, VerificationMethod::kTraversal)},
      {"traversal, chain accepted whole",
       verified(&Sequence::certain, VerificationMethod::kTraversal)},
      {"typical, tree", verified(&Sequence::drawn, VerificationMethod::kTypical)},
      {"coupled T=1, all rows", [&](uint32_t) { return CoupledEverywhere(sequences); }},
      {"coupled T=1, along the path", [&](uint32_t) { return CoupledAlongThePath(sequences); }}};
}

void Run(int repetitions) {
  const std::vector<float> logits = MakeLogits();
  const std::vector<Sequence> sequences = MakeSequences(logits);
  verification::TreeVerifier verifier(kVocabulary);

  // The plain read takes whichever instructions are fastest here, turn by turn.
  std::vector<Measured> reads;
  for (base::Isa isa : {base::Isa::kPortable, base::Isa::kAvx2, base::Isa::kAvx512}) {
    if (!base::Supported(isa)) continue;
    reads.push_back({"plain read", [&logits, isa](uint32_t) {
                       sink = sink + static_cast<int64_t>(bench::PlainRead(isa, logits) > 0);
                       return kSequences * kNodes;
                     }});
  }
  std::vector<Measured> ways = Ways(sequences, &verifier);
  for (Measured& way : ways) way.way(0);  // memory is touched and caches are as they will be
  std::vector<double> plain;
  for (int turn = 1; turn <= repetitions; ++turn) {
    for (Measured& read : reads) Measure(turn, 0, &read);
    const auto fastest =
        std::max_element(reads.begin(), reads.end(), [](const Measured& a, const Measured& b) {
          return a.gigabytes_per_second.back() < b.gigabytes_per_second.back();
        });
    plain.push_back(fastest->gigabytes_per_second.back());
    for (Measured& way : ways) Measure(turn, plain.back(), &way);
  }

  std::printf("plain read of the logits: %.1f GB/s\n\n", Median(plain));
  std::printf(
      "| verification | rows read | ms | GB/s of the rows read | to plain read | "
      "GB/s as if of all rows |\n| --- | --- | --- | --- | --- | --- |\n");
  for (const Measured& way : ways) {
    std::printf("| %s | %.0f of %d | %.2f | %.1f | %.2f | %.1f |\n", way.name.c_str(),
                way.rows / repetitions, kSequences * kNodes, Median(way.milliseconds),
                Median(way.gigabytes_per_second), Median(way.ratio), Median(way.effective));
  }
  PrintChecking(sequences, repetitions);
}

}  // namespace
}  // namespace specfabric::target

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::atoi(argv[1]) : 21;
  if (argc > 2 || repetitions < 1) {
    std::fprintf(stderr, "verify_bench: bad arguments; allowed: [REPETITIONS], at least 1\n");
    return 2;
  }
  specfabric::target::Run(repetitions);
}
