#ifndef SPECFABRIC_TESTS_TRANSPORT_TENSOR_NODE_H_
#define SPECFABRIC_TESTS_TRANSPORT_TENSOR_NODE_H_

// A Node with a pool of slots that records received tensors.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/transport/node.h"
#include "tests/transport/pattern.h"
#include "transport/fabric.h"

namespace specfabric::transport {

inline int32_t Count(const SlotPool& pool, SlotState state) {
  return pool.CountStates()[static_cast<size_t>(state)];
}

class TensorNode {
 public:
  static constexpr uint8_t kPool = 1;

  struct Arrived {
    PeerId peer = 0;
    uint16_t type = 0;
    TensorFields fields;
    size_t bytes = 0;
    size_t wrong_bytes = 0;  // against the pattern of its tag
    bool in_slot = false;
    Lease lease = {};  // where the test keeps them
  };
  struct Refused {
    PeerId peer = 0;
    TensorFields fields;
    absl::Status status;
  };
  struct Settings {
    int32_t slots = 8;
    size_t slot_bytes = 1 << 20;
    bool keep_leases = false;
    std::function<bool(PeerId, const TensorFields&)> admit = {};
    FabricOptions options = LoopbackOptions();
  };

  explicit TensorNode(const Settings& settings)
      : node_(settings.options, /*echo=*/false, Handler(settings)) {
    SlotPoolOptions pool;
    pool.slots = settings.slots;
    pool.slot_bytes = settings.slot_bytes;
    pool_ = node_.fabric().AddPool(kPool, pool).value();
  }

  Node& node() { return node_; }
  Fabric& fabric() { return node_.fabric(); }
  SlotPool& pool() { return *pool_; }
  FabricStats stats() { return node_.fabric().stats(); }

  // Fills a slot with the pattern of `fields.tag` and sends it.
  absl::Status SendPattern(PeerId peer, uint16_t type, const TensorFields& fields, uint32_t bytes) {
    auto lease = pool_->Acquire(fields.fence);
    if (!lease.ok()) return lease.status();
    FillPattern(lease->data(), bytes, fields.tag);
    return fabric().SendTensor(peer, type, fields, *std::move(lease), bytes);
  }

  bool WaitForTensors(size_t count) {
    return node_.WaitFor([&] { return arrived_.size() >= count; });
  }
  bool WaitForRefused(size_t count) {
    return node_.WaitFor([&] { return refused_.size() >= count; });
  }
  // Waits until so many were received or refused.
  bool WaitForOutcomes(size_t count) {
    return node_.WaitFor([&] { return arrived_.size() + refused_.size() >= count; });
  }
  bool WaitForAllFree() {
    return Eventually([&] { return Count(*pool_, SlotState::kFree) == pool_->options().slots; });
  }
  std::vector<Arrived> TakeTensors() {
    std::vector<Arrived> taken;
    node_.Note([&] { taken.swap(arrived_); });
    return taken;
  }
  std::vector<Refused> TakeRefused() {
    std::vector<Refused> taken;
    node_.Note([&] { taken.swap(refused_); });
    return taken;
  }

 private:
  FabricHandler Handler(const Settings& settings) {
    FabricHandler handler;
    handler.admit_tensor = settings.admit;
    handler.on_tensor = [this, keep = settings.keep_leases](PeerId peer, Tensor tensor) {
      Arrived arrived = {peer, tensor.type, tensor.fields, tensor.bytes.size()};
      arrived.wrong_bytes = CountWrong(tensor.bytes, tensor.fields.tag);
      arrived.in_slot = static_cast<bool>(tensor.lease);
      if (keep) arrived.lease = std::move(tensor.lease);
      tensor.lease.Release();
      node_.Note([&] { arrived_.push_back(std::move(arrived)); });
    };
    handler.on_refused = [this](PeerId peer, const TensorFields& fields,
                                const absl::Status& status) {
      node_.Note([&] { refused_.push_back({peer, fields, status}); });
    };
    return handler;
  }

  std::vector<Arrived> arrived_;
  std::vector<Refused> refused_;
  std::shared_ptr<SlotPool> pool_;
  Node node_;  // last: destroyed before what its callbacks use
};

// A connected pair: `sender` connected, `receiver` accepted.
struct TensorPair {
  TensorPair(const TensorNode::Settings& sends, const TensorNode::Settings& receives)
      : receiver(receives), sender(sends) {
    address = receiver.fabric().Listen(AnyPort()).value();
    to_receiver = sender.fabric().Connect(address).value();
    if (!sender.node().WaitForOpen(1) || !receiver.node().WaitForOpen(1)) return;
    to_sender = receiver.node().opened()[0].peer;
  }
  explicit TensorPair(const TensorNode::Settings& settings) : TensorPair(settings, settings) {}
  bool ok() const { return to_sender != 0; }

  TensorNode receiver;
  TensorNode sender;
  std::string address;
  PeerId to_receiver = 0;
  PeerId to_sender = 0;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TESTS_TRANSPORT_TENSOR_NODE_H_
