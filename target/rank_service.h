#ifndef SPECFABRIC_TARGET_RANK_SERVICE_H_
#define SPECFABRIC_TARGET_RANK_SERVICE_H_

// A rank process: it joins the leader of a target group (target/group_leader.h), loads the ranks
// that the leader assigns to it, and runs the steps that the leader sends. It serves one leader
// once, and ends when that leader ends or is lost.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "metrics/registry.h"
#include "transport/fabric.h"

namespace specfabric::target {

struct RankServiceOptions {
  std::string model_dir;
  std::string model_name;
  uint64_t tokenizer_fingerprint = 0;
  int threads = 1;   // inside one rank
  std::string join;  // "host:port" of the leader, tried until it answers
  transport::FabricOptions fabric;
};

class RankService {
 public:
  // Errors are LoadModelConfig's and Link::Create's and Start's. One thread of the service's own
  // does the rest.
  static absl::StatusOr<std::unique_ptr<RankService>> Start(const RankServiceOptions& options,
                                                            metrics::Registry* registry);
  ~RankService();

  // The ranks are loaded.
  bool ready() const;
  // Asks the service to end, without waiting for it; its leader takes that for a loss. False: it
  // was ending already.
  bool Stop();
  // The service has ended: result() says why. OK: its leader has ended, or Stop was called.
  bool finished() const;
  // The service should have ended a while ago, but a rank is stuck, for instance in a collective
  // whose other GPUs are gone. That cannot be cancelled: the process has to be ended.
  bool hangs() const;
  // Only after finished() has returned true. InvalidArgument: the checkpoint is not the leader's.
  // Unavailable: the leader is lost. Otherwise RankModel::Load's error, or that of a step.
  absl::Status result() const;

 private:
  class Impl;
  explicit RankService(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_RANK_SERVICE_H_
