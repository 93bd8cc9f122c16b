#include "scheduler/policy/admission.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "scheduler/policy/request_check.h"

namespace specfabric::scheduler {
namespace {

bool ComesBefore(const Sequence* a, const Sequence* b) { return a->queue_order < b->queue_order; }

}  // namespace

absl::Status Admission::Add(SequenceRequest request, base::Nanos now) {
  if (absl::Status status = CheckRequest(request, options_); !status.ok()) return status;
  if (sequences_.contains(request.id)) {
    return absl::AlreadyExistsError(absl::StrCat("sequence ", request.id, " is in use"));
  }
  if (waiting_.size() >= options_.max_waiting) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the queue is full: ", waiting_.size(), " sequences wait"));
  }
  auto sequence = std::make_unique<Sequence>(std::move(request), options_.max_context);
  const int32_t needed = blocks_->BlocksFor(SlotsNeeded(*sequence));
  if (needed > blocks_->pool().total()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the sequence may need ", needed, " KV blocks: there are ",
                     blocks_->pool().total(), "; ask for fewer max_tokens or a shorter prompt"));
  }
  const base::Nanos ahead = sequence->request.priority * options_.priority_ageing;
  sequence->queue_order = {.time = now - ahead, .arrival = ++arrivals_};
  waiting_.Add(sequence.get());
  sequences_.emplace(sequence->request.id, std::move(sequence));
  return absl::OkStatus();
}

void Admission::Admit() {
  while (static_cast<int32_t>(running_.size()) < options_.max_sequences) {
    Sequence* sequence = waiting_.Next();
    if (sequence == nullptr || !TakePrefillBlocks(sequence)) return;
    waiting_.Remove(sequence);
    sequence->phase = Phase::kPrefill;
    sequence->Reserve(options_.block_size);
    if (sequence->preemptions == 0) {
      shares_.Charge(sequence->request.tenant,
                     TenantShares::kPromptWeight * sequence->committed_size());
      blocks_->CountQuery(*sequence);
    }
    running_.insert(std::upper_bound(running_.begin(), running_.end(), sequence, ComesBefore),
                    sequence);
  }
}

// All blocks that its prefill needs. Beyond them one block for each running sequence must stay
// available: otherwise the next step might preempt what was just admitted.
bool Admission::TakePrefillBlocks(Sequence* sequence) {
  const base::SequenceId id = sequence->request.id;
  const int32_t available = blocks_->pool().available();
  if (!running_.empty() && id == refused_ && available <= refused_available_) return false;
  const int32_t found = blocks_->AdoptCached(sequence);
  const int32_t missing = blocks_->BlocksFor(sequence->committed_size()) -
                          static_cast<int32_t>(sequence->blocks.size());
  const int32_t spare = static_cast<int32_t>(running_.size());
  if (missing + spare > blocks_->pool().available()) {
    SPECFABRIC_CHECK(!running_.empty());  // alone, whatever Add took fits
    blocks_->Drop(sequence);
    refused_ = id;
    refused_available_ = available;
    return false;
  }
  SPECFABRIC_CHECK(blocks_->Grow(sequence->committed_size(), sequence));
  blocks_->CountHits(found, sequence);
  return true;
}

bool Admission::MakeRoom(int32_t slots, Sequence* sequence,
                         std::vector<base::SequenceId>* preempted) {
  if (blocks_->Grow(slots, sequence)) return true;
  const int32_t missing = blocks_->BlocksFor(slots) - static_cast<int32_t>(sequence->blocks.size());
  if (BlocksBehind(*sequence) + blocks_->pool().available() < missing) return false;
  while (!blocks_->Grow(slots, sequence)) {
    SPECFABRIC_CHECK(running_.back() != sequence);
    preempted->push_back(running_.back()->request.id);
    Preempt(running_.back());
  }
  return true;
}

// Blocks that would become available if all running sequences after this one were preempted. A
// block that several share becomes available with the last of its owners.
int32_t Admission::BlocksBehind(const Sequence& sequence) {
  owners_behind_.resize(blocks_->pool().total(), 0);
  int32_t count = 0;
  for (auto it = running_.rbegin(); *it != &sequence; ++it) {
    for (int32_t block : (*it)->blocks) {
      if (++owners_behind_[block] == blocks_->pool().owners(block)) ++count;
    }
  }
  for (auto it = running_.rbegin(); *it != &sequence; ++it) {
    for (int32_t block : (*it)->blocks) owners_behind_[block] = 0;
  }
  return count;
}

// Its text is the same as without the preemption: random numbers are keyed by position, and its
// rounds go on counting, so that no draw is repeated (sampling::DrawNumber). A draft that it had or
// waits for is dropped.
void Admission::Preempt(Sequence* sequence) {
  SPECFABRIC_CHECK(!sequence->in_flight);
  blocks_->Drop(sequence);
  sequence->phase = Phase::kWaiting;
  sequence->wait.EndRound();
  sequence->has_draft = false;
  sequence->prompt_logprobs.clear();
  ++sequence->preemptions;
  ++preemptions_;
  std::erase(running_, sequence);
  waiting_.Add(sequence);
}

void Admission::End(Sequence* sequence, std::vector<Event>* events) {
  SPECFABRIC_CHECK(!sequence->in_flight);
  const base::SequenceId id = sequence->request.id;
  blocks_->Drop(sequence);
  if (sequence->phase == Phase::kWaiting) {
    waiting_.Remove(sequence);
  } else {
    std::erase(running_, sequence);
  }
  shares_.Leave(sequence->request.tenant);
  sequences_.erase(id);
  events->emplace_back(SequenceEnded{.id = id});
}

void Admission::EndWithoutTokens(Sequence* sequence, FinishReason reason,
                                 std::vector<Event>* events) {
  TokensEvent event;
  event.id = sequence->request.id;
  event.first_index = sequence->output_size();
  event.finish = reason;
  events->emplace_back(std::move(event));
  End(sequence, events);
}

void Admission::Check() const {
  const KvBlocks& pool = blocks_->pool();
  pool.Check();
  shares_.Check();
  SPECFABRIC_CHECK(sequences_.size() == waiting_.size() + running_.size());
  std::vector<int32_t> owners(pool.total(), 0);
  for (const auto& [id, sequence] : sequences_) {
    SPECFABRIC_CHECK(sequence->phase != Phase::kWaiting || sequence->blocks.empty());
  }
  for (const Sequence* sequence : running_) {
    SPECFABRIC_CHECK(sequence->published * options_.block_size <= sequence->settled);
    SPECFABRIC_CHECK(sequence->settled <= sequence->kv_written);
    for (size_t i = 0; i < sequence->blocks.size(); ++i) {
      ++owners[sequence->blocks[i]];
      const bool published = pool.published(sequence->blocks[i]);
      SPECFABRIC_CHECK(published == (i < static_cast<size_t>(sequence->published)));
    }
  }
  for (int32_t i = 0; i < pool.total(); ++i) SPECFABRIC_CHECK(owners[i] == pool.owners(i));
}

}  // namespace specfabric::scheduler
