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

enum class Test {
  kLatency,    // am_lat: ping-pong of tensors
  kBandwidth,  // am_bw: a stream of tensors, a window of them outstanding
  kTree,       // a DraftRequest and a DraftReply of 64 nodes, through the codecs
  kLogits,     // nodes x vocabulary bfloat16 by rendezvous, out of and into leased slots
};
const char* Name(Test test);
// InvalidArgument names the allowed ones.
absl::StatusOr<Test> ParseTest(absl::string_view name);

struct Plan {
  Test test = Test::kLatency;
  uint32_t bytes = 8;  // of a tensor; unused by kTree
  int64_t iterations = 100'000;
  int64_t warm_up = 10'000;
  int32_t window = 32;  // of kBandwidth
  transport::MemoryKind memory = transport::MemoryKind::kHost;
};

// InvalidArgument: one line with what was given and what is allowed.
absl::Status Check(const Plan& plan);

std::string Encode(const Plan& plan);
absl::StatusOr<Plan> Decode(absl::string_view text);

// Frame types of the bench's own.
constexpr uint16_t kPlanFrame = 1;   // the client's Plan
constexpr uint16_t kReadyFrame = 2;  // the server is ready for it, or says why not
constexpr uint16_t kTreeFrame = 3;
constexpr uint16_t kTensorType = 4;
constexpr uint8_t kPool = 1;

// Tensors a window may hold, and the slots each side needs for them.
constexpr int32_t kMaxWindow = 1024;
int32_t SlotsFor(const Plan& plan);

}  // namespace specfabric::perftest

#endif  // SPECFABRIC_APP_PERFTEST_PLAN_H_
