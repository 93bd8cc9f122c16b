#include "tests/verification/enumeration.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/bfloat16.h"
#include "base/check.h"
#include "sampling/draft_row.h"
#include "schemas/messages.h"
#include "speculation/draft_probs.h"

namespace specfabric::verification {

using base::TokenId;

void Outcomes::ForEach(const std::function<void(Outcomes&)>& experiment) {
  Outcomes outcomes;
  do {
    outcomes.Restart();
    experiment(outcomes);
    SPECFABRIC_CHECK(outcomes.made_ == outcomes.choices_.size());
  } while (outcomes.Advance());
}

void Outcomes::Restart() {
  made_ = 0;
  probability_ = 1;
}

bool Outcomes::Advance() {
  while (!choices_.empty()) {
    Choice& last = choices_.back();
    do {
      ++last.taken;
    } while (last.taken < last.probs.size() && last.probs[last.taken] == 0);
    if (last.taken < last.probs.size()) return true;
    choices_.pop_back();
  }
  return false;
}

int Outcomes::Choose(absl::Span<const double> probs) {
  if (made_ == choices_.size()) {
    Choice choice{.probs = {probs.begin(), probs.end()}, .sum = 0, .taken = 0};
    for (double prob : probs) {
      SPECFABRIC_CHECK(prob >= 0);
      choice.sum += prob;
    }
    SPECFABRIC_CHECK(choice.sum > 0);
    while (choice.probs[choice.taken] == 0) ++choice.taken;
    choices_.push_back(std::move(choice));
  }
  const Choice& choice = choices_[made_++];
  probability_ *= choice.probs[choice.taken] / choice.sum;
  return static_cast<int>(choice.taken);
}

bool Outcomes::Accept(int, double probability) {
  SPECFABRIC_CHECK(probability >= 0 && probability <= 1);
  const double probs[] = {1 - probability, probability};
  return Choose(probs) == 1;
}

TokenId Outcomes::Sample(int, absl::Span<const double> probs) { return Choose(probs); }

namespace {

sampling::Distribution RandomRow(std::mt19937* random, int vocabulary, double zeros) {
  std::exponential_distribution<double> exponential;
  std::uniform_real_distribution<double> uniform;
  sampling::Distribution row(vocabulary);
  for (double& value : row) value = uniform(*random) < zeros ? 0 : exponential(*random);
  row[(*random)() % vocabulary] += 0.1;
  return sampling::Normalized(row);
}

// bfloat16, the largest of them 1. Of rows made of such probs they are exact.
std::vector<uint16_t> DraftProbsOf(absl::Span<const double> row) {
  const double largest = *std::max_element(row.begin(), row.end());
  std::vector<uint16_t> probs;
  for (double q : row) {
    probs.push_back(base::RoundToBFloat16(static_cast<float>(q / largest)));
  }
  return probs;
}

size_t TextsUpTo(int vocabulary, int length) {
  size_t texts = 0, of_length = 1;
  for (int n = 0; n <= length; ++n, of_length *= vocabulary) texts += of_length;
  return texts;
}

}  // namespace

ToyPair::ToyPair(uint32_t seed, int vocabulary, int length, double zeros)
    : vocabulary_(vocabulary), length_(length) {
  std::mt19937 random(seed);
  for (size_t i = 0; i < TextsUpTo(vocabulary, length - 1); ++i) {
    p_.push_back(RandomRow(&random, vocabulary, zeros));
    q_.push_back(sampling::Probabilities(DraftProbsOf(RandomRow(&random, vocabulary, zeros))));
  }
}

size_t ToyPair::Index(const Text& text) const {
  SPECFABRIC_CHECK(static_cast<int>(text.size()) < length_);
  size_t index = 0;
  for (TokenId token : text) index = index * vocabulary_ + token + 1;
  return index;
}

Text PathText(const speculation::TokenTree& tree, int node) {
  Text text;
  for (; node != 0; node = tree.parents[node]) text.push_back(tree.tokens[node]);
  std::reverse(text.begin(), text.end());
  return text;
}

TokenId DrawSibling(speculation::SiblingDraw draw, const sampling::Distribution& q,
                    const Text& elder, Outcomes& outcomes) {
  sampling::Distribution probs = q;
  if (draw != speculation::SiblingDraw::kWithReplacement) {
    for (TokenId token : elder) probs[token] = 0;
  }
  const auto best = std::max_element(probs.begin(), probs.end());
  if (*best == 0) return base::kNoToken;
  if (draw == speculation::SiblingDraw::kDeterministic)
    return static_cast<TokenId>(best - probs.begin());
  return outcomes.Choose(probs);
}

namespace {

// Draws up to `width` children of `node`, while `more` says so.
template <typename More>
std::vector<int> DrawChildren(const ToyPair& toy, int node, int width, const More& more,
                              VerifyInput* input, Outcomes& outcomes) {
  const sampling::Distribution& q = toy.q(PathText(input->tree, node));
  const int row = static_cast<int>(input->q.size()) / toy.vocabulary();
  input->q.insert(input->q.end(), q.begin(), q.end());
  std::vector<int> children;
  Text elder;
  for (int i = 0; i < width && more(q, elder); ++i) {
    const TokenId token = DrawSibling(input->draw, q, elder, outcomes);
    if (token == base::kNoToken) break;
    children.push_back(input->tree.Add(node, token, 0.0f));
    input->q_row.push_back(row);
    elder.push_back(token);
  }
  return children;
}

VerifyInput EmptyInput(const ToyPair& toy, speculation::SiblingDraw draw) {
  return {.tree = speculation::TokenTree::Root(0),
          .draw = draw,
          .vocabulary = toy.vocabulary(),
          .p = {},
          .q = {},
          .q_row = {-1}};
}

}  // namespace

namespace {

schemas::DraftReply ToReply(const VerifyInput& input) {
  schemas::DraftReply reply;
  reply.draw = input.draw;
  reply.tree = input.tree;
  return reply;
}

// Writes the rows as a draft does; returns what a target reads. Cut rows where one has a zero.
std::vector<double> SendRows(const VerifyInput& input) {
  const int vocabulary = input.vocabulary;
  const auto rows = static_cast<int32_t>(input.q.size() / vocabulary);
  int most = 1;  // probs of a row that are not 0
  for (int32_t row = 0; row < rows; ++row) {
    const auto first = input.q.begin() + row * vocabulary;
    most = std::max<int>(most, vocabulary - std::count(first, first + vocabulary, 0.0));
  }
  const speculation::DraftProbsShape shape = {rows, vocabulary, most};
  std::vector<uint64_t> slot(shape.bytes() / sizeof(uint64_t) + 1);
  uint8_t* const bytes = reinterpret_cast<uint8_t*>(slot.data());
  speculation::DraftProbsWriter writer(shape, bytes);
  for (int32_t row = 0; row < rows; ++row) {
    const auto values = absl::MakeConstSpan(input.q).subspan(row * vocabulary, vocabulary);
    writer.Write(row, DraftProbsOf(values));
  }
  const auto received = speculation::DraftProbs::Open(shape, {bytes, shape.bytes()});
  SPECFABRIC_CHECK(received.ok());
  std::vector<double> q;
  for (int32_t row = 0; row < rows; ++row) {
    for (TokenId token = 0; token < vocabulary; ++token) {
      q.push_back(received->prob(row, token) / received->total(row));
    }
  }
  return q;
}

}  // namespace

VerifyInput OverTheWire(VerifyInput input, speculation::VerificationMethod verification) {
  const auto received = schemas::Decode<schemas::DraftReply>(schemas::Encode(ToReply(input)));
  SPECFABRIC_CHECK(received.ok());
  input.draw = received->draw;
  const TokenId root = input.tree.tokens[0];
  input.tree = received->tree;
  input.tree.tokens[0] = root;
  const bool rows = speculation::NeedsDraftRows(verification, input.draw) && input.tree.size() > 1;
  input.q = rows ? SendRows(input) : std::vector<double>();
  input.q_row = rows ? speculation::DraftRows(input.tree) : std::vector<int32_t>();
  return input;
}

Drafter ThroughTheWire(Drafter drafter, speculation::VerificationMethod verification) {
  return [drafter = std::move(drafter), verification](const ToyPair& toy, Outcomes& outcomes) {
    return OverTheWire(drafter(toy, outcomes), verification);
  };
}

Drafter Draws(speculation::SiblingDraw draw, std::vector<int> widths) {
  return [draw, widths = std::move(widths)](const ToyPair& toy, Outcomes& outcomes) {
    VerifyInput input = EmptyInput(toy, draw);
    std::vector<int> level = {0};
    for (int width : widths) {
      std::vector<int> next;
      for (int node : level) {
        const std::vector<int> children = DrawChildren(
            toy, node, width, [](const sampling::Distribution&, const Text&) { return true; },
            &input, outcomes);
        next.insert(next.end(), children.begin(), children.end());
      }
      level = next;
    }
    return input;
  };
}

Drafter DrawsByValue(speculation::SiblingDraw draw, int depth) {
  return [=](const ToyPair& toy, Outcomes& outcomes) {
    VerifyInput input = EmptyInput(toy, draw);
    const auto more = [](const sampling::Distribution& q, const Text& elder) {
      return elder.empty() || q[elder[0]] < *std::max_element(q.begin(), q.end());
    };
    std::vector<std::pair<int, double>> level = {{0, 1.0}};  // node, draft's probability of it
    for (int d = 0; d < depth; ++d) {
      std::vector<std::pair<int, double>> next;
      for (const auto& [node, path] : level) {
        if (path < 0.25) continue;
        const sampling::Distribution& q = toy.q(PathText(input.tree, node));
        for (int child : DrawChildren(toy, node, 2, more, &input, outcomes)) {
          next.emplace_back(child, path * q[input.tree.tokens[child]]);
        }
      }
      level = next;
    }
    return input;
  };
}

void AddTargetRows(const ToyPair& toy, VerifyInput* input) {
  input->p.clear();
  for (int node = 0; node < input->tree.size(); ++node) {
    const sampling::Distribution& p = toy.p(PathText(input->tree, node));
    input->p.insert(input->p.end(), p.begin(), p.end());
  }
}

namespace {

// Adds, to the probability of every text of toy.length() tokens that begins with *text, its part of
// `probability` under plain sampling.
void Spread(const ToyPair& toy, double probability, Text* text, size_t index,
            std::vector<double>* distribution) {
  if (static_cast<int>(text->size()) == toy.length()) {
    (*distribution)[index] += probability;
    return;
  }
  const sampling::Distribution& p = toy.p(*text);
  for (int x = 0; x < toy.vocabulary(); ++x) {
    if (p[x] == 0) continue;
    text->push_back(x);
    Spread(toy, probability * p[x], text, index * toy.vocabulary() + x, distribution);
    text->pop_back();
  }
}

void AddText(const ToyPair& toy, double probability, Text text, std::vector<double>* distribution) {
  if (static_cast<int>(text.size()) > toy.length()) text.resize(toy.length());
  size_t index = 0;
  for (TokenId token : text) index = index * toy.vocabulary() + token;
  Spread(toy, probability, &text, index, distribution);
}

std::vector<double> EmptyDistribution(const ToyPair& toy) {
  size_t texts = 1;
  for (int n = 0; n < toy.length(); ++n) texts *= toy.vocabulary();
  return std::vector<double>(texts, 0.0);
}

}  // namespace

std::vector<double> PlainDistribution(const ToyPair& toy) {
  std::vector<double> distribution = EmptyDistribution(toy);
  AddText(toy, 1, {}, &distribution);
  return distribution;
}

Enumerated Enumerate(const ToyPair& toy, const Drafter& drafter, const Verifier& verifier) {
  Enumerated result;
  result.distribution = EmptyDistribution(toy);
  Outcomes::ForEach([&](Outcomes& outcomes) {
    VerifyInput input = drafter(toy, outcomes);
    AddTargetRows(toy, &input);
    const speculation::Accepted accepted = verifier(input, outcomes);
    SPECFABRIC_CHECK(accepted.tokens.size() == accepted.path.size() + 1);
    result.probability += outcomes.probability();
    result.length += outcomes.probability() * static_cast<double>(accepted.path.size());
    AddText(toy, outcomes.probability(), accepted.tokens, &result.distribution);
  });
  const std::vector<double> plain = PlainDistribution(toy);
  for (size_t i = 0; i < plain.size(); ++i) {
    result.error += std::abs(result.distribution[i] - plain[i]) / 2;
  }
  return result;
}

}  // namespace specfabric::verification
