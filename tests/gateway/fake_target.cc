#include "tests/gateway/fake_target.h"

#include <algorithm>

#include "base/check.h"

namespace specfabric::gateway {

using schemas::Finish;

FakeTarget::FakeTarget(FakeTargetOptions options) : options_(std::move(options)) {
  link::LinkOptions link;
  link.listen = options_.listen;
  link.hello.role = schemas::Role::kTarget;
  link.hello.model = "fake";
  link.hello.vocabulary = options_.vocabulary;
  link.hello.context = options_.context;
  link.hello.tokenizer_fingerprint = options_.tokenizer_fingerprint;
  link.hello.numerics_fingerprint = options_.numerics_fingerprint;
  link::LinkHandler handler;
  handler.on_up = [this](link::PeerId peer, const schemas::Hello&, const std::string&) {
    std::lock_guard lock(mutex_);
    peers_.push_back(peer);
  };
  handler.on_message = [this](link::PeerId peer, link::Message message) {
    OnMessage(peer, std::move(message));
  };
  auto created = link::Link::Create(std::move(link), std::move(handler));
  SPECFABRIC_CHECK(created.ok());
  link_ = *std::move(created);
  sender_ = link_.get();
  address_ = link_->listen_address();
  SPECFABRIC_CHECK(link_->Start().ok());
  if (options_.pace > 0) pacer_ = std::thread([this] { SendInPace(); });
}

FakeTarget::~FakeTarget() {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
  }
  ending_.notify_all();
  if (pacer_.joinable()) pacer_.join();
}

void FakeTarget::SendInPace() {
  std::unique_lock lock(mutex_);
  while (!ending_.wait_for(lock, std::chrono::nanoseconds(options_.pace), [&] { return ended_; })) {
    std::erase_if(running_, [this](Sequence& sequence) { return !SendNext(sequence); });
  }
}

size_t FakeTarget::peers() const {
  std::lock_guard lock(mutex_);
  return peers_.size();
}

void FakeTarget::SendDrain() {
  std::lock_guard lock(mutex_);
  for (const link::PeerId peer : peers_) sender_->Send(peer, schemas::Drain{}).IgnoreError();
}

base::TokenId FakeTarget::TokenAt(uint64_t seed, int32_t index) const {
  return options_.corpus[(seed * 7 + static_cast<uint64_t>(index)) % options_.corpus.size()];
}

std::vector<base::TokenId> FakeTarget::Output(uint64_t seed, int32_t count) const {
  std::vector<base::TokenId> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(TokenAt(seed, i));
  return tokens;
}

std::vector<schemas::Submit> FakeTarget::submits() const {
  std::lock_guard lock(mutex_);
  return submits_;
}

std::vector<schemas::Cancel> FakeTarget::cancels() const {
  std::lock_guard lock(mutex_);
  return cancels_;
}

void FakeTarget::OnMessage(link::PeerId peer, link::Message message) {
  std::lock_guard lock(mutex_);
  if (const auto* submit = std::get_if<schemas::Submit>(&message)) {
    submits_.push_back(*submit);
    Answer(peer, *submit);
  } else if (const auto* cancel = std::get_if<schemas::Cancel>(&message)) {
    cancels_.push_back(*cancel);
    std::erase_if(running_, [&](const Sequence& sequence) {
      return sequence.peer == peer && sequence.submit.request_id == cancel->request_id;
    });
  }
}

base::TokenLogprobs FakeTarget::Scored(base::TokenId token, int count) const {
  base::TokenLogprobs scored;
  scored.token = token;
  scored.logprob = -0.001f * static_cast<float>(token);
  for (int i = 0; i < std::max(count, 1); ++i) {
    const base::TokenId candidate = (token + i) % std::max(options_.vocabulary, 1);
    scored.top.emplace_back(candidate, scored.logprob - static_cast<float>(i));
  }
  return scored;
}

void FakeTarget::Answer(link::PeerId peer, const schemas::Submit& submit) {
  Sequence sequence{peer, submit, {}, static_cast<int32_t>(submit.sequence.generated.size())};
  schemas::Tokens& message = sequence.message;
  message.request_id = submit.request_id;
  message.attempt = submit.sequence.attempt;
  if (options_.refusal) {
    message.finish = *options_.refusal;
    message.error = "because the test says so";
    sender_->Send(peer, schemas::TokensBatch{{message}}).IgnoreError();
    return;
  }
  message.speculation.verification =
      submit.verification.value_or(schemas::VerificationMethod::kCoupled);
  if (submit.sequence.score_prompt) {
    for (size_t i = 1; i < submit.sequence.prompt.size(); ++i) {
      message.prompt_logprobs.push_back(
          Scored(submit.sequence.prompt[i], submit.sequence.logprobs));
    }
  }
  while (SendNext(sequence)) {
    if (options_.pace == 0) continue;
    running_.push_back(std::move(sequence));
    return;
  }
}

// Three tokens, with the totals of a target that drafted four and accepted two a round.
bool FakeTarget::SendNext(Sequence& sequence) {
  const schemas::Submit& submit = sequence.submit;
  schemas::Tokens& message = sequence.message;
  const bool stalls = options_.stall_after >= 0 && submit.sequence.attempt == 0;
  const int32_t end = stalls ? std::min(submit.sequence.max_tokens, options_.stall_after)
                             : submit.sequence.max_tokens;
  message.first_index = sequence.next;
  for (; sequence.next < std::min(end, message.first_index + 3); ++sequence.next) {
    message.tokens.push_back(TokenAt(submit.sequence.sampling.seed, sequence.next));
    if (submit.sequence.logprobs >= 0) {
      message.logprobs.push_back(Scored(message.tokens.back(), submit.sequence.logprobs));
    }
  }
  ++message.speculation.rounds;
  ++message.speculation.drafted_rounds;
  message.speculation.drafted += 4;
  message.speculation.accepted += 2;
  message.speculation.accepted_at = {message.speculation.rounds, message.speculation.rounds};
  message.cached_tokens = std::min<int32_t>(options_.cached_tokens, submit.sequence.prompt.size());
  if (sequence.next == submit.sequence.max_tokens) message.finish = Finish::kLength;
  sender_->Send(sequence.peer, schemas::TokensBatch{{message}}).IgnoreError();
  message.tokens.clear();
  message.logprobs.clear();
  message.prompt_logprobs.clear();
  return sequence.next < end;
}

}  // namespace specfabric::gateway
