#ifndef SPECFABRIC_TARGET_RANK_SERVICE_H_
#define SPECFABRIC_TARGET_RANK_SERVICE_H_

// A process that holds some ranks of a target group, as a process sees it: it joins the group's
// leader (target/group_leader.h), loads the ranks it is given, and runs the steps it is sent. It
// serves one leader, once: when that leader goes, so does it.

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
  std::string join;  // "host:port" of the leader, tried until it is there
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
  // Asks the service to end, which its leader takes for a loss, without waiting for it. False: it
  // was ending already.
  bool Stop();
  // The service has ended: result() says why. OK: its leader has ended in peace, or Stop.
  bool finished() const;
  // The service should have ended a while ago, but a rank is stuck, as in a collective whose other
  // GPUs are gone: that cannot be cancelled, and only ending the process helps.
  bool hangs() const;
  // InvalidArgument: the checkpoint is not the leader's. Unavailable: the leader is lost. Or
  // RankModel::Load's, or the step's that failed.
  absl::Status result() const;

 private:
  class Impl;
  explicit RankService(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_RANK_SERVICE_H_
