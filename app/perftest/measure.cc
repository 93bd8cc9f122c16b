#include "app/perftest/measure.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "app/perftest/inline_port.h"
#include "app/perftest/pattern.h"
#include "app/perftest/threaded_port.h"
#include "base/status.h"
#include "schemas/messages.h"
#include "transport/gpu.h"
#include "transport/ucx_context.h"

namespace specfabric::perftest {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTreeNodes = 64;
// After so many tensors of a bandwidth test the receiver tells the sender that it has them.
constexpr uint32_t kAcknowledgeBytes = 8;

// The time stamp counter where there is one: asking the clock takes as long as a short message.
uint64_t Ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  return Clock::now().time_since_epoch().count();
#endif
}

double Micros(Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

std::vector<uint8_t> Bytes(absl::string_view text) { return {text.begin(), text.end()}; }

// One round's request: the tokens that were accepted last, and what goes with them.
schemas::DraftRequest MakeRequest() {
  schemas::DraftRequest request;
  request.target_incarnation = 0x1234567890abcdef;
  request.sequence = 17;
  request.base_length = 300;
  request.base_hash = 0xfedcba0987654321;
  request.append_tokens = {1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008};
  request.max_nodes = kTreeNodes;
  request.time_budget = 2 * base::kMillisecond;
  request.prompt_length = 280;
  return request;
}

// A chain of 16 with 3 siblings at every step, into a reply whose memory is used again.
void Answer(const schemas::DraftRequest& request, schemas::DraftReply& reply) {
  reply.target_incarnation = request.target_incarnation;
  reply.sequence = request.sequence;
  reply.round = request.round;
  reply.request_id = request.request_id;
  reply.tree.parents.resize(1);
  reply.tree.tokens.resize(1);
  reply.tree.scores.resize(1);
  const int nodes = std::min(request.max_nodes, kTreeNodes);
  for (int node = 0; node < nodes; ++node) {
    reply.tree.Add(node < 4 ? 0 : node / 4 * 4 - 3, 1000 + node, -0.5f * (node % 4));
  }
  reply.draft_time = 500 * base::kMicrosecond;
}

template <typename Port>
absl::Status Gone(Port& port) {
  const absl::Status status = port.closed();
  return status.ok() ? absl::UnavailableError("the peer has closed") : status;
}

template <typename Port>
absl::Status Ping(Port& port, const Plan& plan) {
  if (plan.test == TestKind::kLogits) {
    const absl::Status sent = port.SendSlot(plan.bytes);
    if (!sent.ok()) return sent;
  } else {
    port.Post(plan.bytes);
  }
  return absl::OkStatus();
}

// A round trip of tensors, and how long it took.
template <typename Port>
absl::Status RoundTrip(Port& port, const Plan& plan) {
  const absl::Status sent = Ping(port, plan);
  if (!sent.ok()) return sent;
  return port.AwaitTensor() ? absl::OkStatus() : Gone(port);
}

template <typename Port>
absl::Status TreeRoundTrip(Port& port, schemas::DraftRequest& request) {
  ++request.round;
  ++request.request_id;
  port.SendFrame(kTreeFrame, schemas::Encode(request));
  const auto frame = port.AwaitFrame();
  if (!frame.ok()) return frame.status();
  const auto reply = schemas::Decode<schemas::DraftReply>(frame->payload);
  if (!reply.ok()) return reply.status();
  if (reply->round != request.round || reply->tree.size() != 1 + kTreeNodes) {
    return absl::InternalError("the server's reply is to another request");
  }
  return absl::OkStatus();
}

template <typename Once>
absl::Status Repeat(const Plan& plan, Samples& samples, Once once) {
  for (int64_t i = 0; i < plan.warm_up; ++i) {
    const absl::Status status = once();
    if (!status.ok()) return status;
  }
  samples.one_way_us.resize(plan.iterations);
  const Clock::time_point begin = Clock::now();
  const uint64_t first = Ticks();
  uint64_t last = first;
  for (int64_t i = 0; i < plan.iterations; ++i) {
    const absl::Status status = once();
    if (!status.ok()) return status;
    const uint64_t now = Ticks();
    samples.one_way_us[i] = static_cast<double>(now - last) / 2;
    last = now;
  }
  const double us = Micros(Clock::now() - begin);
  const double us_a_tick = us / static_cast<double>(last - first);
  for (double& sample : samples.one_way_us) sample *= us_a_tick;
  samples.seconds = us * 1e-6;
  return absl::OkStatus();
}

// A window of tensors under way at the sender; the server acknowledges each half window, so that no
// more than two windows are ever anywhere.
template <typename Port>
absl::Status Stream(Port& port, const Plan& plan, int64_t count) {
  const int64_t half = std::max<int64_t>(1, plan.window / 2);
  int64_t unacknowledged = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (!port.AwaitPosts(plan.window - 1)) return Gone(port);
    port.Post(plan.bytes);
    if (++unacknowledged == 2 * half || i + 1 == count) {
      if (!port.AwaitTensor()) return Gone(port);
      unacknowledged -= half;
    }
  }
  return absl::OkStatus();
}

template <typename Port>
absl::Status MeasureBandwidth(Port& port, const Plan& plan, Samples& samples) {
  absl::Status status = Stream(port, plan, plan.warm_up);
  if (!status.ok()) return status;
  const Clock::time_point begin = Clock::now();
  status = Stream(port, plan, plan.iterations);
  samples.seconds = Micros(Clock::now() - begin) * 1e-6;
  return status;
}

template <typename Port>
absl::Status ServeBandwidth(Port& port, const Plan& plan, int64_t count) {
  const int64_t half = std::max<int64_t>(1, plan.window / 2);
  for (int64_t i = 1; i <= count; ++i) {
    if (!port.AwaitTensor()) return Gone(port);
    if (i % half == 0 || i == count) port.Post(kAcknowledgeBytes);
  }
  return absl::OkStatus();
}

template <typename Port>
absl::Status ServeTree(Port& port, int64_t count) {
  schemas::DraftReply reply;
  for (int64_t i = 0; i < count; ++i) {
    const auto frame = port.AwaitFrame();
    if (!frame.ok()) return frame.status();
    const auto request = schemas::Decode<schemas::DraftRequest>(frame->payload);
    if (!request.ok()) return request.status();
    Answer(*request, reply);
    port.SendFrame(kTreeFrame, schemas::Encode(reply));
  }
  return absl::OkStatus();
}

template <typename Port>
absl::Status Serve(Port& port, const Plan& plan) {
  const int64_t count = plan.warm_up + plan.iterations;
  if (plan.test == TestKind::kTree) return ServeTree(port, count);
  if (plan.test == TestKind::kBandwidth) {
    const absl::Status status = ServeBandwidth(port, plan, plan.warm_up);
    return status.ok() ? ServeBandwidth(port, plan, plan.iterations) : status;
  }
  for (int64_t i = 0; i < count; ++i) {
    if (!port.AwaitTensor()) return Gone(port);
    const absl::Status sent = Ping(port, plan);
    if (!sent.ok()) return sent;
  }
  return absl::OkStatus();
}

constexpr uint8_t kClientSeed = 1, kServerSeed = 2;

// What comes of the next tensor that was to be kept; acknowledgements may come before it.
template <typename Port>
absl::Status AwaitPattern(Port& port, uint32_t bytes, uint8_t seed) {
  for (;;) {
    if (!port.AwaitTensor()) return Gone(port);
    const auto taken = port.Taken();
    if (!taken) continue;
    return taken->ok() ? CheckPattern(**taken, bytes, seed) : taken->status();
  }
}

// After what was measured, where nobody has time to look: one tensor each way.
template <typename Port>
absl::Status CheckData(Port& port, const Plan& plan) {
  port.SendFrame(kCheckFrame, {});
  absl::Status sent = port.SendSlot(plan.bytes, Pattern(plan.bytes, kClientSeed));
  if (!sent.ok()) return sent;
  const auto found = port.AwaitFrame();
  if (!found.ok()) return found.status();
  if (!found->payload.empty()) {
    return absl::InternalError(absl::StrCat(
        "what the server got: ", std::string(found->payload.begin(), found->payload.end())));
  }
  absl::Status back = AwaitPattern(port, plan.bytes, kServerSeed);
  if (!absl::IsInternal(back)) return back;
  return absl::InternalError(absl::StrCat("what came back: ", base::Message(back)));
}

template <typename Port>
absl::Status ServeCheck(Port& port, const Plan& plan) {
  const absl::Status found = AwaitPattern(port, plan.bytes, kClientSeed);
  port.SendFrame(kCheckFrame, Bytes(found.message()));
  return found.ok() ? port.SendSlot(plan.bytes, Pattern(plan.bytes, kServerSeed)) : found;
}

template <typename Port>
absl::StatusOr<Plan> AwaitPlan(Port& port) {
  const auto frame = port.AwaitFrame();
  if (!frame.ok()) return frame.status();
  const auto plan = Decode(absl::string_view(reinterpret_cast<const char*>(frame->payload.data()),
                                             frame->payload.size()));
  if (frame->type == kPlanFrame && plan.ok()) return plan;
  return absl::InvalidArgumentError(
      absl::StrCat("the client's plan: ",
                   plan.ok() ? "a frame of another type came instead" : plan.status().message()));
}

}  // namespace

template <typename Port>
absl::Status Prepare(Port& port, const Plan& plan) {
  if (plan.test == TestKind::kTree) return absl::OkStatus();
  transport::SlotPoolOptions pool;
  pool.kind = plan.memory;
  pool.slot_bytes = std::max(plan.bytes, kAcknowledgeBytes);
  pool.slots = SlotsFor(plan);
  return port.Prepare(pool);
}

template <typename Port>
absl::StatusOr<Samples> RunClient(Port& port, const Plan& plan) {
  port.SendFrame(kPlanFrame, Bytes(Encode(plan)));
  const auto ready = port.AwaitFrame();
  if (!ready.ok()) return ready.status();
  if (!ready->payload.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the server refused: ", std::string(ready->payload.begin(), ready->payload.end())));
  }
  Samples samples;
  samples.wire = port.Wire();
  samples.payload_bytes = plan.bytes;
  absl::Status status;
  const uint64_t copied = port.bytes_copied();
  if (plan.test == TestKind::kBandwidth) {
    status = MeasureBandwidth(port, plan, samples);
  } else if (plan.test == TestKind::kTree) {
    schemas::DraftRequest request = MakeRequest();
    schemas::DraftReply reply;
    Answer(request, reply);
    samples.payload_bytes = schemas::Encode(request).size() + schemas::Encode(reply).size();
    status = Repeat(plan, samples, [&] { return TreeRoundTrip(port, request); });
  } else {
    status = Repeat(plan, samples, [&] { return RoundTrip(port, plan); });
  }
  if (!status.ok()) return status;
  samples.bytes_copied = port.bytes_copied() - copied;
  if (plan.test != TestKind::kTree) status = CheckData(port, plan);
  if (!status.ok()) return status;
  samples.payload_wire = port.PayloadWire(plan.memory);
  if (plan.memory == transport::MemoryKind::kCuda && transport::IsRdma(samples.payload_wire)) {
    samples.gpudirect = transport::FindGpuDirect().description;
  }
  return samples;
}

template <typename Port>
absl::Status RunServer(Port& port) {
  const auto plan = AwaitPlan(port);
  if (!plan.ok() && !absl::IsInvalidArgument(plan.status())) return plan.status();
  const absl::Status ready = plan.ok() ? Prepare(port, *plan) : plan.status();
  port.SendFrame(kReadyFrame, Bytes(ready.message()));
  if (ready.ok()) {
    const absl::Status served = Serve(port, *plan);
    if (!served.ok()) return served;
  }
  // The client closes once it has what we sent.
  const auto last = port.AwaitFrame();
  if (!last.ok() || last->type != kCheckFrame || !ready.ok()) return ready;
  const absl::Status checked = ServeCheck(port, *plan);
  (void)port.AwaitFrame();
  return checked;
}

template absl::Status Prepare(InlinePort&, const Plan&);
template absl::Status Prepare(ThreadedPort&, const Plan&);
template absl::StatusOr<Samples> RunClient(InlinePort&, const Plan&);
template absl::StatusOr<Samples> RunClient(ThreadedPort&, const Plan&);
template absl::Status RunServer(InlinePort&);
template absl::Status RunServer(ThreadedPort&);

}  // namespace specfabric::perftest
