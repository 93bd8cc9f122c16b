// A draft that computes its draft_probs in device memory sends the same bytes as one that computes
// them on the host, and a target's device validates them with the same result; likewise one that
// receives hidden states there, whose trees are those of a CPU too.

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/bfloat16.h"
#include "base/hash.h"
#include "draft/draft_engine.h"
#include "model/cpu/cpu_transformer.h"
#include "model/cuda/cuda_transformer.h"
#include "tests/cuda/device.h"
#include "tests/model/checkpoint_writer.h"
#include "tests/model/group.h"
#include "tests/model/mtp_checkpoints.h"
#include "tests/model/passes.h"
#include "verification/cuda/draft_row_maker.h"

namespace specfabric::draft {
namespace {

using base::cuda::DeviceArray;
using model::cuda::CudaTransformer;
using transport::MemoryKind;

constexpr int32_t kVocabulary = 101, kSlots = 6;
constexpr uint64_t kIncarnation = 9;  // the target's

// The reply to one request.
struct Sent {
  schemas::DraftStatus status = schemas::DraftStatus::kOk;
  std::vector<int32_t> parents = {};
  std::vector<base::TokenId> tokens = {};
  std::vector<float> scores = {};
  int32_t rows = 0, entries = 0;
  std::vector<uint8_t> bytes = {};
  bool operator==(const Sent&) const = default;
};

// A checkpoint's folder, and its target's if something of that is read.
struct Folders {
  std::string draft, target = {};
};

// An engine, and slots in memory of this kind that are not registered with a transport.
class Draft {
 public:
  Draft(const Folders& folders, const DraftEngineOptions& options, MemoryKind kind,
        const model::RankLoader& load = CudaTransformer::Load)
      : kind_(kind), communicators_(model::MakeThreadCommunicators(1)) {
    const model::RankOptions rank = {.dtype = model::DataType::kFloat32,
                                     .kv_blocks = options.sessions.kv_blocks,
                                     .block_size = options.sessions.block_size,
                                     .target_dir = folders.target};
    auto model = load(folders.draft, rank, communicators_[0].get());
    EXPECT_TRUE(model.ok()) << model.status();
    std::unique_ptr<verification::DeviceDraftRows> draft_rows;
    if (kind == MemoryKind::kCuda) {
      draft_rows = std::make_unique<verification::cuda::DraftRowMaker>((*model)->device());
      draft_rows_ = draft_rows.get();
    }
    const transport::SlotPoolOptions slots = {
        kind, DraftEngine::DraftProbsSlotBytes(options, kVocabulary), kSlots};
    const size_t bytes = kSlots * transport::SlotPool::Stride(slots);
    host_.assign(bytes / sizeof(uint64_t), 0);
    auto* data = reinterpret_cast<uint8_t*>(host_.data());
    if (kind == MemoryKind::kCuda) {
      device_.emplace(host_);
      data = reinterpret_cast<uint8_t*>(device_->data());
    }
    pool_ = std::make_shared<transport::SlotPool>(
        slots, transport::Slab{kind, data, bytes, nullptr}, [](const transport::Slab&) {});
    engine_ = std::make_unique<DraftEngine>(
        options, *std::move(model), std::move(draft_rows),
        [this](const transport::Fence& fence) { return pool_->Acquire(fence); },
        [this](uint64_t /*peer*/, const schemas::DraftReply& reply,
               OutgoingDraftProbs draft_probs) { Note(reply, draft_probs); });
  }

  // Receives the hidden states, [positions][width], of a sequence's first positions.
  void AddStates(uint64_t sequence, int32_t positions, const std::vector<uint16_t>& states) {
    const size_t bytes = states.size() * sizeof(uint16_t);
    ArrivedStates arrived = {.runs = {{sequence, 0, positions}}, .tensor = {}};
    const transport::SlotPoolOptions slot = {MemoryKind::kCuda, bytes, 1};
    const size_t slab_bytes = transport::SlotPool::Stride(slot);
    DeviceArray<uint8_t> memory(slab_bytes);
    if (kind_ == MemoryKind::kHost) {
      const auto* const from = reinterpret_cast<const uint8_t*>(states.data());
      arrived.tensor.copy.assign(from, from + bytes);
    } else {
      const auto pool = std::make_shared<transport::SlotPool>(
          slot, transport::Slab{kind_, memory.data(), slab_bytes, nullptr},
          [](const transport::Slab&) {});
      arrived.tensor.lease = *pool->Acquire({});
      arrived.tensor.lease_bytes = static_cast<uint32_t>(bytes);
      base::cuda::Check(
          cudaMemcpy(arrived.tensor.lease.data(), states.data(), bytes, cudaMemcpyHostToDevice),
          "copy");
    }
    const absl::Status added = engine_->AddStates(kIncarnation, arrived, base::Now());
    ASSERT_TRUE(added.ok()) << added;
  }
  const DraftEngineStats& stats() const { return engine_->stats(); }

  // The replies to the requests, by sequence.
  std::map<uint64_t, Sent> Answer(const std::vector<schemas::DraftRequest>& requests) {
    sent_.clear();
    for (const schemas::DraftRequest& request : requests) engine_->Accept(1, request, base::Now());
    for (int steps = 0; steps < 20 && !engine_->idle(); ++steps) {
      const absl::Status stepped = engine_->Step();
      EXPECT_TRUE(stepped.ok()) << stepped;
    }
    EXPECT_TRUE(engine_->idle());
    return std::exchange(sent_, {});
  }

 private:
  void Note(const schemas::DraftReply& reply, const OutgoingDraftProbs& draft_probs) {
    Sent& sent = sent_[reply.sequence];
    sent = {reply.status,
            reply.tree.parents,
            reply.tree.tokens,
            reply.tree.scores,
            reply.draft_probs_rows,
            reply.draft_probs_entries,
            {}};
    if (!draft_probs.lease) return;
    const absl::Span<const uint8_t> there(draft_probs.lease.data(), draft_probs.bytes);
    std::vector<uint64_t> words((draft_probs.bytes + 7) / 8);
    auto* const here = reinterpret_cast<uint8_t*>(words.data());
    if (kind_ == MemoryKind::kHost) {
      std::memcpy(here, there.data(), there.size());
    } else {
      ASSERT_TRUE(draft_rows_->Fetch(there, here).ok());
    }
    sent.bytes.assign(here, here + draft_probs.bytes);
    const speculation::DraftProbsShape shape = {reply.draft_probs_rows, kVocabulary,
                                                reply.draft_probs_entries};
    const auto opened = speculation::DraftProbs::Open(shape, {here, draft_probs.bytes});
    ASSERT_TRUE(opened.ok()) << opened.status();
    if (kind_ == MemoryKind::kHost) return;
    std::vector<sampling::DraftRowFacts> facts(shape.rows);
    ASSERT_TRUE(
        draft_rows_->Validate(there.data(), shape.vocabulary, shape.entries, absl::MakeSpan(facts))
            .ok());
    const auto validated = speculation::DraftProbs::OpenOnDevice(shape, there, facts);
    ASSERT_TRUE(validated.ok()) << validated.status();
    EXPECT_EQ(validated->totals(), opened->totals());
  }

  const MemoryKind kind_;
  const std::vector<std::unique_ptr<model::Communicator>> communicators_;
  std::vector<uint64_t> host_;
  std::optional<DeviceArray<uint64_t>> device_;
  std::shared_ptr<transport::SlotPool> pool_;
  verification::DeviceDraftRows* draft_rows_ = nullptr;
  std::unique_ptr<DraftEngine> engine_;
  std::map<uint64_t, Sent> sent_;
};

schemas::DraftRequest Request(uint64_t sequence, int32_t prompt,
                              schemas::VerificationMethod verification) {
  schemas::DraftRequest request;
  request.target_incarnation = kIncarnation;
  request.sequence = sequence;
  request.round = request.draw = 1;
  request.request_id = sequence;
  request.base_hash = base::kEmptyPrefixHash;
  request.append_tokens = model::RandomTokens(prompt, static_cast<uint32_t>(sequence));
  request.max_nodes = 20;
  request.time_budget = 100 * base::kSecond;
  request.verification = verification;
  request.sampling = {.temperature = 1.0f, .seed = sequence * 77};
  request.prompt_length = prompt;
  request.draft_probs_bytes = 1 << 20;
  return request;
}

// Requests that differ in every way that matters; a pass of all of them has rows that stay on the
// device and rows that are fetched.
std::vector<schemas::DraftRequest> Requests(const DraftEngineOptions& options) {
  using schemas::VerificationMethod;
  std::vector<schemas::DraftRequest> requests = {
      Request(1, 5, VerificationMethod::kRejection), Request(2, 3, VerificationMethod::kTraversal),
      Request(3, 4, VerificationMethod::kCoupled),   Request(4, 7, VerificationMethod::kRejection),
      Request(5, 2, VerificationMethod::kRejection), Request(6, 2, VerificationMethod::kTraversal),
      Request(7, 3, VerificationMethod::kTypical),   Request(8, 3, VerificationMethod::kRejection)};
  requests[1].sampling.temperature = 0.3f;
  requests[1].sampling.top_p = 0.9f;
  requests[3].sampling.top_k = 1;  // fewer siblings than max_children
  requests[4].max_nodes = 5;       // the node budget ends in the middle of a level
  const auto row = speculation::ShapeFor(1, kVocabulary, options.top_n).row_bytes();
  requests[5].draft_probs_bytes = static_cast<uint32_t>(2 * row);  // and here the slot is full
  return requests;
}

class DeviceDraftTest : public base::cuda::DeviceTest {};

TEST_F(DeviceDraftTest, SendsTheBytesThatTheHostWouldCompute) {
  const model::TempDir dir;
  model::WriteCheckpoint(dir.path(), model::OddConfig(), 5);
  using speculation::SiblingDraw;
  for (const auto& [top_n, draw] :
       {std::pair{0, SiblingDraw::kWithoutReplacement}, {7, SiblingDraw::kWithReplacement}}) {
    DraftEngineOptions options;
    options.sessions = {.kv_blocks = 128, .block_size = 4, .max_sessions = 16, .context = 256};
    options.sampled_growth.widths = {3, 2, 1};
    options.sampled_draw = draw;
    options.top_n = top_n;
    options.ahead.policy = AheadPolicy::kOff;
    Draft on_host({dir.path()}, options, MemoryKind::kHost);
    Draft on_device({dir.path()}, options, MemoryKind::kCuda);
    const std::vector<schemas::DraftRequest> requests = Requests(options);
    const std::map<uint64_t, Sent> expected = on_host.Answer(requests);
    std::map<uint64_t, Sent> sent = on_device.Answer(requests);
    ASSERT_EQ(sent.size(), requests.size());
    for (const auto& [sequence, reply] : expected) {
      EXPECT_TRUE(sent[sequence] == reply)
          << "sequence " << sequence << ": " << sent[sequence].tokens.size() << " draft tokens, "
          << sent[sequence].bytes.size() << " bytes, expected " << reply.tokens.size() << ", "
          << reply.bytes.size();
    }
    // The cases that the requests are meant to reach.
    EXPECT_EQ(expected.at(1).rows, 1 + 3 + 6);
    EXPECT_EQ(expected.at(3).rows, 0);
    if (draw == speculation::SiblingDraw::kWithoutReplacement) {
      EXPECT_EQ(expected.at(4).tokens.size(), 1u + 3u);  // the root is one
    }
    EXPECT_EQ(expected.at(5).tokens.size(), 1u + 5u);
    EXPECT_EQ(expected.at(6).rows, 2);
    EXPECT_EQ(expected.at(8).status, schemas::DraftStatus::kOk);
  }
}

// On a CPU the draft probabilities differ in their last bits.
void ExpectSameTree(const Sent& sent, const Sent& on_cpu) {
  EXPECT_EQ(sent.status, on_cpu.status);
  EXPECT_EQ(sent.parents, on_cpu.parents);
  EXPECT_EQ(sent.tokens, on_cpu.tokens);
  EXPECT_EQ(sent.rows, on_cpu.rows);
  EXPECT_THAT(sent.scores, ::testing::Pointwise(::testing::FloatNear(1e-3f), on_cpu.scores));
}

// Drafts of one checkpoint that are given the same states, in the host's memory and in the GPU's;
// and one on a CPU.
class StateDrafts {
 public:
  // width: of a position's states.
  StateDrafts(const Folders& folders, size_t width)
      : width_(width),
        on_cpu_(folders, Options(), MemoryKind::kHost, model::CpuTransformer::Load),
        on_host_(folders, Options(), MemoryKind::kHost),
        on_device_(folders, Options(), MemoryKind::kCuda) {}

  // Expects all replies to be the same; returns them by sequence.
  std::map<uint64_t, Sent> Answer() {
    using schemas::VerificationMethod;
    const std::vector<schemas::DraftRequest> requests = {
        Request(1, 5, VerificationMethod::kRejection),
        Request(2, 3, VerificationMethod::kTraversal), Request(3, 4, VerificationMethod::kCoupled)};
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (const schemas::DraftRequest& request : requests) {
      const int32_t positions = request.prompt_length - 1;
      std::vector<uint16_t> states(positions * width_);
      for (uint16_t& bits : states) bits = base::RoundToBFloat16(normal(random));
      for (Draft* draft : {&on_cpu_, &on_host_, &on_device_}) {
        draft->AddStates(request.sequence, positions, states);
      }
    }
    const std::map<uint64_t, Sent> cpus = on_cpu_.Answer(requests);
    std::map<uint64_t, Sent> expected = on_host_.Answer(requests);
    const std::map<uint64_t, Sent> sent = on_device_.Answer(requests);
    EXPECT_EQ(sent.size(), requests.size());
    for (const auto& [sequence, reply] : expected) {
      EXPECT_TRUE(sent.at(sequence) == reply) << sequence;
      EXPECT_EQ(reply.status, schemas::DraftStatus::kOk);
      ExpectSameTree(reply, cpus.at(sequence));
    }
    return expected;
  }

  void ExpectRefusesBadStates() {
    const std::vector<uint16_t> bad(width_, 0x7F80);
    for (Draft* draft : {&on_host_, &on_device_}) {
      draft->AddStates(4, 1, bad);                                        // infinities
      draft->AddStates(4, 1, std::vector<uint16_t>(width_ - 1, 0x3F80));  // of another shape
      EXPECT_EQ(draft->stats().invalid_states, 2u);
      EXPECT_EQ(draft->stats().states, 4u + 2 + 3 + 2);
    }
  }

  uint64_t passes() const { return on_device_.stats().passes; }

 private:
  static DraftEngineOptions Options() {
    DraftEngineOptions options;
    options.sessions = {.kv_blocks = 128, .block_size = 4, .max_sessions = 16, .context = 256};
    options.growth.widths = {2, 2};
    options.sampled_growth.widths = {3, 2};
    return options;
  }

  const size_t width_;
  Draft on_cpu_, on_host_, on_device_;
};

size_t StateWidth(const model::ModelConfig& config) {
  return config.states->layers.size() * config.states->target_hidden;
}

void ExpectReadsStatesWhereTheyWereReceived(const Folders& folders, size_t width) {
  StateDrafts drafts(folders, width);
  const std::map<uint64_t, Sent> replies = drafts.Answer();
  EXPECT_EQ(replies.at(1).rows, 1 + 3);
  EXPECT_GT(replies.at(3).tokens.size(), 2u);
  drafts.ExpectRefusesBadStates();
}

// Its head scores a part of the vocabulary.
TEST_F(DeviceDraftTest, Eagle3ReadsStatesWhereTheyWereReceived) {
  const model::ModelConfig config = model::OddDrafterConfig();
  const model::TempDir dir;
  model::WriteCheckpoint(dir.path(), config, 5);
  ExpectReadsStatesWhereTheyWereReceived({dir.path()}, StateWidth(config));
}

TEST_F(DeviceDraftTest, MtpReadsStatesWhereTheyWereReceived) {
  const model::TempDir mimo, target, drafter;
  model::WriteMimo(mimo.path(), model::OddMimoConfig(), 5);
  model::WriteCheckpoint(target.path(), model::OddConfig(), 6);
  model::WriteCheckpoint(drafter.path(), model::OddMtpConfig(), 7);
  for (const Folders& folders :
       {Folders{mimo.path(), mimo.path()}, {drafter.path(), target.path()}}) {
    ExpectReadsStatesWhereTheyWereReceived(folders, model::OddConfig().hidden);
  }
}

// Blocks of one pass, whose levels are drawn one after the other where a head corrects them.
TEST_F(DeviceDraftTest, BlockDraftersReadStatesWhereTheyWereReceived) {
  using model::MarkovKind;
  for (const MarkovKind markov :
       {MarkovKind::kNone, MarkovKind::kVanilla, MarkovKind::kGated, MarkovKind::kRecurrent}) {
    SCOPED_TRACE(static_cast<int>(markov));
    model::ModelConfig config = model::OddBlockConfig(markov);
    const bool sequential = markov != MarkovKind::kNone;
    config.states->block->confidence = config.states->block->confidence_reads_markov = sequential;
    const model::TempDir dir;
    model::WriteCheckpoint(dir.path(), config, 5);
    StateDrafts drafts({dir.path()}, StateWidth(config));
    const std::map<uint64_t, Sent> replies = drafts.Answer();
    EXPECT_EQ(replies.at(1).rows, 1 + 3);
    EXPECT_EQ(replies.at(1).tokens.size(), 1u + 3 + 6);
    EXPECT_EQ(replies.at(3).tokens.size(), 1u + 2 + 4);
    EXPECT_EQ(drafts.passes(), 1u);
    drafts.ExpectRefusesBadStates();
  }
}

}  // namespace
}  // namespace specfabric::draft
