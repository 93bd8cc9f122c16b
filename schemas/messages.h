#ifndef SPECFABRIC_SCHEMAS_MESSAGES_H_
#define SPECFABRIC_SCHEMAS_MESSAGES_H_

// Every message of the protocol as a plain struct, and its codec. A payload is one FlatBuffer
// (schemas/specfabric.fbs). Decode verifies the buffer before reading it and checks ranges that the
// schema cannot say; a failure is InvalidArgument in one line, never a crash. Messages carry no
// clock times: budgets are durations.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/sequence_output.h"
#include "base/trace_context.h"
#include "base/types.h"
#include "scheduler/sequence_request.h"
#include "scheduler/step_plan.h"
#include "speculation/tree.h"
#include "speculation/verification_method.h"

namespace specfabric::schemas {

constexpr uint32_t kProtocolVersion = 4;

enum class MessageType : uint16_t {
  kHello = 1,
  kDrain = 4,  // the sender takes no new work
  kDraftRequest = 10,
  kDraftReply = 11,
  kEndSession = 12,
  kHiddenStates = 13,
  kSubmit = 20,
  kCancel = 22,
  kTokensBatch = 23,
  kGroupPart = 30,
  kGroupReady = 31,
  kStep = 32,
  kStepDone = 33,
  kCollective = 34,
};
const char* Name(MessageType type);

// Tensors go apart from messages, from slot to slot; the message that one belongs to describes it.
enum class TensorType : uint16_t {
  kDraftProbs = 1,    // what the nodes of a DraftReply were drawn from
  kHiddenStates = 2,  // of the target, of the tokens that a HiddenStates names
};

// kRank: a process that holds some ranks of a target's group, and speaks to its leader only.
enum class Role : uint8_t { kGateway = 0, kTarget = 1, kDraft = 2, kTool = 3, kRank = 4 };
const char* Name(Role role);

struct Hello {
  uint32_t protocol = kProtocolVersion;
  Role role = Role::kTool;
  uint64_t incarnation = 0;            // random per process start
  std::string model;                   // for people: the checkpoint's folder name
  uint64_t tokenizer_fingerprint = 0;  // 0: has none
  uint64_t numerics_fingerprint = 0;   // 0: has none
  int32_t vocabulary = 0;
  int32_t context = 0;                // longest sequence it serves
  uint32_t verification_methods = 0;  // bit set, 1 << VerificationMethod
  int32_t capacity = 0;               // sessions (draft) or sequences (target) at once
  std::string build;                  // version of the program
  // Of a draft that reads its target's hidden states: the boundaries between the target's layers
  // whose residual streams it wants (StateRun), in the order in which a row holds them; how many
  // rows a tensor may have; and the pool that tensors go to. No layers: it reads none.
  std::vector<int32_t> state_layers;
  int32_t state_rows = 0;
  uint8_t state_pool = 0;
  // Of a target: requests that sample and name no verification method get one of several.
  bool chooses_verification = false;
};
constexpr size_t kMaxStateLayers = 64;

// Whether the draft's token ids mean what the target's do: their tokenizers have one fingerprint,
// or one of them has none and the vocabularies are of one size. With one tokenizer the sizes may
// differ, since checkpoints pad them (Qwen2.5: 151,936 or 152,064). InvalidArgument in one line.
absl::Status CheckPair(const Hello& target, const Hello& draft);

struct Drain {};

using speculation::Lossless;
using speculation::Name;
using speculation::ParseVerificationMethod;
using speculation::SiblingDraw;
using speculation::VerificationMethod;

// "Your committed prefix is now exactly this; draft below it." Opens, extends, rolls back and
// resumes a session, and may be repeated. The draft's session must hold at least base_length tokens
// whose chained hash (base::ExtendPrefixHash) is base_hash; it is truncated to these, and
// append_tokens are appended.
struct DraftRequest {
  uint64_t target_incarnation = 0;
  base::SequenceId sequence = 0;
  uint32_t round = 0;
  uint64_t request_id = 0;
  int32_t base_length = 0;
  uint64_t base_hash = 0;
  std::vector<base::TokenId> append_tokens;
  int32_t max_nodes = 0;        // below the root
  int32_t max_depth = 0;        // levels below the root; 0: any
  base::Nanos time_budget = 0;  // from receipt
  // For verification methods that take any tree: what a second of growing, and verifying one node,
  // cost the target, in accepted tokens (speculation/growth.h). At least 0.
  float cost_per_second = 0.0f;
  float cost_per_row = 0.0f;
  bool ahead = true;  // the draft may draft ahead once it has replied, as far as it does at all
  VerificationMethod verification = VerificationMethod::kCoupled;
  base::SamplingParams sampling;  // holds the seed
  int32_t prompt_length = 0;
  uint32_t draw = 0;  // sampling::DrawNumber, for draft tokens that are drawn at random
  // Where draft probabilities go: the target's pool, and the size of its slots. 0 bytes: the target
  // takes none.
  uint8_t draft_probs_pool = 0;
  uint32_t draft_probs_bytes = 0;
  base::TraceContext trace = {};  // its span is the target's part of the request
};

// A hash of what the draft tokens of a request depend on, besides the text. The reply repeats it,
// so that draft tokens for another verification method or other sampling are never verified.
uint64_t SamplingTag(VerificationMethod verification, const base::SamplingParams& sampling);

enum class DraftStatus : uint8_t {
  kOk = 0,
  kNeedResync = 1,
  kBusy = 2,
  kUnsupported = 3,
  kTooLong = 4,
  kDraining = 5,
};
const char* Name(DraftStatus status);

struct PrefixPoint {
  int32_t length = 0;
  uint64_t hash = 0;
};

struct DraftReply {
  uint64_t target_incarnation = 0;  // echoed, to recognise late replies to an earlier process
  base::SequenceId sequence = 0;
  uint32_t round = 0;
  uint64_t request_id = 0;
  DraftStatus status = DraftStatus::kOk;
  SiblingDraw draw = SiblingDraw::kCoupledTopK;
  // In draw order. The root, the last committed token, does not travel: Decode leaves kNoToken
  // there, and the target, which knows the token, sets it. Decode has checked all else that does
  // not depend on the request: parents precede children, ids are not negative, scores are finite,
  // and there are at most kMaxTreeNodes nodes below the root.
  speculation::TokenTree tree = speculation::TokenTree::Root(base::kNoToken);
  base::Nanos draft_time = 0;
  std::vector<PrefixPoint> known;  // kNeedResync: longest first
  int32_t free_sessions = 0;
  uint64_t sampling_tag = 0;  // SamplingTag of the request
  // The shape of the draft probabilities that are sent beside this reply; 0 rows: none are. Each
  // node with children has a row, in ascending order. The tensor's fence is the target's
  // incarnation and the round, its tag the sequence; it may come before or after this reply.
  int32_t draft_probs_rows = 0;
  int32_t draft_probs_entries = 0;
};

// Hidden states of consecutive committed tokens of one sequence: of position first_position, the
// residual stream behind each of the draft's Hello::state_layers, and so on for `count` positions.
// Boundary v is the input of the target's layer v, the last one what leaves its last layer, before
// the final norm. They do not depend on when or in which batch they were computed, so the text of a
// sequence being what it is, (incarnation, sequence, position) says which they are.
struct StateRun {
  base::SequenceId sequence = 0;
  int32_t first_position = 0;
  int32_t count = 0;
  friend bool operator==(const StateRun&, const StateRun&) = default;
};

// Describes a tensor of states, [all runs' positions][layers][hidden] in bfloat16, whose fence is
// the target's incarnation and `number`, and which may come before or after this message. Each
// draft worker is sent its own numbers, 1, 2, ...; one that is missing is lost.
struct HiddenStates {
  uint64_t target_incarnation = 0;
  uint32_t number = 0;
  std::vector<StateRun> runs = {};  // in the tensor's order
};
constexpr size_t kMaxStateRuns = 4096;
// The slots that a target sends these tensors from, and that a draft receives them in.
constexpr size_t kStateSlotBytes = size_t{1} << 20;
constexpr int32_t kStateSlots = 32;

struct EndSession {
  uint64_t target_incarnation = 0;
  base::SequenceId sequence = 0;
};

using scheduler::kMaxDraftTokens;
using scheduler::kMaxPriority;
using scheduler::SequenceRequest;

// Asks a target to generate one sequence, or to continue it after an earlier attempt.
struct Submit {
  uint64_t request_id = 0;                         // unique for each gateway incarnation
  std::optional<VerificationMethod> verification;  // requested; none: the target's own choice
  SequenceRequest sequence;
  base::TraceContext trace = {};
};

enum class Finish : uint8_t {
  kNone = 0,
  kStop = 1,
  kLength = 2,
  kCancelled = 3,
  kError = 4,
  kRejected = 5,
  kOverloaded = 6,
  kDraining = 7
};

// Totals over the rounds of a sequence.
struct Speculation {
  int64_t rounds = 0;
  int64_t drafted = 0, accepted = 0;      // draft tokens
  std::vector<int64_t> accepted_at = {};  // rounds that accepted a draft token at depth 1, 2, ...
  // Of the trees; for several sequences, the method with the weakest guarantee.
  VerificationMethod verification = VerificationMethod::kCoupled;
  int64_t drafted_rounds = 0;  // those that verified a draft token

  void Add(const Speculation& other);
};

// New tokens of one sequence, or its end.
struct Tokens : base::SequenceOutput {
  uint64_t request_id = 0;
  uint32_t attempt = 0;
  Finish finish = Finish::kNone;
  std::string error;          // one line, with kError, kRejected and kOverloaded
  Speculation speculation;    // of this attempt so far
  int32_t cached_tokens = 0;  // tokens of the prompt found in the prefix cache
};

// What a target has to do, and totals since its start, for the metrics of its gateways.
struct TargetLoad {
  int32_t running = 0, waiting = 0;       // sequences, of all gateways
  int32_t kv_blocks = 0;                  // of the KV cache
  int32_t kv_blocks_used = 0;             // by running sequences, at most kv_blocks
  int32_t block_size = 0;                 // tokens
  int64_t drafts = 0;                     // rounds that verified draft tokens
  int64_t drafted = 0, accepted = 0;      // draft tokens
  std::vector<int64_t> accepted_at = {};  // at depth 1, 2, ...
};

// The results of one step for all sequences of one gateway. One message for each sequence would be
// hundreds a step, more than a connection takes. Without sequences it is a heartbeat.
struct TokensBatch {
  std::vector<Tokens> sequences = {};
  std::optional<TargetLoad> load = {};  // in heartbeats
};

struct Cancel {
  uint64_t request_id = 0;
  uint32_t attempt = 0;
};

// From the leader of a target group to a process that has joined it: which ranks it holds, and how
// they run. Everything that decides bits comes from the leader, so that it cannot differ.
struct GroupPart {
  int32_t ranks = 1;  // of the group
  int32_t pipeline_stages = 1;
  int32_t first_rank = 0;
  int32_t rank_count = 1;
  bool cuda = false;      // on GPUs; else on CPUs
  bool bfloat16 = true;   // weights and KV; else float32
  int32_t kv_blocks = 1;  // 0, on GPUs alone: as many as the ranks agree on
  int32_t block_size = 16;
  bool batch_invariant = true;
  bool reference = false;
  bool cuda_graphs = false;  // may be used, as may the next
  bool flash_attention = false;
  int32_t max_rows = 0;                      // of a pass; 0: not known
  base::Nanos join_timeout = base::kSecond;  // of GPUs' ranks, to find each other
  double typical_epsilon = 0;
  double typical_delta = 0;
};

// The sender's ranks are loaded. From a rank process to its leader; and back once all processes
// have said so and the leader's are, whose fingerprint all must have.
struct GroupReady {
  uint64_t numerics_fingerprint = 0;
};

// The draft's draft_probs (draft_probs.h) of one sequence of a step.
struct StepDraftProbs {
  int32_t sequence = 0;  // index in StepPlan::sequences
  int32_t rows = 0;
  int32_t entries = 0;  // a row
  std::vector<uint8_t> bytes;
};

// One step for a rank process. `preempted` of the plan is the leader's own and does not travel.
struct Step {
  scheduler::StepPlan plan;
  std::vector<StepDraftProbs>
      draft_probs;  // ascending sequences, of those that the process decides
};

// A Step by reference to its parts, which are encoded without being copied first.
struct StepDraftProbsView {
  int32_t sequence = 0, rows = 0, entries = 0;  // as StepDraftProbs
  absl::Span<const uint8_t> bytes;
};
struct StepView {
  const scheduler::StepPlan* plan = nullptr;
  std::vector<StepDraftProbsView> draft_probs;
};

// A Step that is encoded already, to be sent to several receivers.
struct EncodedStep {
  std::vector<uint8_t> bytes;
};

struct StepTree {
  int32_t sequence = 0;  // index in StepPlan::sequences
  speculation::Accepted accepted;
};

// What the ranks of one process have found: the entries of the result that they own.
struct StepDone {
  uint64_t step = 0;
  std::string error;                          // one line where the step failed; empty: it did not
  std::vector<int32_t> chosen_logits;         // ascending indices in StepPlan::logit_rows
  std::vector<base::TokenId> chosen;          // [chosen_logits]
  std::vector<int32_t> scored_logits;         // likewise
  std::vector<base::TokenLogprobs> logprobs;  // [scored_logits]
  std::vector<StepTree> trees;                // ascending
  // Ascending indices in StepPlan::logit_rows: logits that are not finite, where others would have
  // been chosen or scored by.
  std::vector<int32_t> not_finite_logits;
};

// A rank process's part in a collective, a part for each of its ranks; or the leader's answer, with
// the parts of all ranks in rank order. `op` counts the collectives of the connection.
struct Collective {
  uint64_t op = 0;
  std::vector<std::vector<uint8_t>> parts;
};

// Limits that decoders enforce before anything is allocated for a field.
constexpr int kMaxTreeNodes = 256;
constexpr int kMaxTokensPerMessage = 1 << 20;
constexpr int kMaxStopIds = 4096;  // and LogitRules::suppressed_token_ids
constexpr int kMaxLogitBias = 1024;
constexpr int kMaxTopLogprobs = 128;      // of one token
constexpr int kMaxBatchSequences = 4096;  // of a TokensBatch
constexpr int kMaxPrefixPoints = 4096;    // DraftReply::known
constexpr int kMaxNameBytes = 256;        // Hello::model, Hello::build, SequenceRequest::drafter
constexpr int kMaxErrorBytes = 4096;      // Tokens::error; texts hold no control characters
constexpr int kMaxRanks = 64;             // of a group
constexpr base::Nanos kMaxJoinTimeout = 24 * 3600 * base::kSecond;
constexpr int kMaxStepRows = 1 << 16;    // rows, logit rows and moves of a Step
constexpr int kMaxStepBlocks = 1 << 26;  // Step::plan.blocks

// Encode(m) and Decode<M>(bytes) for every struct above; kTypeOf<M> is its MessageType.
#define SPECFABRIC_MESSAGES(X) \
  X(Hello)                     \
  X(Drain)                     \
  X(DraftRequest)              \
  X(DraftReply)                \
  X(EndSession)                \
  X(HiddenStates)              \
  X(Submit) X(TokensBatch) X(Cancel) X(GroupPart) X(GroupReady) X(Step) X(StepDone) X(Collective)

template <typename M>
inline constexpr MessageType kTypeOf = MessageType{0};
template <typename M>
absl::StatusOr<M> Decode(absl::Span<const uint8_t> payload);

#define SPECFABRIC_DECLARE_CODEC(M)                            \
  template <>                                                  \
  inline constexpr MessageType kTypeOf<M> = MessageType::k##M; \
  std::vector<uint8_t> Encode(const M& message);               \
  template <>                                                  \
  absl::StatusOr<M> Decode<M>(absl::Span<const uint8_t> payload);
SPECFABRIC_MESSAGES(SPECFABRIC_DECLARE_CODEC)

// A receiver decodes these as a Step.
template <>
inline constexpr MessageType kTypeOf<StepView> = MessageType::kStep;
std::vector<uint8_t> Encode(const StepView& message);
template <>
inline constexpr MessageType kTypeOf<EncodedStep> = MessageType::kStep;
inline std::vector<uint8_t> Encode(const EncodedStep& message) { return message.bytes; }
#undef SPECFABRIC_DECLARE_CODEC

}  // namespace specfabric::schemas

#endif  // SPECFABRIC_SCHEMAS_MESSAGES_H_
