#include "verification/cpu/row_distribution.h"

#include <algorithm>

#include "base/bfloat16.h"
#include "base/check.h"
#include "base/finite.h"
#include "base/load_once.h"
#include "sampling/sampling.h"
#include "verification/row_probs.h"

namespace specfabric::verification {
namespace {

bool Taken(const DraftDistribution& q, base::TokenId token) {
  return std::find(q.taken.begin(), q.taken.end(), token) != q.taken.end();
}

// The logits that the filters keep, kExcludedLogit for the other tokens. False: they keep none (see
// FilterMask).
bool Filter(absl::Span<const float> logits, const base::SamplingParams& sampling,
            RowScratch* scratch) {
  sampling::KeptTokens(logits, sampling, &scratch->kept);
  scratch->filtered.assign(logits.size(), kExcludedLogit);
  for (const sampling::ScoredToken& token : scratch->kept) {
    scratch->filtered[token.token] = token.score;
  }
  return !scratch->kept.empty();
}

}  // namespace

double DraftDistribution::UnnormalizedProb(base::TokenId token) const {
  if (Taken(*this, token)) return 0;
  if (whole()) return base::WidenBFloat16(draft_probs[token]);
  const auto found = std::lower_bound(ids.begin(), ids.end(), token);
  if (found == ids.end() || *found != token) return 0;
  return base::WidenBFloat16(draft_probs[found - ids.begin()]);
}

RowScratch::RowScratch(int32_t vocabulary, base::Isa isa)
    : vocabulary(vocabulary),
      chunks((vocabulary + kRowChunk - 1) / kRowChunk),
      kernels(KernelsFor(isa)),
      spare_sums(chunks) {}

bool RowDistribution::Open(absl::Span<const float> logits, const base::SamplingParams& sampling,
                           bool keep) {
  SPECFABRIC_CHECK(static_cast<int32_t>(logits.size()) == scratch_.vocabulary);
  SPECFABRIC_CHECK(sampling.temperature > 0);
  scale_ = base::ScaleFor(sampling.temperature);
  if (!sampling.filtered()) return ComputeProbs(logits, keep);
  if (!Filter(logits, sampling, &scratch_)) return false;
  ComputeProbs(scratch_.filtered, keep);
  return true;
}

bool RowDistribution::ComputeProbs(absl::Span<const float> logits, bool keep) {
  logits_ = logits;
  kept_ = keep;
  if (keep) values_.resize(static_cast<size_t>(scratch_.chunks) * kRowChunk);
  // With a reference for each chunk no separate pass for the maximum is needed.
  float max = scratch_.kernels.max(LogitChunk(0));
  // The padding of the last chunk is not finite.
  const size_t whole = logits.size() / kRowChunk;
  bool finite = base::AllFinite(logits.subspan(whole * kRowChunk));
  for (int i = 0; i < scratch_.chunks; ++i) {
    const float* const chunk = LogitChunk(i);
    float* const probs =
        keep ? values_.data() + static_cast<size_t>(i) * kRowChunk : scratch_.probs.data();
    const float before = max;
    ExpResult exp_result = scratch_.kernels.exp_chunk(chunk, before, scale_, probs);
    max = std::max(max, exp_result.max);
    finite = finite && (exp_result.finite || static_cast<size_t>(i) >= whole);
    const float reference = ChunkReference(before, max, scale_);
    if (reference != before)
      exp_result = scratch_.kernels.exp_chunk(chunk, reference, scale_, probs);
    chunks_[i].reference = reference;
    chunks_[i].sum = exp_result.sum;
  }
  total_ = 0;
  const Chunk* before = nullptr;  // most chunks share a reference
  for (Chunk& chunk : chunks_) {
    const bool same = before != nullptr && before->reference == chunk.reference;
    chunk.power = same ? before->power : ChunkPower(chunk.reference, max, scale_);
    chunk.factor = same ? before->factor : base::Exp2(chunk.power);
    chunk.sum *= chunk.factor;
    total_ += chunk.sum;
    before = &chunk;
  }
  return finite;
}

void RowDistribution::Keep() {
  if (kept_) return;
  values_.resize(static_cast<size_t>(scratch_.chunks) * kRowChunk);
  for (int i = 0; i < scratch_.chunks; ++i) {
    scratch_.kernels.exp_chunk(LogitChunk(i), chunks_[i].reference, scale_,
                               values_.data() + static_cast<size_t>(i) * kRowChunk);
  }
  kept_ = true;
}

const float* RowDistribution::LogitChunk(int chunk) {
  const absl::Span<const float> rest = logits_.subspan(static_cast<size_t>(chunk) * kRowChunk);
  if (rest.size() >= kRowChunk) return rest.data();
  const auto end = std::copy(rest.begin(), rest.end(), scratch_.logits_tail.begin());
  std::fill(end, scratch_.logits_tail.end(), kExcludedLogit);
  return scratch_.logits_tail.data();
}

const uint16_t* RowDistribution::DraftChunk(const DraftDistribution& q, int chunk) {
  const absl::Span<const uint16_t> rest =
      q.draft_probs.subspan(static_cast<size_t>(chunk) * kRowChunk);
  if (rest.size() >= kRowChunk) return rest.data();
  const auto end = std::copy(rest.begin(), rest.end(), scratch_.draft_tail.begin());
  std::fill(end, scratch_.draft_tail.end(), uint16_t{0});
  return scratch_.draft_tail.data();
}

const float* RowDistribution::ValueChunk(int chunk) {
  if (kept_) return values_.data() + static_cast<size_t>(chunk) * kRowChunk;
  scratch_.kernels.exp_chunk(LogitChunk(chunk), chunks_[chunk].reference, scale_,
                             scratch_.probs.data());
  return scratch_.probs.data();
}

float RowDistribution::Value(base::TokenId token) const {
  if (kept_) return values_[token];
  return ScaledExp(logits_[token], chunks_[token / kRowChunk].reference, scale_);
}

double RowDistribution::Probability(base::TokenId token) const {
  return Value(token) * chunks_[token / kRowChunk].factor / total_;
}

double RowDistribution::InversePerplexity() {
  SPECFABRIC_CHECK(!kept_);
  double sum = 0;  // of w log2(w)
  for (int i = 0; i < scratch_.chunks; ++i) {
    const Chunk& chunk = chunks_[i];
    if (chunk.sum == 0) continue;
    const float* const probs = ValueChunk(i);
    sum += scratch_.kernels.entropy(LogitChunk(i), chunk.reference, scale_, probs) * chunk.factor +
           chunk.sum * chunk.power;
  }
  return verification::InversePerplexity(total_, sum);
}

base::TokenId RowDistribution::Sample(double uniform) {
  const double wanted = uniform * total_;
  double sum = 0;
  int found = 0;
  for (int i = 0; i < scratch_.chunks; ++i) {
    if (chunks_[i].sum == 0) continue;
    found = i;
    if (sum + chunks_[i].sum > wanted) break;
    sum += chunks_[i].sum;
  }
  const float* const values = ValueChunk(found);
  base::TokenId token = base::kNoToken;
  for (int i = 0; i < kRowChunk && sum <= wanted; ++i) {
    if (values[i] > 0) token = static_cast<base::TokenId>(found * kRowChunk + i);
    sum += values[i] * chunks_[found].factor;
  }
  SPECFABRIC_CHECK(token != base::kNoToken);
  return token;
}

// The factor that turns a chunk's values into pi p on the scale of the scaled draft_probs.
float RowDistribution::DenseFactor(double pi, const DraftDistribution& q,
                                   const Chunk& chunk) const {
  return static_cast<float>(pi * (q.total * DraftScale(q.total)) / total_ * chunk.factor);
}

double RowDistribution::Chance(double pi, const DraftDistribution& q, base::TokenId token) const {
  // The same numbers that Subtract compares, so that a token rejected here has no mass there.
  const Chunk& chunk = chunks_[token / kRowChunk];
  double chance = 0;
  if (q.whole()) {
    const double ours = static_cast<double>(DenseFactor(pi, q, chunk)) * Value(token);
    chance = ours / (q.UnnormalizedProb(token) * DraftScale(q.total));
  } else {
    chance = pi * Probability(token) / (q.UnnormalizedProb(token) / q.total);
  }
  // If the peer changed the draft_probs it may be negative or NaN.
  return chance > 0 ? std::min(1.0, chance) : 0;
}

double RowDistribution::Subtract(double pi, const DraftDistribution& q) {
  if (pi == 0) return 0;
  return q.whole() ? SubtractDense(pi, q) : SubtractSparse(pi, q);
}

double RowDistribution::SubtractDense(double pi, const DraftDistribution& q) {
  const float draft_scale = DraftScale(q.total);
  std::vector<float>& left = scratch_.spare;
  left.resize(static_cast<size_t>(scratch_.chunks) * kRowChunk);
  for (int i = 0; i < scratch_.chunks; ++i) {
    scratch_.spare_sums[i] =
        scratch_.kernels.subtract(ValueChunk(i), DenseFactor(pi, q, chunks_[i]), DraftChunk(q, i),
                                  draft_scale, left.data() + static_cast<size_t>(i) * kRowChunk);
  }
  for (base::TokenId token : q.taken) {
    const int i = token / kRowChunk;
    const float whole = DenseFactor(pi, q, chunks_[i]) * Value(token);
    if (left[token] == whole) continue;
    left[token] = whole;
    scratch_.spare_sums[i] = scratch_.kernels.sum(left.data() + static_cast<size_t>(i) * kRowChunk);
  }
  double total = 0;
  for (double sum : scratch_.spare_sums) total += sum;
  const double scaled_one = q.total * draft_scale;
  // Also if the peer changed the draft_probs so that the sums are 0 or NaN.
  if (!(scaled_one > 0 && total > kNoMass * scaled_one)) return 0;

  values_.swap(left);
  kept_ = true;
  for (int i = 0; i < scratch_.chunks; ++i) {
    chunks_[i] = {.sum = scratch_.spare_sums[i]};
  }
  total_ = total;
  return std::min(1.0, total / scaled_one);
}

double RowDistribution::SubtractSparse(double pi, const DraftDistribution& q) {
  Keep();
  const double before = total_;
  std::vector<base::TokenId>& changed = scratch_.changed;
  std::vector<float>& old = scratch_.old;
  changed.clear();
  old.clear();
  for (size_t i = 0; i < q.ids.size(); ++i) {
    const base::TokenId token = base::LoadOnce(q.ids[i]);
    if (token < 0 || token >= scratch_.vocabulary)
      continue;  // the peer changed it after validation
    const double prob = Taken(q, token) ? 0 : base::WidenBFloat16(q.draft_probs[i]);
    if (prob == 0 || values_[token] == 0) continue;
    changed.push_back(token);
    old.push_back(values_[token]);
    const double gone = (prob / q.total) / (pi * Probability(token));
    values_[token] = gone >= 1 ? 0.0f : static_cast<float>(values_[token] * (1 - gone));
  }
  Resum(changed);
  if (total_ > kNoMass * before) return std::min(1.0, pi * total_ / before);
  // Backwards, since the peer may have changed ids so that they repeat.
  for (size_t i = changed.size(); i-- > 0;) values_[changed[i]] = old[i];
  Resum(changed);
  return 0;
}

void RowDistribution::Resum(absl::Span<const base::TokenId> tokens) {
  int last = -1;
  for (base::TokenId token : tokens) {
    const int i = token / kRowChunk;
    if (i == last) continue;
    last = i;
    chunks_[i].sum = scratch_.kernels.sum(ValueChunk(i)) * chunks_[i].factor;
  }
  total_ = 0;
  for (const Chunk& chunk : chunks_) total_ += chunk.sum;
}

}  // namespace specfabric::verification
