#include "target/rank_group.h"

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "base/cpu_relax.h"

namespace specfabric::target {

namespace {

// With as much room as `from`, which the scheduler sizes once for all its plans.
template <typename T>
void Refill(const std::vector<T>& from, std::vector<T>* to) {
  to->reserve(from.capacity());
  *to = from;
}

void FillBatch(const scheduler::StepPlan& plan, model::Batch* batch) {
  Refill(plan.tokens, &batch->tokens);
  Refill(plan.positions, &batch->positions);
  Refill(plan.ancestors, &batch->ancestors);
  Refill(plan.blocks, &batch->blocks);
  Refill(plan.logit_rows, &batch->logit_rows);
  batch->sequences.clear();
  batch->sequences.reserve(plan.sequences.capacity());
  for (const scheduler::PlanSequence& s : plan.sequences) {
    model::BatchSequence sequence;
    sequence.kv_len = s.kv_len;
    sequence.first_row = s.first_row;
    sequence.row_count = s.row_count;
    sequence.first_block = s.first_block;
    sequence.block_count = s.block_count;
    sequence.causal = s.kind == scheduler::RowsKind::kPrefill;
    batch->sequences.push_back(sequence);
  }
}

// Spins for a moment, then sleeps: on a busy machine a spinning thread would take the core from the
// thread it waits for (docs/benchmarks.md).
void WaitForChange(const std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < 2000; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    base::CpuRelax();
  }
  value.wait(old, std::memory_order_acquire);
}

// How close an error is to the cause: ranks that stopped because another one failed report Aborted,
// those that waited for another one DeadlineExceeded.
int Specificity(const absl::Status& status) {
  if (status.ok()) return 0;
  if (absl::IsAborted(status)) return 1;
  return absl::IsDeadlineExceeded(status) ? 2 : 3;
}

}  // namespace

class RankGroup::Impl {
 public:
  absl::Status Start(const RankGroupOptions& options);
  ~Impl();
  absl::Status Execute(const scheduler::StepPlan& plan, const VerifyInputs& inputs,
                       VerifyResult* verify_result, StepTimes* times);
  absl::Status Run(const scheduler::StepPlan& plan, const VerifyInputs& inputs, StepTimes* times,
                   scheduler::StepResult* result) {
    own_verify_result_.Reset(plan);
    absl::Status done = Execute(plan, inputs, &own_verify_result_, times);
    if (done.ok()) Accept(plan, own_verify_result_, result);
    return done;
  }
  model::RankModel& first() const { return *ranks_[0].model; }
  absl::Status KeepStates(const std::vector<int32_t>& boundaries) {
    absl::Status kept;
    for (Rank& rank : ranks_) kept.Update(rank.model->KeepStates(boundaries));
    if (!kept.ok()) {
      for (Rank& rank : ranks_) kept.Update(rank.model->KeepStates({}));
    }
    return kept;
  }
  verification::DeviceDraftRows& draft_rows() const { return *ranks_[0].draft_rows; }

 private:
  struct Rank {
    std::unique_ptr<model::RankModel> model;
    std::unique_ptr<verification::DeviceVerifier> device_verifier;  // null: logits on the host
    std::unique_ptr<verification::DeviceDraftRows> draft_rows;      // likewise
    absl::Status status;
    std::thread thread;
  };

  void RunRank(const RankGroupOptions& options, int rank);
  // The most specific error of the ranks; OK: none has failed.
  absl::Status Failure() const;
  void Step(Rank* rank, RankVerifier* verifier, bool timed);
  void Signal() {
    step_.fetch_add(1, std::memory_order_release);
    step_.notify_all();
  }
  void Finished() {
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      done_.fetch_add(1, std::memory_order_release);
      done_.notify_one();
    }
  }

  std::vector<std::unique_ptr<model::Communicator>> communicators_;
  std::vector<Rank> ranks_;
  std::unique_ptr<RankVerifier> alone_;  // of a single rank, which runs on the caller's thread
  // Written by the leader before it raises step_, read by the ranks after.
  const scheduler::StepPlan* plan_ = nullptr;
  VerifyInputs inputs_;
  model::Batch batch_;                // of the plan; kept for its memory
  std::vector<model::KvMove> moves_;  // likewise
  bool stop_ = false;
  VerifyResult* verify_result_ = nullptr;
  VerifyResult own_verify_result_;  // Run's, kept for its memory
  StepTimes times_;                 // written by rank 0
  std::atomic<uint32_t> step_{0};   // raised by the leader to start a step
  std::atomic<uint32_t> done_{0};   // raised by the last rank to finish it
  std::atomic<int> running_{0};
};

absl::Status RankGroup::Impl::Start(const RankGroupOptions& options) {
  const bool alone = options.exchange == nullptr;
  const int ranks = options.shape().ranks(), count = alone ? ranks : options.rank_count;
  communicators_ =
      alone ? model::MakeThreadCommunicators(count)
            : model::MakeProcessCommunicators(options.exchange, ranks, options.first_rank, count);
  ranks_.resize(count);
  running_ = count;
  for (int r = 0; r < count; ++r) {
    ranks_[r].thread = std::thread([this, options, r] { RunRank(options, r); });
  }
  WaitForChange(done_, 0);
  return Failure();
}

absl::Status RankGroup::Impl::Failure() const {
  absl::Status failed;
  for (const Rank& rank : ranks_) {
    if (Specificity(rank.status) > Specificity(failed)) failed = rank.status;
  }
  return failed;
}

RankGroup::Impl::~Impl() {
  stop_ = true;
  Signal();
  for (Rank& rank : ranks_) {
    if (rank.thread.joinable()) rank.thread.join();
  }
}

void RankGroup::Impl::RunRank(const RankGroupOptions& options, int r) {
  Rank* rank = &ranks_[r];
  // Loaded on the thread that will use it, so that its memory is on that thread's NUMA node.
  auto model = model::RankModel::Load(options.model_dir, options.rank, communicators_[r].get());
  if (!model.ok()) {
    rank->status = model.status();
    return Finished();
  }
  rank->model = *std::move(model);
  rank->device_verifier = verification::DeviceVerifier::Create(rank->model->device());
  rank->draft_rows = verification::DeviceDraftRows::Create(rank->model->device());
  const int32_t vocabulary = rank->model->config().vocabulary;
  if (ranks_.size() == 1) {
    alone_ = std::make_unique<RankVerifier>(communicators_[r].get(), vocabulary, options.typical,
                                            rank->device_verifier.get(), rank->draft_rows.get());
    return Finished();
  }
  RankVerifier verifier(communicators_[r].get(), vocabulary, options.typical,
                        rank->device_verifier.get());
  uint32_t seen = step_.load(std::memory_order_acquire);
  Finished();
  for (;;) {
    WaitForChange(step_, seen);
    ++seen;
    if (stop_) return;
    Step(rank, &verifier, r == 0);
    Finished();
  }
}

void RankGroup::Impl::Step(Rank* rank, RankVerifier* verifier, bool timed) {
  const base::Nanos start = base::Now();
  rank->model->MoveKv(moves_);
  auto logits = rank->model->Forward(batch_);
  const base::Nanos forwarded = base::Now();
  rank->status = logits.status();
  // Every rank refuses the same batches, so none is left waiting in a collective.
  if (!logits.ok()) return;
  rank->status = verifier->Verify(*plan_, inputs_, *logits, verify_result_);
  if (timed) times_ = {forwarded - start, base::Now() - forwarded};
}

absl::Status RankGroup::Impl::Execute(const scheduler::StepPlan& plan, const VerifyInputs& inputs,
                                      VerifyResult* verify_result, StepTimes* times) {
  plan_ = &plan;
  inputs_ = inputs;
  FillBatch(plan, &batch_);
  moves_.clear();
  moves_.reserve(plan.moves.capacity());
  for (const scheduler::SlotMove& move : plan.moves) moves_.push_back({move.from, move.to});
  verify_result_ = verify_result;
  if (ranks_.size() == 1) {
    // A thread of its own would add two wake-ups to every step.
    Step(ranks_.data(), alone_.get(), true);
  } else {
    running_ = static_cast<int>(ranks_.size());
    const uint32_t before = done_.load(std::memory_order_acquire);
    Signal();
    WaitForChange(done_, before);
  }
  if (absl::Status failed = Failure(); !failed.ok()) return failed;
  *times = times_;
  return absl::OkStatus();
}

RankGroup::RankGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RankGroup::~RankGroup() = default;

absl::StatusOr<std::unique_ptr<RankGroup>> RankGroup::Start(const RankGroupOptions& options) {
  auto impl = std::make_unique<Impl>();
  if (absl::Status status = impl->Start(options); !status.ok()) return status;
  return std::unique_ptr<RankGroup>(new RankGroup(std::move(impl)));
}

absl::Status RankGroup::Run(const scheduler::StepPlan& plan, const VerifyInputs& inputs,
                            StepTimes* times, scheduler::StepResult* result) {
  return impl_->Run(plan, inputs, times, result);
}

absl::Status RankGroup::Execute(const scheduler::StepPlan& plan, const VerifyInputs& inputs,
                                VerifyResult* verify_result, StepTimes* times) {
  return impl_->Execute(plan, inputs, verify_result, times);
}

absl::StatusOr<speculation::DraftProbs> RankGroup::OpenOnDevice(
    const speculation::DraftProbsShape& shape, absl::Span<const uint8_t> bytes) {
  absl::Status size = speculation::CheckSize(shape, bytes.size());
  if (!size.ok()) return size;
  std::vector<sampling::DraftRowFacts> facts(shape.rows);
  absl::Status validated = impl_->draft_rows().Validate(bytes.data(), shape.vocabulary,
                                                        shape.entries, absl::MakeSpan(facts));
  if (!validated.ok()) return validated;
  return speculation::DraftProbs::OpenOnDevice(shape, bytes, facts);
}

absl::Status RankGroup::KeepStates(const std::vector<int32_t>& boundaries) {
  return impl_->KeepStates(boundaries);
}
absl::Status RankGroup::CopyStates(absl::Span<const model::StateCopy> copies) {
  return impl_->first().CopyStates(copies);
}
const model::ModelConfig& RankGroup::config() const { return impl_->first().config(); }
const model::RankOptions& RankGroup::rank_options() const { return impl_->first().options(); }
uint64_t RankGroup::NumericsFingerprint() const { return impl_->first().NumericsFingerprint(); }

}  // namespace specfabric::target
