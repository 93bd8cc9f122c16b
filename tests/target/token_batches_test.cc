#include "target/token_batches.h"

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::target {
namespace {

using link::PeerId;
using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

schemas::Tokens Entry(uint64_t request, size_t tokens = 1) {
  schemas::Tokens entry;
  entry.request_id = request;
  entry.tokens.assign(tokens, 7);
  return entry;
}

// Records the peer and the requests of each message.
struct Recorder {
  std::vector<std::pair<PeerId, std::vector<uint64_t>>> sent;
  absl::Status answer;

  SendTokens Function() {
    return [this](PeerId peer, const schemas::TokensBatch& batch) {
      std::vector<uint64_t> requests;
      for (const schemas::Tokens& tokens : batch.sequences) requests.push_back(tokens.request_id);
      sent.emplace_back(peer, std::move(requests));
      return answer;
    };
  }
};

TEST(TokenBatchesTest, OneMessageForEachPeer) {
  TokenBatches batches;
  Recorder recorder;
  batches.Add(1, Entry(10));
  batches.Add(2, Entry(20));
  batches.Add(1, Entry(11));
  batches.Add(1, Entry(10));
  batches.Send(recorder.Function());
  EXPECT_THAT(recorder.sent,
              UnorderedElementsAre(Pair(1, ElementsAre(10, 11, 10)), Pair(2, ElementsAre(20))));
  batches.Send(recorder.Function());
  EXPECT_EQ(recorder.sent.size(), 2u);  // there was nothing left to send
}

TEST(TokenBatchesTest, SplitsLargeBatches) {
  TokenBatches batches(2000);
  Recorder recorder;
  batches.Add(1, Entry(1, 200));
  batches.Add(1, Entry(2, 200));
  batches.Add(1, Entry(3, 200));
  batches.Add(1, Entry(4, 10'000));  // larger than the limit: alone
  batches.Add(1, Entry(5));
  batches.Send(recorder.Function());
  EXPECT_THAT(recorder.sent, ElementsAre(Pair(1, ElementsAre(1, 2)), Pair(1, ElementsAre(3)),
                                         Pair(1, ElementsAre(4)), Pair(1, ElementsAre(5))));
}

TEST(TokenBatchesTest, LogprobsCountAsBytes) {
  TokenBatches batches(4000);
  Recorder recorder;
  for (uint64_t request = 1; request <= 4; ++request) {
    schemas::Tokens entry = Entry(request);
    entry.prompt_logprobs.resize(100);
    for (base::TokenLogprobs& scored : entry.prompt_logprobs) scored.top.resize(2);
    batches.Add(1, std::move(entry));
  }
  batches.Send(recorder.Function());
  EXPECT_EQ(recorder.sent.size(), 4u);
}

TEST(TokenBatchesTest, EveryBatchDecodes) {
  TokenBatches batches;
  for (uint64_t request = 0; request < 2 * schemas::kMaxBatchSequences + 1; ++request) {
    batches.Add(1, Entry(request));
  }
  uint64_t next = 0;
  batches.Send([&](PeerId, const schemas::TokensBatch& batch) {
    const std::vector<uint8_t> payload = schemas::Encode(batch);
    EXPECT_LT(payload.size(), size_t{3} << 20);
    const auto decoded = schemas::Decode<schemas::TokensBatch>(payload);
    EXPECT_TRUE(decoded.ok()) << decoded.status();
    for (const schemas::Tokens& tokens : decoded->sequences) {
      EXPECT_EQ(tokens.request_id, next++);
    }
    return absl::OkStatus();
  });
  EXPECT_EQ(next, 2 * schemas::kMaxBatchSequences + 1);
}

TEST(TokenBatchesTest, AfterAnErrorThePeerGetsNothingMore) {
  TokenBatches batches(1);
  Recorder recorder;
  recorder.answer = absl::NotFoundError("gone");
  batches.Add(1, Entry(1));
  batches.Add(1, Entry(2));
  batches.Add(2, Entry(3));
  batches.Send(recorder.Function());
  EXPECT_THAT(recorder.sent,
              UnorderedElementsAre(Pair(1, ElementsAre(1)), Pair(2, ElementsAre(3))));
  recorder.answer = absl::OkStatus();
  recorder.sent.clear();
  batches.Add(1, Entry(4));
  batches.Send(recorder.Function());
  EXPECT_THAT(recorder.sent, ElementsAre(Pair(1, ElementsAre(4))));
}

}  // namespace
}  // namespace specfabric::target
