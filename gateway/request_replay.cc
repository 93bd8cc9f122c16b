#include "gateway/request_replay.h"

#include <algorithm>
#include <utility>

#include "gateway/append.h"

namespace specfabric::gateway {

using schemas::Finish;
using schemas::Tokens;

RequestReplay::RequestReplay(schemas::Submit submit) : submit_(std::move(submit)) {
  // The first token of a prompt has no log-probability, so a prompt of one token has none.
  scored_ = !submit_.sequence.score_prompt || submit_.sequence.prompt.size() < 2;
}

bool RequestReplay::Ready(const Tokens& message) const {
  const bool has_scores = scored_ || !message.prompt_logprobs.empty();
  // An error is reported at once: the tokens before it do not matter any more.
  const bool is_error = message.finish != Finish::kNone && message.finish != Finish::kStop &&
                        message.finish != Finish::kLength;
  return is_error || (has_scores && message.first_index <= static_cast<int32_t>(emitted_.size()));
}

// Keeps of a message what is new.
void RequestReplay::Emit(Tokens& message) {
  if (std::exchange(scored_, scored_ || !message.prompt_logprobs.empty())) {
    message.prompt_logprobs.clear();
  }
  const int32_t known = static_cast<int32_t>(emitted_.size()) - message.first_index;
  const int32_t count = static_cast<int32_t>(message.tokens.size());
  const int32_t skipped = known < 0 ? count : std::min(known, count);
  if (message.logprobs.size() == message.tokens.size()) {
    message.logprobs.erase(message.logprobs.begin(), message.logprobs.begin() + skipped);
  } else {
    message.logprobs.clear();
  }
  message.tokens.erase(message.tokens.begin(), message.tokens.begin() + skipped);
  message.first_index = static_cast<int32_t>(emitted_.size());
  emitted_.insert(emitted_.end(), message.tokens.begin(), message.tokens.end());
  finished_ = message.finish != Finish::kNone;
}

void RequestReplay::CountRounds(const Tokens& message) {
  const schemas::Speculation& totals = message.speculation;
  current_.rounds = std::max(current_.rounds, totals.rounds);
  current_.drafted_rounds = std::max(current_.drafted_rounds, totals.drafted_rounds);
  current_.drafted = std::max(current_.drafted, totals.drafted);
  current_.accepted = std::max(current_.accepted, totals.accepted);
  // Each total only grows: where messages overtook each other, the largest is the latest.
  for (size_t i = 0; i < totals.accepted_at.size(); ++i) {
    if (i == current_.accepted_at.size()) current_.accepted_at.push_back(0);
    current_.accepted_at[i] = std::max(current_.accepted_at[i], totals.accepted_at[i]);
  }
  current_.verification = totals.verification;
  // A later attempt also finds output tokens in the cache, which the client did not send.
  if (submit_.sequence.generated.empty()) {
    cached_tokens_ = std::max(cached_tokens_, message.cached_tokens);
  }
}

std::optional<Tokens> RequestReplay::Apply(Tokens message) {
  if (message.attempt != submit_.sequence.attempt || finished_) return std::nullopt;
  CountRounds(message);
  if (!Ready(message)) {
    early_.emplace(message.first_index, std::move(message));
    return Tokens();
  }
  Emit(message);
  for (bool moved = true; moved && !finished_;) {
    moved = false;
    for (auto next = early_.begin(); next != early_.end() && !finished_;) {
      const auto here = next++;
      if (!Ready(here->second)) continue;
      Tokens waited = std::move(here->second);
      early_.erase(here);
      Emit(waited);
      AppendTo(message.tokens, std::move(waited.tokens));
      AppendTo(message.logprobs, std::move(waited.logprobs));
      AppendTo(message.prompt_logprobs, std::move(waited.prompt_logprobs));
      message.finish = waited.finish;
      message.error = std::move(waited.error);
      moved = true;
    }
  }
  return message;
}

std::optional<Finish> RequestReplay::NextAttempt() {
  past_ = speculation();
  current_ = {};
  early_.clear();
  const bool stopped = !emitted_.empty() &&
                       std::find(submit_.sequence.stop_ids.begin(), submit_.sequence.stop_ids.end(),
                                 emitted_.back()) != submit_.sequence.stop_ids.end();
  const bool full = static_cast<int32_t>(emitted_.size()) >= submit_.sequence.max_tokens;
  if (scored_ && (stopped || full) && !emitted_.empty()) {
    finished_ = true;
    return stopped ? Finish::kStop : Finish::kLength;
  }
  finished_ = false;
  ++submit_.sequence.attempt;
  submit_.sequence.generated = emitted_;
  if (scored_ && submit_.sequence.max_tokens > 0) submit_.sequence.score_prompt = false;
  return std::nullopt;
}

schemas::Speculation RequestReplay::speculation() const {
  schemas::Speculation total = past_;
  total.Add(current_);
  return total;
}

}  // namespace specfabric::gateway
