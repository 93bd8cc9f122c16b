#ifndef SPECFABRIC_TARGET_VERIFIER_H_
#define SPECFABRIC_TARGET_VERIFIER_H_

// One rank's part of choosing a step's tokens from its logits (docs/verification.md).
//
// If the group is a single rank on a device, the device verifies all sequences, whatever their
// verification method and filters, except those with penalties, bias, a grammar or
// log-probabilities: only the rows of these are copied to the host. If the vocabulary is split over
// ranks, a row of coupled verification without filters, changed logits and log-probabilities
// crosses the ranks as one (score, id) pair, which a device computes from its shard. All other rows
// are gathered on the sequence's owner rank, which verifies them alone and reads no more of them
// than the accepted path needs.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/reused_vector.h"
#include "model/parallel/communicator.h"
#include "model/rank_model.h"
#include "sampling/logit_changer.h"
#include "scheduler/step_plan.h"
#include "speculation/draft_probs.h"
#include "verification/cpu/tree_verifier.h"
#include "verification/device_draft_rows.h"
#include "verification/device_verifier.h"

namespace specfabric::target {

// The result of the ranks of a group. The leader sizes it before the step; every entry is written
// by exactly one rank (rank 0, or the owner of the sequence).
struct VerifyResult {
  // [logit_rows]; kNoToken for rows that choose no token, kNotFinite for rows that choose or score
  // one from logits that are not finite.
  std::vector<base::TokenId> chosen;
  base::ReusedVector<base::TokenLogprobs> logprobs;  // [logit_rows] of the chosen or scored token
  // [sequences] of trees decided on their owner or its device; see Decided.
  base::ReusedVector<speculation::Accepted> accepted;

  static constexpr base::TokenId kNotFinite = -2;
  // Whether an entry of `accepted` was written; otherwise `chosen` decides.
  static bool Decided(const speculation::Accepted& accepted) {
    return !accepted.tokens.empty() || !accepted.finite;
  }
  void Reset(const scheduler::StepPlan& plan);
};

// *result becomes the step's result, and keeps its memory; the paths of trees that are not Decided
// follow from `chosen` by coupled verification. Called by the leader.
void Accept(const scheduler::StepPlan& plan, const VerifyResult& verify_result,
            scheduler::StepResult* result);

// Which tokens the grammars of a step's sequences allow, as sampling::LogitChanger reads it. They
// may be computed while the forward pass runs.
struct TokenMasks {
  size_t words = 0;  // of a row
  // [plan.sequences] [logit rows of the sequence][words]; empty without a grammar.
  std::vector<std::vector<uint32_t>> rows;
  // Returns once the rows of this index in plan.sequences are there; an error: they never are.
  // Called by the threads of ranks, of several sequences at a time. Unset: all are there.
  std::function<absl::Status(int32_t sequence)> wait;

  absl::Span<const uint32_t> row(int32_t sequence, int32_t logit) const {
    return absl::MakeConstSpan(rows[sequence]).subspan(logit * words, words);
  }
};

// What verification reads besides the plan and the logits.
struct VerifyInputs {
  // [plan.sequences]; where one is null although ReadsDraftProbs, no draft token is accepted.
  absl::Span<const speculation::DraftProbs* const> draft_probs;
  // Of the sequences that this process owns; null: none of them has a grammar.
  const TokenMasks* masks = nullptr;
};

// The rank that verifies the sequence, of so many ranks. A sequence with a grammar is rank 0's,
// which runs in the process where the grammar is.
int OwnerOf(const scheduler::PlanSequence& sequence, int ranks);

// Whether verifying this sequence's rows reads the draft probabilities.
bool ReadsDraftProbs(const scheduler::PlanSequence& sequence);

// Owned by one rank's thread; keeps its scratch memory from step to step.
class RankVerifier {
 public:
  // device: null for logits on the host. draft_rows: for a single rank whose draft_probs may be in
  // its device's memory. Both must outlive this.
  RankVerifier(model::Communicator* communicator, int32_t vocabulary,
               const verification::TypicalOptions& typical = {},
               verification::DeviceVerifier* device = nullptr,
               verification::DeviceDraftRows* draft_rows = nullptr)
      : communicator_(communicator),
        vocabulary_(vocabulary),
        typical_(typical),
        device_(device),
        draft_rows_(draft_rows),
        changer_(vocabulary),
        trees_verifier_(vocabulary) {}

  // Every rank of the group calls this with the same plan and its own shard of the logits. A
  // sequence whose masks fail has the result of one whose logits are not finite. An error is one of
  // the device; verify_result is then invalid, but this rank has taken part in every collective.
  absl::Status Verify(const scheduler::StepPlan& plan, const VerifyInputs& inputs,
                      const model::LogitShard& logits, VerifyResult* verify_result);

 private:
  // A logit row to read, and whether to choose a token from it or only to score one.
  struct RowTask {
    int32_t sequence = 0;  // index in plan.sequences
    int32_t logit = 0;     // index in plan.logit_rows
    bool chooses = false;
  };

  void SplitWork(const scheduler::StepPlan& plan,
                 absl::Span<const speculation::DraftProbs* const> draft_probs, bool on_device);
  void AddTree(const scheduler::StepPlan& plan, int32_t s,
               const speculation::DraftProbs* draft_probs, bool device_decides);
  void AddPrefill(const scheduler::StepPlan& plan, int32_t s, bool device_decides);
  absl::Status ChooseSharded(const scheduler::StepPlan& plan, const model::LogitShard& logits,
                             VerifyResult* verify_result);
  absl::Status DecideOnDevice(const scheduler::StepPlan& plan, const model::DeviceLogits& logits,
                              VerifyResult* verify_result);
  void WantRows(const scheduler::StepPlan& plan);
  absl::Status TakeRows(const model::LogitShard& logits);
  absl::Status GatherWhole(const scheduler::StepPlan& plan, const model::LogitShard& logits);
  bool Mine(const scheduler::PlanSequence& sequence) const;
  // Whether the masks of this index in plan.sequences are there, or it needs none.
  bool HasMasks(const scheduler::StepPlan& plan, int32_t s) const;
  // Returns kNoToken if the logits are not finite.
  base::TokenId Choose(const scheduler::StepPlan& plan, int32_t s, int32_t logit);
  void FinishRow(const scheduler::StepPlan& plan, const RowTask& task, VerifyResult* verify_result);
  absl::Status FinishTree(const scheduler::StepPlan& plan, int32_t s,
                          const speculation::DraftProbs* draft_probs, VerifyResult* verify_result);
  // The same draft_probs in host memory; null if they are no longer valid.
  absl::StatusOr<const speculation::DraftProbs*> OnHost(const speculation::DraftProbs* draft_probs);
  // Coupled verification, one node at a time: rows off the accepted path are not read.
  void Walk(const scheduler::StepPlan& plan, int32_t s, speculation::TreeView tree,
            speculation::Accepted* accepted);
  void VerifyTree(const scheduler::StepPlan& plan, int32_t s, speculation::TreeView tree,
                  const speculation::DraftProbs* draft_probs, speculation::Accepted* accepted);
  // The row with the request's penalties, bias, grammar and suppressed token ids applied; the row
  // itself if it has none.
  absl::Span<const float> Changed(const scheduler::StepPlan& plan, int32_t s, int32_t logit);
  // The noise of one sequence and position for ids first .. first + width, computed once for all
  // nodes of the same depth.
  absl::Span<const float> Noise(const base::SamplingParams& sampling, int32_t sequence,
                                int32_t position, base::TokenId first, int32_t width);

  model::Communicator* const communicator_;
  const int32_t vocabulary_;
  const verification::TypicalOptions typical_;
  const TokenMasks* masks_ = nullptr;  // of the step in flight
  verification::DeviceVerifier* const device_;
  verification::DeviceDraftRows* const draft_rows_;
  std::vector<RowTask> sharded_;
  std::vector<RowTask> whole_;    // logit rows of prefills
  std::vector<int32_t> trees_;    // sequences that their owner verifies
  std::vector<int32_t> decided_;  // sequences that the device verifies,
  std::vector<verification::DeviceTree>
      device_trees_;  // as trees; the last row of a prefill is one of a single node
  std::vector<speculation::Accepted> accepted_;
  std::vector<sampling::ScoredToken> pairs_;
  std::vector<verification::RowChoice> choices_;
  std::vector<int32_t> wanted_;         // logit rows of whole_ and trees_,
  std::vector<int> owners_;             // the owner of each,
  absl::Span<const float> taken_rows_;  // and this rank's part of them, concatenated
  std::vector<float> shard_rows_;
  std::vector<float> whole_rows_;
  std::vector<absl::Span<const float>>
      rows_;  // [logit_rows] of the whole vocabulary; empty if not here
  struct NoiseRow {
    int32_t sequence = -1;
    int32_t position = -1;
    std::vector<float> values;
  };
  std::vector<NoiseRow> noise_;  // of the current sequence, one for each position
  size_t noise_used_ = 0;
  std::vector<sampling::ScoredToken> kept_;  // tokens of the current row that the filters keep
  sampling::LogitChanger changer_;
  int32_t changer_sequence_ = -1;  // index in plan.sequences that changer_ is open for
  std::vector<base::TokenId> path_;
  std::vector<uint64_t> draft_probs_words_;   // fetched by OnHost,
  speculation::DraftProbs host_draft_probs_;  // and opened
  verification::TreeVerifier trees_verifier_;
};

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_VERIFIER_H_
