#ifndef SPECFABRIC_GATEWAY_GENERATION_H_
#define SPECFABRIC_GATEWAY_GENERATION_H_

// One completions or chat request under way: its choices from the first token to the last, and what
// is new of them. On the io thread.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "gateway/choice_text.h"
#include "gateway/dispatcher.h"
#include "gateway/openai_format.h"
#include "gateway/prepare.h"
#include "metrics/gateway_metrics.h"
#include "tokenizer/tokenizer.h"

namespace specfabric::gateway {

class Generation {
 public:
  // `wake` is called when there is news, the end or an error; not from within a method of this
  // class. All that is pointed to must outlive the object.
  Generation(Prepared prepared, const tokenizer::Tokenizer* tokenizer, Dispatcher* dispatcher,
             metrics::GatewayMetrics* metrics, std::function<void()> wake, TimeLimit limit);
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;
  ~Generation();  // cancels what still runs

  void Start(base::Nanos now);

  // All choices have ended, or one failed and with it the request.
  bool done() const { return error_.has_value() || running_ == 0; }
  const std::optional<ApiError>& error() const { return error_; }

  struct News {
    ChoicePart part;
    bool first = false;  // of this choice
  };
  bool HasNews() const;
  // What is new since the last call, one part a choice at most; after the end of a request that was
  // never asked before, the whole answer in order.
  std::vector<News> Take();

  Usage usage() const;
  uint64_t fingerprint() const;  // numerics of the target that began choice 0; 0 if unknown
  Exactness exactness() const;   // of the choice that promises least
  const GenerationRequest& request() const { return prepared_.request; }

 private:
  struct Choice {
    explicit Choice(ChoiceText text) : text(std::move(text)) {}
    uint64_t id = 0;  // the dispatcher's while it runs; 0: does not
    const PreparedPrompt* prompt = nullptr;
    ChoiceText text;
    ChoicePart part;  // not taken yet
    bool first = true;
    bool has_news = false;
    ChoiceRecord record;
    int64_t tokens = 0;  // output
    base::Nanos first_token = 0, last_token = 0;
  };

  absl::Status AddChoice(size_t index);
  absl::Status Echo(Choice& choice, absl::Span<const base::TokenLogprobs> logprobs);
  void OnProgress(size_t index, Progress progress);
  absl::Status Advance(Choice& choice, const Progress& progress);
  void CountDelivery(Choice& choice, size_t tokens);
  absl::Status End(Choice& choice, const char* reason);
  void Fail(ApiError error);
  void CancelAll();
  int64_t CachedTokens() const;

  Prepared prepared_;
  const tokenizer::Tokenizer* tokenizer_;
  Dispatcher* dispatcher_;
  metrics::GatewayMetrics* metrics_;
  std::function<void()> wake_;
  const TimeLimit limit_;
  std::vector<std::unique_ptr<Choice>> choices_;  // [prompt][n]
  size_t running_ = 0;
  std::optional<ApiError> error_;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_GENERATION_H_
