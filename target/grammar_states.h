#ifndef SPECFABRIC_TARGET_GRAMMAR_STATES_H_
#define SPECFABRIC_TARGET_GRAMMAR_STATES_H_

// The grammars of a group's sequences, in the leader's process: where each text is in its grammar,
// and which tokens may come next at each node of the trees that a step verifies. Masks of a step
// are computed by helper threads while the forward pass runs; a rank that needs one that nobody has
// begun computes it itself, so that helpers never delay a step.
//
// The leader's thread calls everything but TokenMasks::wait; between Begin and End the matchers
// belong to the helpers and ranks.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/grammar.h"
#include "base/types.h"
#include "scheduler/step_plan.h"
#include "speculation/tree.h"
#include "target/verifier.h"
#include "tokenizer/grammar.h"

namespace specfabric::target {

// Prepares the vocabulary of the target's tokenizer; called once, by the first request that has a
// grammar.
using LoadGrammars = std::function<absl::StatusOr<std::unique_ptr<tokenizer::Grammars>>()>;

class GrammarStates {
 public:
  // vocabulary: of the model's logits. helpers: threads, at least one. load: unset if no grammar is
  // served.
  GrammarStates(LoadGrammars load, int32_t vocabulary, int helpers);
  ~GrammarStates();  // waits for the helpers

  // Compiles on a helper, which calls `done` with the result: InvalidArgument in one line if there
  // is no such grammar, FailedPrecondition if this target serves none.
  using Compiled = std::function<void(absl::StatusOr<tokenizer::GrammarMatcher>)>;
  void Compile(base::Grammar grammar, Compiled done);

  // The sequence's output so far is `generated`. InvalidArgument: the grammar does not allow it.
  absl::Status Open(base::SequenceId id, tokenizer::GrammarMatcher matcher,
                    absl::Span<const base::TokenId> generated);
  void Close(base::SequenceId id) { states_.erase(id); }

  // Begins the masks of a step; null if it needs none. Valid until End.
  const TokenMasks* Begin(const scheduler::StepPlan& plan);
  // After the step, whether it succeeded or not.
  void End();
  // The tokens of the result are committed; notes what must follow them.
  void Advance(scheduler::StepResult* result);
  // Takes out of a draft the nodes that the grammar does not allow, and what is below them.
  void Prune(base::SequenceId id, speculation::Draft* draft);
  // Why the sequence's grammar cannot be followed any more; empty if it can.
  std::string Failure(base::SequenceId id) const;

 private:
  struct State {
    tokenizer::GrammarMatcher matcher;
    absl::Status failed;
  };
  enum class Progress : uint8_t { kTodo, kTaken, kDone };
  // The masks of one sequence of the step in flight.
  struct Job {
    int32_t sequence = 0;  // index in plan.sequences
    State* state = nullptr;
    Progress progress = Progress::kTodo;  // guarded by mutex_
  };

  void Help();
  // Of a job that the caller has taken.
  void Run(Job* job);
  absl::Status Wait(int32_t sequence);
  absl::StatusOr<tokenizer::GrammarMatcher> CompileNow(const base::Grammar& grammar);
  absl::Status Fill(const scheduler::PlanSequence& sequence, tokenizer::GrammarMatcher* matcher,
                    absl::Span<uint32_t> rows) const;

  const LoadGrammars load_;
  const size_t words_;  // of a row
  absl::flat_hash_map<base::SequenceId, std::unique_ptr<State>> states_;
  const scheduler::StepPlan* plan_ = nullptr;  // of the step in flight
  std::vector<Job> jobs_;                      // of it; changed while no helper is at one
  TokenMasks masks_;

  std::mutex compile_mutex_;  // guards the next three; held while a grammar is compiled
  absl::StatusOr<std::unique_ptr<tokenizer::Grammars>> grammars_ = absl::UnknownError("not loaded");
  bool loaded_ = false;
  // Of the last grammars, at the beginning of a text; the newest last.
  std::deque<std::pair<base::Grammar, tokenizer::GrammarMatcher>> compiled_;

  std::mutex mutex_;  // guards the rest, and Job::progress
  std::condition_variable changed_;
  std::deque<std::function<void()>> compiles_;
  bool stopping_ = false;
  std::vector<std::thread> helpers_;
};

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_GRAMMAR_STATES_H_
