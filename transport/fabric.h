#ifndef SPECFABRIC_TRANSPORT_FABRIC_H_
#define SPECFABRIC_TRANSPORT_FABRIC_H_

// Framed messages and tensors between processes over UCX active messages: one context, one worker,
// one progress thread. Does not interpret the frames.
//
// Threads: every public method may be called from any thread; work is handed to the progress
// thread, which alone touches UCX and which runs all callbacks. Callbacks must not block and may
// call Send, Close, Connect (these only enqueue) and Transport. A callback for a peer may run
// before the Connect that made it has returned.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "transport/faults.h"
#include "transport/listen_socket.h"
#include "transport/slot_pool.h"

namespace specfabric::transport {

// Names one connection of this process; never reused. 0: none.
using PeerId = uint64_t;

struct FabricOptions {
  base::Nanos spin = 20 * base::kMicrosecond;      // progress without sleeping after the last event
  base::Nanos max_sleep = 5 * base::kMillisecond;  // bound of one sleep (a wake-up can be missed)
  base::Nanos connect_timeout = 2 * base::kSecond;
  // An open peer that sent nothing for so long is closed; a quiet one is pinged five times in that
  // time. 0: never.
  base::Nanos silence_timeout = 5 * base::kSecond;
  // A tensor whose receive takes longer is given up, its slot quarantined. 0: never.
  base::Nanos receive_timeout = 5 * base::kSecond;
  uint32_t max_frame_bytes = 64u << 20;  // a larger payload is refused before allocation; the peer
                                         // is closed
  int32_t max_outstanding_sends = 1024;  // per peer, at most 65535; Send past it is
                                         // ResourceExhausted
  uint64_t max_outstanding_bytes = 256u << 20;  // per peer, likewise; one frame is always allowed
  int32_t max_peers = 4096;                     // further inbound connections are refused
  bool shared_memory = true;                    // use it between processes of one machine
  // Network devices UCX may use and listens on, as in UCX_NET_DEVICES ("lo", "mlx5_0:1,eth0");
  // empty: all of them. UCX's own ports do not require the handshake: a host that reaches them can
  // harm the process, so name only devices of a trusted network.
  std::string net_devices;
  // Peers prove to each other that they know it before UCX listens for them. Empty: every peer
  // whose secret is empty too is accepted.
  std::string join_secret;
  // Refuse to start without an RDMA device, and refuse connections whose wire is neither RDMA nor
  // shared memory.
  bool require_rdma = false;
  // Refuse to start where UCX cannot move GPU memory, or cannot move it by RDMA.
  bool require_gpudirect = false;
  // The GPU of pools of MemoryKind::kCuda, by its ordinal in this process: UCX starts in its
  // context. -1: GPU 0, from the first such pool on.
  int gpu = -1;
  FaultOptions faults;  // the test hook: fault injection
};

// A received message. The payload is private memory that the receiver may keep: the peer cannot
// change it after it was validated.
struct Frame {
  uint16_t type = 0;
  std::vector<uint8_t> payload;
};

// What the receiver must know of a tensor before it arrives.
struct TensorFields {
  Fence fence = {};
  uint8_t pool = 0;  // the receiver's pool that it goes to, at most 127
  uint64_t tag = 0;  // joins it to a message; opaque here
};

// A received tensor. From 32 KiB on it lies in a slot of the pool that it names, which `lease`
// holds: received there by rendezvous, or copied from UCX's buffer where UCX delivers it eagerly
// (it may do so with the first of a connection, of any size). A smaller one comes eagerly: `lease`
// is empty, and `bytes` are UCX's own buffer, in host memory, which lasts for the callback only and
// which a hostile peer of the same machine might still change.
struct Tensor {
  uint16_t type = 0;
  TensorFields fields;
  absl::Span<const uint8_t> bytes;
  Lease lease;
};

struct FabricHandler {
  // A connection is open: we accepted it (inbound) or made it. `address` is "host:port".
  std::function<void(PeerId, const std::string& address, bool inbound)> on_open;
  std::function<void(PeerId, Frame)> on_frame;
  // Called before a slot is taken: whether the tensor is still wanted. Unset: all are.
  std::function<bool(PeerId, const TensorFields&)> admit_tensor;
  std::function<void(PeerId, Tensor&&)> on_tensor;
  // A tensor that was announced is not received: ResourceExhausted (no free slot), InvalidArgument
  // (no such pool, or its slots are too small), DeadlineExceeded (receive_timeout).
  std::function<void(PeerId, const TensorFields&, const absl::Status&)> on_refused;
  // Exactly once for each PeerId that Connect returned or on_open named: peer death, timeout,
  // refusal, malformed frame, or OK after our own Close. No callback names that peer afterwards.
  std::function<void(PeerId, const absl::Status&)> on_close;
};

// Counters since start (`releasing` is a current value), for metrics; read from any thread.
struct FabricStats {
  uint64_t frames_sent = 0, frames_received = 0, bytes_sent = 0, bytes_received = 0;
  uint64_t tensors_sent = 0, tensors_received = 0;  // among the frames
  uint64_t opened = 0, closed = 0, refused_frames = 0, send_errors = 0, connect_failures = 0;
  uint64_t wakeups = 0;
  // Payload bytes that the transport copied: small messages, to private memory; large tensors that
  // UCX delivered eagerly, to their slots.
  uint64_t bytes_copied = 0;
  uint64_t unattributed_frames = 0;   // named no open connection; dropped
  uint64_t refused_secrets = 0;       // peers that did not prove the join secret
  uint64_t non_rdma_connections = 0;  // connections closed because of require_rdma
  uint64_t silent_peers = 0;          // closed because of silence_timeout
  uint64_t stale_tensors = 0;         // not admitted
  uint64_t refused_tensors = 0;       // no slot, no pool, too large
  uint64_t late_tensors = 0;          // receive_timeout
  uint64_t back_pressure = 0;         // Sends that were ResourceExhausted
  uint64_t faults = 0;                // frames with injected faults, simulated_rtt not counted
  uint64_t restarts = 0;              // of UCX, after a lost peer had blocked shared memory
  uint64_t releasing = 0;             // now: closed connections whose buffers UCX still holds
};

// An open connection, and what payload it has carried.
struct ConnectionStats {
  PeerId peer = 0;
  std::string wire;  // as Fabric::Transport says
  uint64_t bytes_sent = 0, bytes_received = 0;
};

// The memory of Fabric::AddPool.
struct PoolStats {
  uint8_t id = 0;
  MemoryKind kind = MemoryKind::kHost;
  size_t bytes = 0;                             // registered
  std::array<int32_t, kSlotStates> slots = {};  // by SlotState
};

class Fabric {
 public:
  // Starts the progress thread. Unavailable: UCX could not start (the message carries its reason).
  // UCX_* variables of the environment override the options. Create sets those that the options
  // need and that are unset (UCX takes some settings in no other way), so no other thread may read
  // or change the environment meanwhile. No callback runs before Listen or Connect.
  static absl::StatusOr<std::unique_ptr<Fabric>> Create(const FabricOptions& options,
                                                        FabricHandler handler);
  // FailedPrecondition where Create would fail because of require_rdma or require_gpudirect. Starts
  // nothing and takes milliseconds; treats the environment as Create does.
  static absl::Status CheckRequirements(const FabricOptions& options);
  // Closes all peers with FORCE (on_close is called for each), ends the progress thread. No
  // callback runs after it. Not from a callback.
  ~Fabric();

  // Listens on "host:port" (port 0: any free one). Returns the bound address. AlreadyExists when
  // the port is taken. Once only.
  absl::StatusOr<std::string> Listen(const std::string& address);
  // The same on a socket that listens already.
  absl::StatusOr<std::string> Listen(ListenSocket socket);
  // Returns without waiting for the peer; on_open or on_close follows within
  // options.connect_timeout. A host name is looked up on the calling thread.
  absl::StatusOr<PeerId> Connect(const std::string& address);
  // Queues one frame; order between frames is not promised. The payload is kept until UCX is done
  // with it. NotFound: the peer is closed. ResourceExhausted: too many sends outstanding.
  absl::Status Send(PeerId peer, uint16_t type, std::vector<uint8_t> payload);
  // Registers memory for tensors, and makes `id` its name in the TensorFields of peers that send to
  // this process. AlreadyExists: the id is taken. ResourceExhausted: no memory, or it cannot be
  // registered. FailedPrecondition: UCX does not see memory of this kind.
  absl::StatusOr<std::shared_ptr<SlotPool>> AddPool(uint8_t id, const SlotPoolOptions& options);
  // Queues the first `bytes` of a slot, which goes back to its pool when UCX is done with it. The
  // slot's pool must be of this fabric. `fields.fence` should be the lease's. Otherwise like Send.
  // With MemoryKind::kCuda the kernels that fill the slot must have finished.
  absl::Status SendTensor(PeerId peer, uint16_t type, const TensorFields& fields, Lease lease,
                          uint32_t bytes);
  // Waits until nothing is outstanding to open peers, so that what was sent before leaves before
  // the fabric ends; false: not within `timeout`. Not from a callback.
  bool Flush(base::Nanos timeout);
  void Close(PeerId peer);

  // The wire UCX chose for this peer, e.g. "posix/memory" or "tcp/eth0"; empty if not known. Waits
  // for the progress thread's next turn.
  std::string Transport(PeerId peer) const;
  // The wires that carried the bytes of large tensors sent to this peer out of such memory, e.g.
  // "cuda_ipc/cuda", which need not be the one above. Empty: none has been sent yet, or this UCX
  // does not tell (before 1.16). Waits likewise.
  std::string PayloadTransport(PeerId peer, MemoryKind kind) const;
  // The open connections and the pools.
  std::vector<ConnectionStats> Connections() const;
  std::vector<PoolStats> Pools() const;
  FabricStats stats() const;

 private:
  class Impl;
  explicit Fabric(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_FABRIC_H_
