#include "gateway/generation.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "gateway/append.h"

namespace specfabric::gateway {
namespace {

using schemas::Finish;

// A message that takes more work than this is processed on an encoder thread: about 200 us. The
// unit is the log-probability of one candidate token.
constexpr size_t kHeavy = 2048;
constexpr size_t kTokenWork = 16;  // to decode one token
// A generation that takes more memory is freed on an encoder thread; a log-probability with its
// candidates counts as kEntryBytes.
constexpr size_t kLargeBytes = 256 << 10;
constexpr size_t kEntryBytes = 1 << 10;

// Whether there are tokens to generate, or prompt tokens to score.
bool NeedsTarget(const schemas::SequenceRequest& sequence) {
  return sequence.max_tokens > 0 || (sequence.score_prompt && sequence.prompt.size() > 1);
}

}  // namespace

struct Generation::Choice {
  Choice(ChoiceText text, const PreparedPrompt* prompt) : text(std::move(text)), prompt(prompt) {}

  // Turns one message into text. On the io thread, or on an encoder thread while `working`.
  Outcome Work(const schemas::Tokens& news);
  absl::Status Echo(absl::Span<const base::TokenLogprobs> logprobs, TextPiece& piece);
  // Takes reasoning and the calls of tools out of the text; `ends`: nothing follows it.
  void Sort(TextPiece& piece, bool ends);
  int64_t ReasoningTokens(absl::Span<const base::TokenId> tokens) const;
  size_t WorkOf(const schemas::Tokens& news) const;

  ChoiceText text;
  std::optional<ReasoningSplitter> reasoning;  // if the answer may have some
  std::optional<ToolParser> tools;             // if the answer may call some
  const PreparedPrompt* const prompt;          // part of `prepared`
  std::shared_ptr<const Prepared> prepared;
  size_t held = 0;  // tokens since the decoder last returned text

  // On the io thread.
  uint64_t id = 0;  // the dispatcher's; 0 when the choice does not run
  ChoicePart part;  // output that was not taken yet
  bool has_news = false;
  bool working = false;                 // an encoder thread processes its messages
  std::vector<schemas::Tokens> behind;  // messages that arrived meanwhile
  ChoiceRecord record;
  int64_t tokens = 0;            // of the output
  int64_t reasoning_tokens = 0;  // among them
  base::Nanos first_token = 0, last_token = 0;
};

struct Generation::Outcome {
  absl::Status status;
  TextPiece piece;
  int64_t reasoning_tokens = 0;
  std::optional<std::vector<TokenEntry>> prompt_logprobs;
  const char* finish_reason = nullptr;  // null: the output goes on
};

absl::Status Generation::Choice::Echo(absl::Span<const base::TokenLogprobs> logprobs,
                                      TextPiece& piece) {
  auto echo = text.Echo(prompt->ids, prompt->has_text ? &prompt->text : nullptr, logprobs);
  if (!echo.ok()) return echo.status();
  piece.Append(*std::move(echo));
  return absl::OkStatus();
}

void Generation::Choice::Sort(TextPiece& piece, bool ends) {
  if (reasoning) {
    ReasonedText split = reasoning->Push(piece.text);
    if (ends) {
      ReasonedText rest = reasoning->Finish();
      AppendTo(split.reasoning, std::move(rest.reasoning));
      AppendTo(split.content, std::move(rest.content));
    }
    piece.text = std::move(split.content);
    if (prepared->request.include_reasoning) piece.reasoning = std::move(split.reasoning);
  }
  if (!tools) return;
  ToolText found = tools->Push(piece.text);
  piece.text = std::move(found.content);
  piece.calls = std::move(found.calls);
  if (!ends) return;
  ToolText rest = tools->Finish();
  piece.Append({.text = std::move(rest.content), .calls = std::move(rest.calls)});
}

// Tokens up to the closing mark. Where that is several tokens, those of the message that has it are
// not counted. Call before their text is sorted.
int64_t Generation::Choice::ReasoningTokens(absl::Span<const base::TokenId> tokens) const {
  if (!reasoning || !reasoning->reasons()) return 0;
  const auto close = prepared->request.reasoning->close;
  return (close ? std::find(tokens.begin(), tokens.end(), *close) : tokens.end()) - tokens.begin();
}

size_t Generation::Choice::WorkOf(const schemas::Tokens& news) const {
  const auto candidates = [](const std::vector<base::TokenLogprobs>& list) {
    return list.empty() ? 0 : list.size() * (1 + list.front().top.size());
  };
  const size_t decoded = news.tokens.size() + news.prompt_logprobs.size() + held;
  return decoded * kTokenWork + candidates(news.logprobs) + candidates(news.prompt_logprobs);
}

Generation::Outcome Generation::Choice::Work(const schemas::Tokens& news) {
  Outcome outcome;
  const GenerationRequest& request = prepared->request;
  if (!news.prompt_logprobs.empty() && request.prompt_logprobs >= 0) {
    outcome.prompt_logprobs =
        text.PromptEntries(prompt->ids, news.prompt_logprobs, request.prompt_logprobs);
  }
  if (!news.prompt_logprobs.empty() && request.echo) {
    outcome.status = Echo(news.prompt_logprobs, outcome.piece);
    if (!outcome.status.ok()) return outcome;
  }
  if (!news.tokens.empty()) {
    outcome.reasoning_tokens = ReasoningTokens(news.tokens);
    auto piece = text.Append(news.tokens, news.logprobs);
    outcome.status = piece.status();
    if (!piece.ok()) return outcome;
    held = piece->text.empty() ? held + piece->ids.size() : 0;
    outcome.piece.Append(*std::move(piece));
  }
  if (news.finish == Finish::kNone && !text.stopped()) {
    Sort(outcome.piece, /*ends=*/false);
    return outcome;
  }
  const bool length = !text.stopped() && news.finish == Finish::kLength;
  absl::StatusOr<std::string> rest = text.Finish();
  outcome.status = rest.status();
  if (!rest.ok()) return outcome;
  outcome.piece.text += *rest;
  // The text that was held back until the end may have completed a stop string.
  outcome.finish_reason = length && !text.stopped() ? "length" : "stop";
  Sort(outcome.piece, /*ends=*/true);
  if (!length && tools && tools->calls() > 0) outcome.finish_reason = "tool_calls";
  return outcome;
}

Generation::Generation(Prepared prepared)
    : prepared_(std::make_shared<Prepared>(std::move(prepared))),
      alive_(std::make_shared<Generation*>(this)) {}

Generation::~Generation() {
  CancelAll();
  if (context_.workers != nullptr && HeldBytes() > kLargeBytes) {
    context_.workers->Discard(std::pair(std::move(prepared_), std::move(choices_)));
  }
}

absl::StatusOr<std::unique_ptr<Generation>> Generation::Make(
    Prepared prepared, const tokenizer::Tokenizer* tokenizer) {
  const auto stops = std::make_shared<const StopPatterns>(prepared.request.stop);
  std::unique_ptr<Generation> generation(new Generation(std::move(prepared)));
  for (size_t i = 0; i < generation->prepared_->submits.size(); ++i) {
    if (absl::Status status = generation->AddChoice(i, tokenizer, stops); !status.ok()) {
      return status;
    }
  }
  // The rest of this function frees what is not used any more.
  for (schemas::Submit& submit : generation->prepared_->submits) {
    if (NeedsTarget(submit.sequence)) continue;
    submit = {};
    submit.sequence.max_tokens = 0;  // still needs no target
  }
  GenerationRequest& request = generation->prepared_->request;
  for (const std::string& stop : request.stop) generation->stop_bytes_ += stop.size();
  std::vector<Prompt>().swap(request.prompts);
  std::vector<std::string>().swap(request.stop);
  for (std::string* text : {&request.messages, &request.cache_salt, &request.verification}) {
    std::string().swap(*text);
  }
  if (!request.echo) {
    for (PreparedPrompt& prompt : generation->prepared_->prompts) std::string().swap(prompt.text);
  }
  return generation;
}

absl::Status Generation::AddChoice(size_t index, const tokenizer::Tokenizer* tokenizer,
                                   const std::shared_ptr<const StopPatterns>& stops) {
  const GenerationRequest& request = prepared_->request;
  const schemas::SequenceRequest& sequence = prepared_->submits[index].sequence;
  ChoiceText::Options options;
  options.stop = stops;
  options.stop_ids = sequence.stop_ids;
  options.include_stop = request.include_stop;
  options.skip_special_tokens = request.skip_special_tokens;
  options.min_tokens = sequence.rules.min_tokens;
  options.logprobs = request.logprobs;
  absl::StatusOr<ChoiceText> text =
      ChoiceText::Create(tokenizer, sequence.prompt, std::move(options));
  if (!text.ok()) return text.status();
  const PreparedPrompt& prompt = prepared_->prompts[index / request.n];
  auto choice = std::make_shared<Choice>(*std::move(text), &prompt);
  choice->prepared = prepared_;
  if (request.reasoning) choice->reasoning.emplace(*request.reasoning);
  if (request.tool_use != ToolUse::kNone) choice->tools.emplace(request.tool_format);
  choice->part.index = static_cast<int>(index);
  choice->part.with_logprobs = request.logprobs >= 0;
  choice->part.tokens_as_ids = request.tokens_as_ids;
  if (request.return_token_ids) {
    choice->part.with_token_ids = true;
    choice->part.prompt_token_ids = prompt.ids;
  }
  if (request.prompt_logprobs >= 0) {
    choice->part.prompt_logprobs = choice->text.PromptEntries(prompt.ids, {}, 0);
  }
  // An echoed prompt is part of the output at once, unless its log-probabilities have to come
  // first.
  const bool waits = sequence.score_prompt && sequence.prompt.size() > 1;
  if (request.echo && !waits) {
    if (absl::Status status = choice->Echo({}, choice->part.piece); !status.ok()) return status;
    choice->has_news = true;
  }
  if (!NeedsTarget(sequence)) {
    schemas::Tokens last;
    last.finish = Finish::kLength;
    Outcome outcome = choice->Work(last);
    if (!outcome.status.ok()) return outcome.status;
    choice->part.piece.Append(std::move(outcome.piece));
    choice->part.finish_reason = outcome.finish_reason;
    choice->part.stop = choice->text.stop();
    choice->has_news = true;
  } else {
    ++running_;
  }
  choices_.push_back(std::move(choice));
  return absl::OkStatus();
}

void Generation::SetOwner(const base::TraceContext& trace, const Tenant& tenant) {
  for (schemas::Submit& submit : prepared_->submits) {
    submit.trace = trace;
    submit.sequence.tenant = tenant.id;
    submit.sequence.cache_salt = tenant.cache_salt;
  }
}

bool Generation::Start(base::Nanos now) {
  if (next_ == 0) {
    context_.metrics->prompt_tokens.Increment(static_cast<double>(prepared_->prompt_tokens));
  }
  size_t sent = 0;
  for (; next_ < choices_.size() && !error_; ++next_) {
    const schemas::Submit& submit = prepared_->submits[next_];
    if (!NeedsTarget(submit.sequence)) continue;
    const size_t cost = SubmitCost(submit);
    if (sent > 0 && sent + cost > kSubmitsATurn) return true;
    sent += cost;
    StartChoice(next_, now);
  }
  return false;
}

bool Generation::Placed() const {
  return next_ == choices_.size() &&
         std::all_of(choices_.begin(), choices_.end(), [this](const auto& choice) {
           return choice->id == 0 || context_.dispatcher->Placed(choice->id);
         });
}

void Generation::StartChoice(size_t index, base::Nanos now) {
  ChoiceSink sink;
  sink.tokens = [this, index](schemas::Tokens news) { OnTokens(index, std::move(news)); };
  sink.failed = [this, index](ApiError error) {
    choices_[index]->id = 0;
    Fail(std::move(error));
    context_.wake();
  };
  choices_[index]->id = context_.dispatcher->Start(std::move(prepared_->submits[index]),
                                                   std::move(sink), now, context_.limit);
}

void Generation::OnTokens(size_t index, schemas::Tokens news) {
  Choice& choice = *choices_[index];
  choice.record = context_.dispatcher->Record(choice.id);
  if (news.finish != Finish::kNone) choice.id = 0;
  if (choice.working || choice.WorkOf(news) > kHeavy) {
    choice.behind.push_back(std::move(news));
    if (!choice.working) WorkElsewhere(index);
    return;
  }
  Settle(index, choice.Work(news));
}

// Processes the messages in `behind` on an encoder thread.
void Generation::WorkElsewhere(size_t index) {
  const std::shared_ptr<Choice>& choice = choices_[index];
  choice->working = true;
  const auto outcomes = std::make_shared<std::vector<Outcome>>();
  auto job = [choice, outcomes, messages = std::exchange(choice->behind, {})] {
    for (const schemas::Tokens& message : messages) {
      outcomes->push_back(choice->Work(message));
      if (outcomes->back().finish_reason != nullptr || !outcomes->back().status.ok()) break;
    }
  };
  auto done = [outcomes, index, alive = std::weak_ptr(alive_), workers = context_.workers] {
    if (const auto generation = alive.lock()) {
      (*generation)->Worked(index, std::move(*outcomes));
    } else {
      workers->Discard(std::move(*outcomes));
    }
  };
  context_.workers->Post(Work::kLong, std::move(job), std::move(done));
}

void Generation::Worked(size_t index, std::vector<Outcome> outcomes) {
  Choice& choice = *choices_[index];
  choice.working = false;
  for (Outcome& outcome : outcomes) {
    if (error_) return;
    const bool ended = outcome.finish_reason != nullptr;
    Settle(index, std::move(outcome));
    if (ended) return;
  }
  if (!choice.behind.empty()) WorkElsewhere(index);
}

void Generation::Settle(size_t index, Outcome outcome) {
  Choice& choice = *choices_[index];
  if (!outcome.status.ok()) {
    Fail(ServerError(std::string(outcome.status.message())));
    return context_.wake();
  }
  if (!outcome.piece.ids.empty()) CountDelivery(choice, outcome.piece.ids.size());
  if (!choice.part.with_token_ids) outcome.piece.ids.clear();
  choice.reasoning_tokens += outcome.reasoning_tokens;
  if (outcome.prompt_logprobs) choice.part.prompt_logprobs = std::move(outcome.prompt_logprobs);
  choice.part.piece.Append(std::move(outcome.piece));
  const TextPiece& piece = choice.part.piece;
  choice.has_news = choice.has_news || !piece.reasoning.empty() || !piece.text.empty() ||
                    !piece.calls.empty() || !piece.entries.empty() || choice.part.with_token_ids;
  if (outcome.finish_reason != nullptr) {
    if (const uint64_t id = std::exchange(choice.id, 0); id != 0) context_.dispatcher->Cancel(id);
    --running_;
    choice.part.finish_reason = outcome.finish_reason;
    choice.part.stop = choice.text.stop();
    choice.has_news = true;
    if (choice.tokens > 1) {
      context_.metrics->per_output.Observe(base::ToSeconds(choice.last_token - choice.first_token) /
                                           static_cast<double>(choice.tokens - 1));
    }
  }
  if (choice.has_news || done()) context_.wake();
}

void Generation::CountDelivery(Choice& choice, size_t tokens) {
  const base::Nanos now = base::Now();
  if (choice.tokens == 0) {
    choice.first_token = now;
    context_.metrics->first_token.Observe(base::ToSeconds(now - context_.limit.received));
  } else {
    context_.metrics->inter_token.Observe(base::ToSeconds(now - choice.last_token));
  }
  choice.last_token = now;
  choice.tokens += static_cast<int64_t>(tokens);
  context_.metrics->output_tokens.Increment(static_cast<double>(tokens));
}

void Generation::Fail(ApiError error) {
  if (!error_) error_ = std::move(error);
  CancelAll();
}

void Generation::CancelAll() {
  for (const auto& choice : choices_) {
    if (const uint64_t id = std::exchange(choice->id, 0); id != 0) context_.dispatcher->Cancel(id);
  }
}

bool Generation::HasNews() const {
  return std::any_of(choices_.begin(), choices_.end(),
                     [](const auto& choice) { return choice->has_news; });
}

std::vector<ChoicePart> Generation::Take() {
  std::vector<ChoicePart> news;
  for (const auto& choice : choices_) {
    if (!std::exchange(choice->has_news, false)) continue;
    ChoicePart next;
    next.index = choice->part.index;
    next.with_logprobs = choice->part.with_logprobs;
    next.tokens_as_ids = choice->part.tokens_as_ids;
    next.with_token_ids = choice->part.with_token_ids;
    choice->part.prompt_tokens = static_cast<int64_t>(choice->prompt->ids.size());
    choice->part.completion_tokens = choice->tokens;
    news.push_back(std::exchange(choice->part, std::move(next)));
  }
  return news;
}

Usage Generation::usage() const {
  Usage usage;
  usage.prompt_tokens = prepared_->prompt_tokens;
  for (const auto& choice : choices_) {
    usage.completion_tokens += choice->tokens;
    usage.reasoning_tokens += choice->reasoning_tokens;
    usage.speculation.Add(choice->record.speculation);
  }
  usage.cached_tokens = CachedTokens();
  usage.choices = choices_.size();
  return usage;
}

// Counts each prompt once, as prompt_tokens does. The choices of a prompt may find blocks that one
// of them has just written, so the minimum is what was cached before the request.
int64_t Generation::CachedTokens() const {
  const int n = prepared_->request.n;
  int64_t total = 0;
  for (size_t first = 0; first < choices_.size(); first += n) {
    int32_t cached = choices_[first]->record.cached_tokens;
    for (int i = 1; i < n; ++i) {
      cached = std::min(cached, choices_[first + i]->record.cached_tokens);
    }
    total += cached;
  }
  return total;
}

uint64_t Generation::fingerprint() const {
  for (const auto& choice : choices_) {
    if (choice->record.fingerprint != 0) return choice->record.fingerprint;
  }
  return 0;
}

Exactness Generation::exactness() const {
  Exactness worst = Exactness::kToken;
  for (const auto& choice : choices_) worst = std::max(worst, ExactnessOf(choice->record));
  return worst;
}

size_t Generation::HeldBytes() const {
  size_t bytes = stop_bytes_ * StopPatterns::kBytesAByte;
  for (const PreparedPrompt& prompt : prepared_->prompts) {
    bytes += prompt.text.size() + prompt.ids.size() * sizeof(base::TokenId);
  }
  for (const auto& choice : choices_) {
    bytes += sizeof(Choice) + choice->part.piece.reasoning.size() + choice->part.piece.text.size() +
             choice->part.piece.entries.size() * kEntryBytes;
  }
  return bytes;
}

}  // namespace specfabric::gateway
