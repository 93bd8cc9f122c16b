#ifndef SPECFABRIC_TARGET_VERIFIER_H_
#define SPECFABRIC_TARGET_VERIFIER_H_

// One rank's part of choosing tokens from a step's logits (design.md, VerificationMethods).
//
// A single rank on a device has all sequences decided where the logits are, whatever their
// verification and filters, but for those whose logits are changed first or reported on: these rows
// come to the host, and no others. Where ranks share a vocabulary, rows of the coupled rule that
// need neither filters, changed logits nor log-probabilities cross ranks as one (score, id) pair,
// which a device finds where its logits are; the others are gathered whole on the sequence's owner
// rank, which works alone and looks at no more rows than the accepted path needs.

#include <vector>

#include "model/parallel/communicator.h"
#include "model/rank_model.h"
#include "sampling/logit_changer.h"
#include "scheduler/step_plan.h"
#include "speculation/draft_probs.h"
#include "verification/cpu/tree_verifier.h"
#include "verification/device_draft_rows.h"
#include "verification/device_verifier.h"

namespace specfabric::target {

// What the ranks of a group find together. The leader sizes it before the step; every entry is
// written by exactly one rank (rank 0, or the owner of the sequence).
struct VerifyResult {
  // [logit_rows], kNoToken where nothing is chosen, kNotFinite where the logits of a row that
  // chooses or scores are not finite.
  std::vector<base::TokenId> chosen;
  std::vector<base::TokenLogprobs> logprobs;    // [logit_rows] of the chosen or the scored token
  std::vector<speculation::Accepted> accepted;  // [sequences] of trees decided on their owner or
                                                // its device; see Decided

  static constexpr base::TokenId kNotFinite = -2;
  // Whether an entry of `accepted` was written; otherwise `chosen` decides.
  static bool Decided(const speculation::Accepted& accepted) {
    return !accepted.tokens.empty() || !accepted.finite;
  }
  void Reset(const scheduler::StepPlan& plan);
};

// Turns chosen tokens into accepted paths, by the coupled rule where the owner has not decided.
// Called by the leader.
scheduler::StepResult Accept(const scheduler::StepPlan& plan, const VerifyResult& verify_result);

// The rank that decides the sequence, of so many.
int OwnerOf(const scheduler::PlanSequence& sequence, int ranks);

// Whether the round of this sequence reads draft_probs of its draft.
bool ReadsDraftProbs(const scheduler::PlanSequence& sequence);

// Owned by one rank's thread; keeps its scratch memory from step to step.
class RankVerifier {
 public:
  // device: verifies where the logits are, for logits on a device. draft_rows: of a single rank
  // that may be given draft_probs in its device's memory. Both outlive this.
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

  // Every rank of the group calls this with the same plan and its own shard of the logits.
  // draft_probs: [sequences]; null where ReadsDraftProbs: nothing of the tree is accepted. Fails
  // where the device of the logits does; the verify_result is then void, but this rank has taken
  // part in all that the others wait for.
  absl::Status Verify(const scheduler::StepPlan& plan,
                      absl::Span<const speculation::DraftProbs* const> draft_probs,
                      const model::LogitShard& logits, VerifyResult* verify_result);

 private:
  // Why a logit row is looked at.
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
  // kNoToken: the logits are not finite.
  base::TokenId Choose(const scheduler::StepPlan& plan, int32_t s, int32_t logit);
  void FinishRow(const scheduler::StepPlan& plan, const RowTask& task, VerifyResult* verify_result);
  absl::Status FinishTree(const scheduler::StepPlan& plan, int32_t s,
                          const speculation::DraftProbs* draft_probs, VerifyResult* verify_result);
  // The same draft_probs where this thread can read them; null where they are no longer sound.
  absl::StatusOr<const speculation::DraftProbs*> OnHost(const speculation::DraftProbs* draft_probs);
  // The coupled rule, a node at a time: rows beside the accepted path are not read.
  speculation::Accepted Walk(const scheduler::StepPlan& plan, int32_t s,
                             const speculation::TokenTree& tree);
  speculation::Accepted VerifyTree(const scheduler::StepPlan& plan, int32_t s,
                                   const speculation::TokenTree& tree,
                                   const speculation::DraftProbs* draft_probs);
  // The row after the request's penalties, bias and suppressed token ids; the row itself if there
  // are none.
  absl::Span<const float> Changed(const scheduler::StepPlan& plan, int32_t s, int32_t logit);
  // Noise for one sequence and position over ids first .. first + width, made once for all nodes of
  // the same depth.
  absl::Span<const float> Noise(const base::SamplingParams& sampling, int32_t sequence,
                                int32_t position, base::TokenId first, int32_t width);

  model::Communicator* const communicator_;
  const int32_t vocabulary_;
  const verification::TypicalOptions typical_;
  verification::DeviceVerifier* const device_;
  verification::DeviceDraftRows* const draft_rows_;
  std::vector<RowTask> sharded_;
  std::vector<RowTask> whole_;    // rows of prefills
  std::vector<int32_t> trees_;    // sequences that their owner decides
  std::vector<int32_t> decided_;  // sequences that the device decides,
  std::vector<verification::DeviceTree>
      device_trees_;  // each as a tree; of a prefill, its last row
  std::vector<speculation::Accepted> accepted_;
  std::vector<sampling::ScoredToken> pairs_;
  std::vector<verification::RowChoice> choices_;
  std::vector<int32_t> wanted_;         // logit rows of whole_ and trees_,
  std::vector<int> owners_;             // the owner of each,
  absl::Span<const float> taken_rows_;  // and this rank's part of them, one behind the other
  std::vector<float> shard_rows_;
  std::vector<float> whole_rows_;
  std::vector<absl::Span<const float>> rows_;  // [logit_rows] whole rows that are here
  struct NoiseRow {
    int32_t sequence = -1;
    int32_t position = -1;
    std::vector<float> values;
  };
  std::vector<NoiseRow> noise_;  // of the sequence at hand, one for each position seen
  size_t noise_used_ = 0;
  sampling::LogitChanger changer_;
  int32_t changer_sequence_ = -1;  // index in plan.sequences that changer_ is open for
  std::vector<base::TokenId> path_;
  std::vector<uint64_t> draft_probs_words_;   // what OnHost has fetched,
  speculation::DraftProbs host_draft_probs_;  // and opened
  verification::TreeVerifier trees_verifier_;
};

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_VERIFIER_H_
