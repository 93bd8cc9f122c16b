#include "gateway/generation.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

namespace specfabric::gateway {
namespace {

using schemas::Finish;

// Whether a target has anything to do: tokens to generate, or a prompt's tokens to score.
bool NeedsTarget(const schemas::Submit& submit) {
  return submit.max_tokens > 0 || (submit.score_prompt && submit.prompt.size() > 1);
}

}  // namespace

Generation::Generation(Prepared prepared, const tokenizer::Tokenizer* tokenizer,
                       Dispatcher* dispatcher, metrics::GatewayMetrics* metrics,
                       std::function<void()> wake, TimeLimit limit)
    : prepared_(std::move(prepared)),
      tokenizer_(tokenizer),
      dispatcher_(dispatcher),
      metrics_(metrics),
      wake_(std::move(wake)),
      limit_(limit) {}

Generation::~Generation() { CancelAll(); }

void Generation::Start(base::Nanos now) {
  for (size_t i = 0; i < prepared_.submits.size(); ++i) {
    if (absl::Status status = AddChoice(i); !status.ok()) {
      return Fail(ServerError(std::string(status.message())));
    }
  }
  metrics_->prompt_tokens.Increment(static_cast<double>(prepared_.prompt_tokens));
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (!NeedsTarget(prepared_.submits[i])) {
      if (!End(*choices_[i], "length").ok()) return Fail(ServerError("the tokenizer failed"));
      continue;
    }
    ++running_;
    ChoiceSink sink;
    sink.progress = [this, i](Progress progress) { OnProgress(i, std::move(progress)); };
    sink.failed = [this, i](ApiError error) {
      choices_[i]->id = 0;
      Fail(std::move(error));
      wake_();
    };
    choices_[i]->id =
        dispatcher_->Start(std::move(prepared_.submits[i]), std::move(sink), now, limit_);
  }
}

absl::Status Generation::AddChoice(size_t index) {
  const GenerationRequest& request = prepared_.request;
  const schemas::Submit& submit = prepared_.submits[index];
  ChoiceText::Options options;
  options.stop = request.stop;
  options.stop_ids = submit.stop_ids;
  options.include_stop = request.include_stop;
  options.skip_special_tokens = request.skip_special_tokens;
  options.min_tokens = submit.rules.min_tokens;
  options.with_logprobs = request.logprobs >= 0;
  absl::StatusOr<ChoiceText> text =
      ChoiceText::Create(tokenizer_, submit.prompt, std::move(options));
  if (!text.ok()) return text.status();
  auto choice = std::make_unique<Choice>(*std::move(text));
  choice->prompt = &prepared_.prompts[index / request.n];
  choice->part.index = static_cast<int>(index);
  choice->part.with_logprobs = request.logprobs >= 0;
  choice->part.tokens_as_ids = request.tokens_as_ids;
  if (request.return_token_ids) {
    choice->part.token_ids.emplace();
    choice->part.prompt_token_ids = choice->prompt->ids;
  }
  // Log-probabilities of a prompt come first; there is nothing to wait for without them.
  const bool waits = submit.score_prompt && submit.prompt.size() > 1;
  absl::Status status;
  if (request.echo && !waits) status = Echo(*choice, {});
  choices_.push_back(std::move(choice));
  return status;
}

absl::Status Generation::Echo(Choice& choice, absl::Span<const base::TokenLogprobs> logprobs) {
  const PreparedPrompt& prompt = *choice.prompt;
  auto piece = choice.text.Echo(prompt.ids, prompt.has_text ? &prompt.text : nullptr, logprobs);
  if (!piece.ok()) return piece.status();
  choice.part.text += piece->text;
  std::move(piece->entries.begin(), piece->entries.end(), std::back_inserter(choice.part.entries));
  choice.has_news = true;
  return absl::OkStatus();
}

void Generation::OnProgress(size_t index, Progress progress) {
  Choice& choice = *choices_[index];
  choice.record = dispatcher_->Record(choice.id);
  const bool ended = progress.finish != Finish::kNone;
  const uint64_t id = choice.id;
  if (ended) choice.id = 0;
  absl::Status status = Advance(choice, progress);
  if (status.ok() && (ended || choice.text.stopped())) {
    if (!ended) dispatcher_->Cancel(id);
    choice.id = 0;
    --running_;
    const bool length = !choice.text.stopped() && progress.finish == Finish::kLength;
    status = End(choice, length ? "length" : "stop");
  }
  if (!status.ok()) Fail(ServerError(std::string(status.message())));
  if (HasNews() || done()) wake_();
}

absl::Status Generation::Advance(Choice& choice, const Progress& progress) {
  if (progress.has_prompt_logprobs) {
    if (absl::Status status = Echo(choice, progress.prompt_logprobs); !status.ok()) return status;
  }
  if (progress.tokens.empty()) return absl::OkStatus();
  auto piece = choice.text.Append(progress.tokens, progress.logprobs);
  if (!piece.ok()) return piece.status();
  CountDelivery(choice, piece->ids.size());
  choice.part.text += piece->text;
  std::move(piece->entries.begin(), piece->entries.end(), std::back_inserter(choice.part.entries));
  if (choice.part.token_ids) {
    choice.part.token_ids->insert(choice.part.token_ids->end(), piece->ids.begin(),
                                  piece->ids.end());
  }
  choice.has_news = choice.has_news || !choice.part.text.empty() || !choice.part.entries.empty() ||
                    choice.part.token_ids.has_value();
  return absl::OkStatus();
}

void Generation::CountDelivery(Choice& choice, size_t tokens) {
  const base::Nanos now = base::Now();
  if (choice.tokens == 0) {
    choice.first_token = now;
    metrics_->first_token.Observe(base::ToSeconds(now - limit_.received));
  } else {
    metrics_->inter_token.Observe(base::ToSeconds(now - choice.last_token));
  }
  choice.last_token = now;
  choice.tokens += static_cast<int64_t>(tokens);
  metrics_->output_tokens.Increment(static_cast<double>(tokens));
}

absl::Status Generation::End(Choice& choice, const char* reason) {
  absl::StatusOr<std::string> rest = choice.text.Finish();
  if (!rest.ok()) return rest.status();
  choice.part.text += *rest;
  choice.part.finish_reason = reason;
  // What was held back at the end may have completed a stop string.
  if (choice.text.stopped()) choice.part.finish_reason = "stop";
  choice.has_news = true;
  if (choice.tokens > 1) {
    metrics_->per_output.Observe(base::ToSeconds(choice.last_token - choice.first_token) /
                                 static_cast<double>(choice.tokens - 1));
  }
  return absl::OkStatus();
}

void Generation::Fail(ApiError error) {
  if (!error_) error_ = std::move(error);
  CancelAll();
}

void Generation::CancelAll() {
  for (const auto& choice : choices_) {
    if (const uint64_t id = std::exchange(choice->id, 0); id != 0) dispatcher_->Cancel(id);
  }
}

bool Generation::HasNews() const {
  return std::any_of(choices_.begin(), choices_.end(),
                     [](const auto& choice) { return choice->has_news; });
}

std::vector<Generation::News> Generation::Take() {
  std::vector<News> news;
  for (const auto& choice : choices_) {
    if (!std::exchange(choice->has_news, false)) continue;
    ChoicePart next;
    next.index = choice->part.index;
    next.with_logprobs = choice->part.with_logprobs;
    next.tokens_as_ids = choice->part.tokens_as_ids;
    if (choice->part.token_ids) next.token_ids.emplace();
    news.push_back(
        {std::exchange(choice->part, std::move(next)), std::exchange(choice->first, false)});
  }
  return news;
}

Usage Generation::usage() const {
  Usage usage;
  usage.prompt_tokens = prepared_.prompt_tokens;
  for (const auto& choice : choices_) {
    usage.completion_tokens += choice->tokens;
    usage.speculation.Add(choice->record.speculation);
  }
  usage.cached_tokens = CachedTokens();
  return usage;
}

// Each prompt once, as prompt_tokens counts it: what all its choices found had been there before
// any of them.
int64_t Generation::CachedTokens() const {
  int64_t total = 0;
  for (size_t first = 0; first < choices_.size(); first += prepared_.request.n) {
    int32_t cached = choices_[first]->record.cached_tokens;
    for (int i = 1; i < prepared_.request.n; ++i) {
      cached = std::min(cached, choices_[first + i]->record.cached_tokens);
    }
    total += cached;
  }
  return total;
}

uint64_t Generation::fingerprint() const {
  return choices_.empty() ? 0 : choices_.front()->record.fingerprint;
}

Exactness Generation::exactness() const {
  Exactness worst = Exactness::kToken;
  for (const auto& choice : choices_) worst = std::max(worst, ExactnessOf(choice->record));
  return worst;
}

}  // namespace specfabric::gateway
