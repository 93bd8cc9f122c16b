#include "target/draft_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "sampling/uniform.h"

namespace specfabric::target {

using schemas::DraftReply;
using schemas::DraftRequest;

namespace {

// The first resync in a round starts from the longest known point, the second from nothing, and
// with a third the worker is given up.
constexpr int kMaxResyncs = 2;
// A worker that has not answered anything for this long has a miss, even if no round waits for it.
// At least twice the time of a step that drafts can speed up.
constexpr base::Nanos kUnansweredLimit = 100 * base::kMillisecond;

}  // namespace

void DraftSession::StartRound(const scheduler::DraftWanted& want, bool extra) {
  want_ = want;
  if (extra) extra_round_ = want.round;
  request_id_ = 0;
  resyncs_ = 0;
  missed_ = false;
  early_reply_.reset();
  early_tensor_.reset();
  draft_probs_.reset();
}

DraftRequest DraftSession::MakeRequest(const DraftSessionOptions& options,
                                       absl::Span<const base::TokenId> text, uint64_t request_id,
                                       base::Nanos now) {
  request_id_ = request_id;
  sent_ = now;
  if (unanswered_since_ == 0) unanswered_since_ = now;
  DraftRequest request;
  request.target_incarnation = options.incarnation;
  request.sequence = want_.id;
  request.round = want_.round;
  request.request_id = request_id;
  request.base_length = acked_length_;
  request.base_hash = acked_hash_;
  const auto append = Asked(text).subspan(acked_length_);
  request.append_tokens.assign(append.begin(), append.end());
  request.max_nodes = want_.max_nodes;
  request.max_depth = want_.max_depth;
  request.trace = terms_.trace;
  request.cost_per_second = static_cast<float>(want_.cost_per_second);
  request.cost_per_row = static_cast<float>(want_.cost_per_row);
  request.ahead = want_.ahead;
  request.time_budget = std::max<base::Nanos>(want_.deadline - now, 0);
  request.verification = terms_.verification;
  request.sampling = terms_.sampling;
  request.prompt_length = terms_.prompt_length;
  request.draw = sampling::DrawNumber(terms_.attempt, want_.round);
  request.draft_probs_pool = static_cast<uint8_t>(want_.id % options.draft_probs_pools);
  request.draft_probs_bytes = options.draft_probs_bytes;
  return request;
}

void DraftSession::MoveTo(PeerId worker) {
  Forget();
  worker_ = worker;
  missed_ = false;
  unanswered_since_ = 0;
}

void DraftSession::Forget() {
  worker_ = 0;
  has_states_ = false;
  acked_length_ = 0;
  acked_hash_ = base::kEmptyPrefixHash;
}

void DraftSession::GiveUp() {
  request_id_ = 0;
  early_reply_.reset();
  early_tensor_.reset();
}

bool DraftSession::Resync(absl::Span<const schemas::PrefixPoint> known,
                          absl::Span<const base::TokenId> text) {
  acked_length_ = 0;
  acked_hash_ = base::kEmptyPrefixHash;
  if (++resyncs_ > kMaxResyncs) return false;
  if (resyncs_ > 1) return true;
  const auto asked = Asked(text);
  for (const schemas::PrefixPoint& point : known) {
    if (point.length > static_cast<int32_t>(asked.size())) continue;
    const uint64_t hash = base::ExtendPrefixHash(base::kEmptyPrefixHash, asked.first(point.length));
    if (hash != point.hash) continue;
    acked_length_ = point.length;
    acked_hash_ = point.hash;
    break;
  }
  return true;
}

absl::Span<const base::TokenId> DraftSession::Asked(absl::Span<const base::TokenId> text) const {
  SPECFABRIC_CHECK(static_cast<int32_t>(text.size()) >= want_.committed);
  return text.first(want_.committed);
}

// A tree of the root alone needs none.
bool DraftSession::NeedsDraftProbs(const DraftReply& reply) const {
  return speculation::NeedsDraftRows(terms_.verification, reply.draw) && reply.tree.size() > 1;
}

std::optional<DraftReply> DraftSession::Join(DraftReply reply) {
  if (!NeedsDraftProbs(reply) || early_tensor_) return reply;
  early_reply_ = std::move(reply);
  return std::nullopt;
}

std::optional<DraftReply> DraftSession::Join(transport::KeptTensor tensor) {
  early_tensor_ = std::move(tensor);
  return std::exchange(early_reply_, std::nullopt);
}

absl::Status DraftSession::OpenDraftProbs(const DraftSessionOptions& options,
                                          const DraftReply& reply, speculation::Draft* draft) {
  const int rows = speculation::NodesWithChildren(draft->tree);
  if (reply.draft_probs_rows != rows) {
    return absl::InvalidArgumentError(absl::StrCat(
        "draft_probs: ", reply.draft_probs_rows, " rows for ", rows, " nodes that have children"));
  }
  transport::KeptTensor& tensor = *early_tensor_;
  const speculation::DraftProbsShape shape = {rows, options.vocabulary, reply.draft_probs_entries};
  auto opened = tensor.on_device() ? options.open_on_device(shape, tensor.bytes())
                                   : speculation::DraftProbs::Open(shape, tensor.bytes());
  if (!opened.ok()) return opened.status();
  draft->draft_row = speculation::DraftRows(draft->tree);
  draft_probs_ = ReceivedDraftProbs{std::move(tensor), *std::move(opened)};
  return absl::OkStatus();
}

absl::StatusOr<speculation::Draft> DraftSession::TakeDraft(const DraftSessionOptions& options,
                                                           absl::Span<const base::TokenId> text,
                                                           DraftReply* reply) {
  const bool needs_draft_probs = NeedsDraftProbs(*reply);
  const auto asked = Asked(text);
  speculation::Draft draft = {.tree = std::move(reply->tree), .draw = reply->draw};
  draft.tree.tokens[0] = asked.back();
  const int allowed = std::min(want_.max_nodes + 1, speculation::kMaxVerifyNodes);
  absl::Status valid = speculation::CheckLimits(draft.tree, allowed, options.vocabulary);
  if (valid.ok() && needs_draft_probs) valid = OpenDraftProbs(options, *reply, &draft);
  if (!valid.ok()) return valid;
  request_id_ = 0;
  early_tensor_.reset();
  acked_hash_ = base::ExtendPrefixHash(acked_hash_, asked.subspan(acked_length_));
  acked_length_ = want_.committed;
  return draft;
}

DraftSession::Unanswered DraftSession::LeaveRequest(base::Nanos now) {
  left_ = {.id = request_id_, .sent = sent_, .deadline = want_.deadline};
  if (missed_) return Unanswered::kCounted;
  missed_ = true;
  const base::Nanos reply_timeout = want_.deadline - sent_;
  // A step takes longer than most replies, and a worker that has a long prompt to read is busy for
  // several steps.
  const bool silent = now - unanswered_since_ >= std::max(reply_timeout, kUnansweredLimit);
  return silent ? Unanswered::kMiss : Unanswered::kAbandoned;
}

bool DraftSession::MarkMissed() { return !std::exchange(missed_, true); }

std::optional<DraftSession::LeftRequest> DraftSession::OnAnswer(uint64_t request_id) {
  unanswered_since_ = 0;
  if (left_.id == 0 || left_.id != request_id) return std::nullopt;
  return std::exchange(left_, LeftRequest{});
}

}  // namespace specfabric::target
