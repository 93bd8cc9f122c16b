#ifndef SPECFABRIC_GATEWAY_GENERATION_H_
#define SPECFABRIC_GATEWAY_GENERATION_H_

// One completions or chat request under way: its choices from the first token to the last, and what
// is new of them.
//
// Made on an encoder thread, used on the io thread. What the io thread does here is bounded: long
// prompts are sent one at a time, and messages that take long to turn into text (the scores of a
// prompt, a long text that its decoder held back) go through an encoder thread, those of the same
// choice behind them.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "gateway/choice_text.h"
#include "gateway/dispatcher.h"
#include "gateway/openai_format.h"
#include "gateway/prepare.h"
#include "gateway/tenants.h"
#include "gateway/workers.h"
#include "metrics/gateway_metrics.h"
#include "tokenizer/tokenizer.h"

namespace specfabric::gateway {

// What a generation works with; all of it must outlive it.
struct GenerationContext {
  Dispatcher* dispatcher = nullptr;
  metrics::GatewayMetrics* metrics = nullptr;
  Workers* workers = nullptr;
  // Called when there is news, the end or an error; not from within a method of Generation.
  std::function<void()> wake;
  TimeLimit limit;
};

class Generation {
 public:
  // Any thread; the work grows with prompts and choices. `tokenizer` must outlive the object.
  static absl::StatusOr<std::unique_ptr<Generation>> Make(Prepared prepared,
                                                          const tokenizer::Tokenizer* tokenizer);
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;
  ~Generation();  // cancels what still runs

  size_t choices() const { return choices_.size(); }
  // Before the first Start: whose the choices are.
  void SetOwner(const base::TraceContext& trace, const Tenant& tenant);
  void SetContext(GenerationContext context) { context_ = std::move(context); }
  // Sends choices to targets, as many as a turn of the io thread is good for. True: call again, in
  // a later turn; until then the others wait.
  bool Start(base::Nanos now);

  // All choices have ended, or one failed and with it the request.
  bool done() const { return error_.has_value() || running_ == 0; }
  const std::optional<ApiError>& error() const { return error_; }

  bool HasNews() const;
  // What is new since the last call, one part a choice at most; after the end of a request that was
  // never asked before, the whole answer in order.
  std::vector<ChoicePart> Take();

  Usage usage() const;
  // Numerics of the target that began the first of the choices that have begun; 0 if none has.
  uint64_t fingerprint() const;
  Exactness exactness() const;  // of the choice that promises least
  const GenerationRequest& request() const { return prepared_->request; }

 private:
  struct Choice;
  struct Outcome;

  explicit Generation(Prepared prepared);
  absl::Status AddChoice(size_t index, const tokenizer::Tokenizer* tokenizer,
                         const std::shared_ptr<const StopPatterns>& stops);
  void StartChoice(size_t index, base::Nanos now);
  void OnTokens(size_t index, schemas::Tokens news);
  void WorkElsewhere(size_t index);
  void Worked(size_t index, std::vector<Outcome> outcomes);
  void Settle(size_t index, Outcome outcome);
  void CountDelivery(Choice& choice, size_t tokens);
  void Fail(ApiError error);
  void CancelAll();
  int64_t CachedTokens() const;
  size_t HeldBytes() const;

  std::shared_ptr<Prepared> prepared_;
  GenerationContext context_;
  std::vector<std::shared_ptr<Choice>> choices_;  // [prompt][n]
  size_t stop_bytes_ = 0;                         // of stop strings
  size_t next_ = 0;                               // the first that was not started
  size_t running_ = 0;                            // have not ended
  std::optional<ApiError> error_;
  // Gone with the object: what encoder threads come back to.
  std::shared_ptr<Generation*> alive_;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_GENERATION_H_
