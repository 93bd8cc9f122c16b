// Hidden states of the target, for drafters that read them.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/bfloat16.h"
#include "draft/draft_engine.h"

namespace specfabric::draft {
namespace {

// Of states that wait for their tokens, all sessions together.
constexpr size_t kMostStateBytes = size_t{1} << 30;

// False: some are not finite.
bool Widen(absl::Span<const uint8_t> bytes, std::vector<float>* values) {
  values->resize(bytes.size() / sizeof(uint16_t));
  bool finite = true;
  for (size_t i = 0; i < values->size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + i * sizeof(bits), sizeof(bits));
    (*values)[i] = base::WidenBFloat16(bits);
    finite = finite && std::isfinite((*values)[i]);
  }
  return finite;
}

}  // namespace

absl::Status DraftEngine::AddStates(uint64_t target_incarnation, const ArrivedStates& arrived,
                                    base::Nanos now) {
  if (!reads_states()) return absl::OkStatus();
  const model::ModelConfig& config = model_->config();
  const size_t width = config.states->layers.size() * config.states->target_hidden;
  const auto count =
      std::accumulate(arrived.runs.begin(), arrived.runs.end(), int64_t{0},
                      [](int64_t sum, const schemas::StateRun& run) { return sum + run.count; });
  const size_t bytes = arrived.tensor.bytes().size();
  stats_.states += count;
  stats_.state_bytes += bytes;
  absl::StatusOr<bool> valid = count * width * sizeof(uint16_t) == bytes;
  if (*valid) valid = Fuse(arrived.tensor, static_cast<int>(count));
  if (!valid.ok()) return valid.status();
  if (!*valid) {
    stats_.invalid_states += count;
    return absl::OkStatus();
  }
  const auto hidden = static_cast<size_t>(config.hidden);
  size_t held = 0;
  sessions_.ForEach([&](Session* session) { held += session->states.bytes(); });
  absl::Span<const float> rows = fused_;
  for (const schemas::StateRun& run : arrived.runs) {
    const absl::Span<const float> its = rows.first(run.count * hidden);
    rows.remove_prefix(its.size());
    Session* const session =
        held > kMostStateBytes || run.first_position + run.count > options_.sessions.context
            ? nullptr
            : sessions_.ForStates({target_incarnation, run.sequence}, now);
    if (session == nullptr) {
      stats_.refused_states += run.count;
      continue;
    }
    session->states.Add(run.first_position, its, hidden);
    held += its.size() * sizeof(float);
  }
  starved_ = false;
  return absl::OkStatus();
}

absl::StatusOr<bool> DraftEngine::Fuse(const transport::KeptTensor& tensor, int count) {
  fused_.resize(static_cast<size_t>(count) * model_->config().hidden);
  if (tensor.on_device()) return model_->FuseDeviceStates(tensor.bytes(), count, fused_.data());
  if (!Widen(tensor.bytes(), &states_)) return false;
  if (absl::Status fused = model_->FuseStates(states_, count, fused_.data()); !fused.ok()) {
    return fused;
  }
  return true;
}

int32_t DraftEngine::RowsWithStates(Session* session) {
  const SessionStates& states = session->states;
  const int32_t first = states.first() + 1;  // the token that the first of them belongs to
  if (states.end() == states.first() || first >= session->length()) return 0;
  if (first > session->kv_len || session->kv_len < session->origin) {
    session->origin = session->kv_len = first;
  }
  return std::max(0, std::min(session->length(), states.end() + 1) - session->kv_len);
}

void DraftEngine::AddState(absl::Span<const float> state, model::Batch* batch) {
  batch->states.insert(batch->states.end(), state.begin(), state.end());
}

void DraftEngine::KeepState(Session* session, int cache_node, int32_t logit) {
  const auto hidden = static_cast<size_t>(model_->config().hidden);
  session->speculation_cache.SetState(cache_node,
                                      model_->next_states().subspan(logit * hidden, hidden));
}

}  // namespace specfabric::draft
