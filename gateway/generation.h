#ifndef SPECFABRIC_GATEWAY_GENERATION_H_
#define SPECFABRIC_GATEWAY_GENERATION_H_

// A running completions or chat request: its choices, and their output that was not taken yet.
//
// Made on an encoder thread, used on the io thread. Its work on the io thread is bounded: long
// prompts are sent one a turn, and a message that takes long to turn into text (log-probabilities
// of a prompt, a long text that the decoder held back) is processed on an encoder thread, and so
// are the messages of the same choice that follow it.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "gateway/answer.h"
#include "gateway/choice_text.h"
#include "gateway/dispatcher.h"
#include "gateway/prepare.h"
#include "gateway/tenants.h"
#include "gateway/workers.h"
#include "metrics/gateway_metrics.h"
#include "tokenizer/tokenizer.h"

namespace specfabric::gateway {

// What a generation uses; all of it must outlive the generation.
struct GenerationContext {
  Dispatcher* dispatcher = nullptr;
  metrics::GatewayMetrics* metrics = nullptr;
  Workers* workers = nullptr;
  // Called when there is new output, the end or an error; never from within a method of Generation.
  std::function<void()> wake;
  TimeLimit limit;
};

class Generation {
 public:
  // On any thread; the work grows with prompts and choices. `tokenizer` must outlive the object.
  static absl::StatusOr<std::unique_ptr<Generation>> Make(Prepared prepared,
                                                          const tokenizer::Tokenizer* tokenizer);
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;
  ~Generation();  // cancels the choices that still run

  size_t choices() const { return choices_.size(); }
  // The trace and the tenant of the choices. Call before the first Start.
  void SetOwner(const base::TraceContext& trace, const Tenant& tenant);
  void SetContext(GenerationContext context) { context_ = std::move(context); }
  // Sends choices to targets, up to the limit of one turn of the io thread. True: some are left;
  // call again in a later turn.
  bool Start(base::Nanos now);

  // Every choice that runs has been sent to a target.
  bool Placed() const;

  // All choices have ended, or one failed and with it the request.
  bool done() const { return error_.has_value() || running_ == 0; }
  const std::optional<ApiError>& error() const { return error_; }

  bool HasNews() const;
  // The output since the last call, at most one part for each choice, in their order. If first
  // called after the end of the request: the whole answer.
  std::vector<ChoicePart> Take();

  Usage usage() const;
  // Numerics of the first target of the first choice that has one; 0 if none has.
  uint64_t fingerprint() const;
  Exactness exactness() const;  // the weakest of the choices
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
  size_t next_ = 0;                               // the first choice that was not started
  size_t running_ = 0;                            // choices that have not ended
  std::optional<ApiError> error_;
  // Expires with the object; encoder threads check it before they return their results.
  std::shared_ptr<Generation*> alive_;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_GENERATION_H_
