#include "target/grammar_states.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace specfabric::target {
namespace {

using base::TokenId;
using scheduler::PlanSequence;
using scheduler::StepPlan;
using tokenizer::GrammarMatcher;

constexpr size_t kMostCompiled = 64;

// The nodes of a tree below one of them, in the order of the tree.
std::vector<int32_t> ChildrenOf(int32_t node, absl::Span<const int32_t> parents) {
  std::vector<int32_t> children;
  for (auto i = static_cast<int32_t>(parents.size()) - 1; i > node; --i) {
    if (parents[i] == node) children.push_back(i);
  }
  std::reverse(children.begin(), children.end());
  return children;
}

// Calls visit(node) for the root and for each node that the grammar allows, with the matcher after
// the node's token. The matcher is afterwards where it was.
template <typename Visit>
absl::Status WalkAllowed(absl::Span<const int32_t> parents, absl::Span<const TokenId> tokens,
                         GrammarMatcher* matcher, int32_t node, const Visit& visit) {
  if (absl::Status visited = visit(node); !visited.ok()) return visited;
  for (const int32_t child : ChildrenOf(node, parents)) {
    const absl::Span<const TokenId> token = tokens.subspan(child, 1);
    if (matcher->Allowed(token) == 0) continue;
    absl::Status status = matcher->Consume(token);
    if (status.ok()) status = WalkAllowed(parents, tokens, matcher, child, visit);
    if (status.ok()) status = matcher->Rollback(1);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

bool Wanted(const PlanSequence& sequence) { return sequence.rules.masked && sequence.samples; }

}  // namespace

GrammarStates::GrammarStates(LoadGrammars load, int32_t vocabulary, int helpers)
    : load_(std::move(load)), words_(tokenizer::MaskWords(vocabulary)) {
  masks_.words = words_;
  masks_.wait = [this](int32_t sequence) { return Wait(sequence); };
  for (int i = 0; i < helpers; ++i) helpers_.emplace_back([this] { Help(); });
}

GrammarStates::~GrammarStates() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void GrammarStates::Compile(base::Grammar grammar, Compiled done) {
  {
    std::lock_guard lock(mutex_);
    compiles_.emplace_back([this, grammar = std::move(grammar), done = std::move(done)] {
      done(CompileNow(grammar));
    });
  }
  changed_.notify_one();
}

absl::StatusOr<GrammarMatcher> GrammarStates::CompileNow(const base::Grammar& grammar) {
  std::lock_guard lock(compile_mutex_);
  const auto known = std::find_if(compiled_.begin(), compiled_.end(),
                                  [&](const auto& one) { return one.first == grammar; });
  if (known != compiled_.end()) {
    std::rotate(known, known + 1, compiled_.end());
    return compiled_.back().second.Clone();
  }
  if (!std::exchange(loaded_, true)) {
    grammars_ = load_ ? load_() : absl::FailedPreconditionError("this target serves no grammars");
  }
  if (!grammars_.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("no grammar is served here: ", base::Message(grammars_.status())));
  }
  auto compiled = (*grammars_)->Compile(grammar);
  if (!compiled.ok()) return compiled.status();
  if (compiled_.size() == kMostCompiled) compiled_.pop_front();
  compiled_.emplace_back(grammar, *std::move(compiled));
  return compiled_.back().second.Clone();
}

absl::Status GrammarStates::Open(base::SequenceId id, GrammarMatcher matcher,
                                 absl::Span<const TokenId> generated) {
  if (absl::Status known = matcher.Consume(generated); !known.ok()) return known;
  states_[id] = std::make_unique<State>(State{.matcher = std::move(matcher), .failed = {}});
  return absl::OkStatus();
}

const TokenMasks* GrammarStates::Begin(const StepPlan& plan) {
  jobs_.clear();
  for (size_t s = 0; s < plan.sequences.size(); ++s) {
    if (!Wanted(plan.sequences[s])) continue;
    const auto state = states_.find(plan.sequences[s].id);
    if (state == states_.end()) continue;
    jobs_.push_back({.sequence = static_cast<int32_t>(s), .state = state->second.get()});
  }
  if (jobs_.empty()) return nullptr;
  masks_.rows.resize(plan.sequences.size());
  for (std::vector<uint32_t>& rows : masks_.rows) rows.clear();
  for (const Job& job : jobs_) {
    // All tokens, where the grammar does not get to.
    masks_.rows[job.sequence].assign(plan.sequences[job.sequence].logit_count * words_, ~0u);
  }
  {
    std::lock_guard lock(mutex_);
    plan_ = &plan;
  }
  changed_.notify_all();
  return &masks_;
}

void GrammarStates::End() {
  std::unique_lock lock(mutex_);
  for (Job& job : jobs_) {
    if (job.progress == Progress::kTodo) job.progress = Progress::kDone;  // nobody needs it
  }
  changed_.wait(lock, [this] {
    return std::all_of(jobs_.begin(), jobs_.end(),
                       [](const Job& job) { return job.progress == Progress::kDone; });
  });
  plan_ = nullptr;
}

void GrammarStates::Help() {
  std::unique_lock lock(mutex_);
  for (;;) {
    Job* next = nullptr;
    changed_.wait(lock, [&] {
      if (stopping_ || !compiles_.empty()) return true;
      if (plan_ == nullptr) return false;
      const auto todo = std::find_if(jobs_.begin(), jobs_.end(), [](const Job& job) {
        return job.progress == Progress::kTodo;
      });
      if (todo != jobs_.end()) next = &*todo;
      return next != nullptr;
    });
    if (stopping_) return;
    if (next != nullptr) {
      next->progress = Progress::kTaken;
      lock.unlock();
      Run(next);
      lock.lock();
      continue;
    }
    const std::function<void()> compile = std::move(compiles_.front());
    compiles_.pop_front();
    lock.unlock();
    compile();
    lock.lock();
  }
}

void GrammarStates::Run(Job* job) {
  std::vector<uint32_t>& rows = masks_.rows[job->sequence];
  job->state->failed =
      Fill(plan_->sequences[job->sequence], &job->state->matcher, absl::MakeSpan(rows));
  {
    std::lock_guard lock(mutex_);
    job->progress = Progress::kDone;
  }
  changed_.notify_all();
}

absl::Status GrammarStates::Wait(int32_t sequence) {
  std::unique_lock lock(mutex_);
  const auto job = std::find_if(jobs_.begin(), jobs_.end(),
                                [&](const Job& one) { return one.sequence == sequence; });
  if (job == jobs_.end()) return absl::InternalError("no mask of this sequence was begun");
  if (job->progress == Progress::kTodo) {
    job->progress = Progress::kTaken;
    lock.unlock();
    Run(&*job);
    return job->state->failed;
  }
  changed_.wait(lock, [&] { return job->progress == Progress::kDone; });
  return job->state->failed;
}

absl::Status GrammarStates::Fill(const PlanSequence& sequence, GrammarMatcher* matcher,
                                 absl::Span<uint32_t> rows) const {
  if (sequence.kind == scheduler::RowsKind::kPrefill) {
    return matcher->Mask(rows.last(words_));
  }
  const auto of = [&](const auto& values) {
    return absl::MakeConstSpan(values).subspan(sequence.first_row, sequence.row_count);
  };
  return WalkAllowed(of(plan_->parents), of(plan_->tokens), matcher, 0, [&](int32_t node) {
    return matcher->Mask(rows.subspan(node * words_, words_));
  });
}

void GrammarStates::Advance(scheduler::StepResult* result) {
  for (scheduler::SequenceResult& one : result->sequences) {
    if (one.accepted.tokens.empty()) continue;
    const auto found = states_.find(one.id);
    if (found == states_.end() || !found->second->failed.ok()) continue;
    GrammarMatcher& matcher = found->second->matcher;
    // An end token is the last one, whatever was accepted after it.
    for (const TokenId token : one.accepted.tokens) {
      if (matcher.stopped() || !found->second->failed.ok()) break;
      found->second->failed = matcher.Consume({&token, 1});
    }
    if (found->second->failed.ok() && !matcher.stopped()) one.forced = matcher.Forced();
  }
}

void GrammarStates::Prune(base::SequenceId id, speculation::Draft* draft) {
  const auto found = states_.find(id);
  if (found == states_.end() || draft->tree.size() < 2 || !found->second->failed.ok()) return;
  std::vector<int32_t> kept;
  found->second->failed = WalkAllowed(draft->tree.parents, draft->tree.tokens,
                                      &found->second->matcher, 0, [&](int32_t node) {
                                        if (node > 0) kept.push_back(node);
                                        return absl::OkStatus();
                                      });
  std::sort(kept.begin(), kept.end());
  if (static_cast<int>(kept.size()) + 1 < draft->tree.size()) Keep(kept, draft);
}

std::string GrammarStates::Failure(base::SequenceId id) const {
  const auto found = states_.find(id);
  if (found == states_.end() || found->second->failed.ok()) return "";
  return absl::StrCat("the grammar cannot be followed any more: ",
                      base::Message(found->second->failed));
}

}  // namespace specfabric::target
