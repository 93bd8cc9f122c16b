#include "schemas/wire.h"

#include <bit>
#include <cmath>

namespace specfabric::schemas::wire {

// Spans over the buffer are read as host numbers, which FlatBuffers stores little-endian.
static_assert(std::endian::native == std::endian::little);

void Checker::Finite(const char* field, absl::Span<const float> values) {
  for (float value : values) {
    if (!std::isfinite(value)) return Fail(field, value, "finite");
  }
}

void Checker::TokenIds(const char* field, absl::Span<const base::TokenId> tokens) {
  Size(field, tokens.size(), kMaxTokensPerMessage);
  for (base::TokenId token : tokens) {
    if (token < 0) return Fail(field, token, "token ids of at least 0");
  }
}

void Checker::Text(const char* field, std::string_view text, size_t limit) {
  if (text.size() > limit) {
    Fail(field, absl::StrCat(text.size(), " bytes long"), absl::StrCat("at most ", limit));
  }
  for (unsigned char c : text) {
    Require(c >= 0x20 && c != 0x7F, field, "text with control characters", "one plain line");
  }
}

void Checker::Sampling(const base::SamplingParams& sampling) {
  Require(std::isfinite(sampling.temperature) && sampling.temperature >= 0, "temperature",
          sampling.temperature, "finite and at least 0");
  NonNegative("top_k", sampling.top_k);
  Require(sampling.top_p > 0 && sampling.top_p <= 1, "top_p", sampling.top_p, "in (0, 1]");
  Require(sampling.min_p >= 0 && sampling.min_p < 1, "min_p", sampling.min_p, "in [0, 1)");
}

SamplingParams ToWire(const base::SamplingParams& sampling) {
  return SamplingParams(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p,
                        sampling.seed);
}

base::SamplingParams FromWire(const SamplingParams* sampling) {
  base::SamplingParams result;
  if (sampling == nullptr) return result;
  result.temperature = sampling->temperature();
  result.top_k = sampling->top_k();
  result.top_p = sampling->top_p();
  result.min_p = sampling->min_p();
  result.seed = sampling->seed();
  return result;
}

TraceContext ToWire(const base::TraceContext& trace) {
  return TraceContext(trace.trace_high, trace.trace_low, trace.span);
}

base::TraceContext FromWire(const TraceContext* trace) {
  if (trace == nullptr) return {};
  const base::TraceContext result{trace->trace_high(), trace->trace_low(), trace->span()};
  return result.traced() ? result : base::TraceContext{};
}

}  // namespace specfabric::schemas::wire
