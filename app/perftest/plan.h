#ifndef SPECFABRIC_APP_PERFTEST_PLAN_H_
#define SPECFABRIC_APP_PERFTEST_PLAN_H_

// One measurement, as the client asks for it and tells the server.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/slot_pool.h"

namespace specfabric::perftest {

enum class TestKind {
  kLatency,    // am_lat: ping-pong of tensors
  kBandwidth,  // am_bw: a stream of tensors, a window of them outstanding
  kTree,       // a DraftRequest and a DraftReply of 64 nodes, through the codecs
  kLogits,     // nodes x vocabulary bfloat16 by rendezvous, out of and into leased slots
};
const char* Name(TestKind test);
// InvalidArgument names the allowed ones.
absl::StatusOr<TestKind> ParseTest(absl::string_view name);
absl::StatusOr<transport::MemoryKind> ParseMemory(absl::string_view name);

struct Plan {
  TestKind test = TestKind::kLatency;
  uint32_t bytes = 8;  // of a tensor; unused by kTree
  int64_t iterations = 100'000;
  int64_t warm_up = 10'000;
  int32_t window = 32;  // of kBandwidth
  transport::MemoryKind memory = transport::MemoryKind::kHost;
};

// InvalidArgument: one line with what was given and what is allowed, in terms of flags.
absl::Status CheckRange(absl::string_view flag, int64_t given, int64_t low, int64_t high);
absl::Status Check(const Plan& plan);

// As JSON, for the server, which trusts none of it. InvalidArgument: not readable, or as Check.
std::string Encode(const Plan& plan);
absl::StatusOr<Plan> Decode(absl::string_view text);

// Frame types of the bench's own.
constexpr uint16_t kPlanFrame = 1;   // the client's Plan
constexpr uint16_t kReadyFrame = 2;  // the server is ready for it, or says why not
constexpr uint16_t kTreeFrame = 3;
constexpr uint16_t kTensorType = 4;
// From the client: a tensor with this tag comes, of which the server then says in another such
// frame what it found, empty where all is as it was sent; and sends one of its own.
constexpr uint16_t kCheckFrame = 5;
constexpr uint64_t kCheckTag = 1;
constexpr uint8_t kPool = 1;

constexpr int64_t kMaxBytes = int64_t{1} << 30;
constexpr int64_t kMaxIterations = 100'000'000;
constexpr int32_t kMaxWindow = 1024;
// The slots each side needs.
int32_t SlotsFor(const Plan& plan);

}  // namespace specfabric::perftest

#endif  // SPECFABRIC_APP_PERFTEST_PLAN_H_
