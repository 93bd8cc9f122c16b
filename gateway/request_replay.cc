#include "gateway/request_replay.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace specfabric::gateway {

using schemas::Finish;
using schemas::Tokens;

RequestReplay::RequestReplay(schemas::Submit submit) : submit_(std::move(submit)) {
  // A prompt of one token has no log-probabilities to wait for.
  scored_ = !submit_.score_prompt || submit_.prompt.size() < 2;
}

bool RequestReplay::Ready(const Tokens& message) const {
  const bool has_scores = scored_ || !message.prompt_logprobs.empty();
  // An error may come at any time; it needs nothing before it.
  const bool is_error = message.finish != Finish::kNone && message.finish != Finish::kStop &&
                        message.finish != Finish::kLength;
  return is_error || (has_scores && message.first_index <= static_cast<int32_t>(emitted_.size()));
}

void RequestReplay::Take(Tokens& message, Progress& progress) {
  if (!scored_ && !message.prompt_logprobs.empty()) {
    scored_ = true;
    progress.has_prompt_logprobs = true;
    progress.prompt_logprobs = std::move(message.prompt_logprobs);
  }
  const int32_t known = static_cast<int32_t>(emitted_.size()) - message.first_index;
  const bool has_logprobs = message.logprobs.size() == message.tokens.size();
  for (size_t i = std::max(known, 0); known >= 0 && i < message.tokens.size(); ++i) {
    emitted_.push_back(message.tokens[i]);
    progress.tokens.push_back(message.tokens[i]);
    if (has_logprobs) progress.logprobs.push_back(std::move(message.logprobs[i]));
  }
  if (message.finish != Finish::kNone) {
    finished_ = true;
    progress.finish = message.finish;
    progress.error = std::move(message.error);
  }
}

std::optional<Progress> RequestReplay::Apply(Tokens message) {
  if (message.attempt != submit_.attempt || finished_) return std::nullopt;
  current_.rounds = std::max<int64_t>(current_.rounds, message.rounds);
  current_.drafted = std::max<int64_t>(current_.drafted, message.drafted);
  current_.accepted = std::max<int64_t>(current_.accepted, message.accepted);
  // The totals at each depth only grow: of two messages that overtook, the longer or later wins.
  for (size_t i = 0; i < message.accepted_at.size(); ++i) {
    if (i == current_.accepted_at.size()) current_.accepted_at.push_back(0);
    current_.accepted_at[i] = std::max<int64_t>(current_.accepted_at[i], message.accepted_at[i]);
  }
  current_.verification = message.verification;
  // Later attempts find what the client never asked for: tokens of the output.
  if (submit_.generated.empty()) cached_tokens_ = std::max(cached_tokens_, message.cached_tokens);

  Progress progress;
  early_.emplace(message.first_index, std::move(message));
  for (bool moved = true; moved && !finished_;) {
    moved = false;
    for (auto next = early_.begin(); next != early_.end() && !finished_;) {
      const auto here = next++;
      if (!Ready(here->second)) continue;
      Tokens ready = std::move(here->second);
      early_.erase(here);
      Take(ready, progress);
      moved = true;
    }
  }
  return progress;
}

std::optional<Finish> RequestReplay::NextAttempt() {
  past_ = speculation();
  current_ = {};
  early_.clear();
  const bool stopped =
      !emitted_.empty() && std::find(submit_.stop_ids.begin(), submit_.stop_ids.end(),
                                     emitted_.back()) != submit_.stop_ids.end();
  const bool full = static_cast<int32_t>(emitted_.size()) >= submit_.max_tokens;
  if (scored_ && (stopped || full) && !emitted_.empty()) {
    finished_ = true;
    return stopped ? Finish::kStop : Finish::kLength;
  }
  finished_ = false;
  ++submit_.attempt;
  submit_.generated = emitted_;
  if (scored_ && submit_.max_tokens > 0) submit_.score_prompt = false;
  return std::nullopt;
}

Speculation RequestReplay::speculation() const {
  Speculation total = past_;
  total.Add(current_);
  return total;
}

void Speculation::Add(const Speculation& other) {
  rounds += other.rounds;
  drafted += other.drafted;
  accepted += other.accepted;
  if (accepted_at.size() < other.accepted_at.size()) accepted_at.resize(other.accepted_at.size());
  for (size_t i = 0; i < other.accepted_at.size(); ++i) accepted_at[i] += other.accepted_at[i];
  // Their order is that of their promises: the same text, the same distribution, neither.
  verification = std::max(verification, other.verification);
}

}  // namespace specfabric::gateway
