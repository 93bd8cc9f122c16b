// What the project calls of NCCL, for ranks that are threads of this process.

#include <nccl.h>

#include <barrier>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

struct ncclComm {
  struct Group {
    explicit Group(int ranks) : data(ranks), barrier(ranks) {}
    std::vector<const float*> data;
    std::barrier<> barrier;
  };
  std::shared_ptr<Group> group;
  int rank = 0;
};

namespace {

std::mutex mutex;
int drawn = 0;
std::map<std::string, std::weak_ptr<ncclComm::Group>> groups;

// Every rank's data, [ranks][count], once all have come; nobody writes his before all have read.
std::vector<float> Gathered(const void* data, size_t count, ncclComm* communicator) {
  ncclComm::Group& group = *communicator->group;
  group.data[communicator->rank] = static_cast<const float*>(data);
  group.barrier.arrive_and_wait();
  std::vector<float> all;
  for (const float* part : group.data) all.insert(all.end(), part, part + count);
  group.barrier.arrive_and_wait();
  return all;
}

}  // namespace

extern "C" {

const char* ncclGetErrorString(ncclResult_t /*result*/) { return "emulated error"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(mutex);
  std::memset(id->internal, 0xff, sizeof(id->internal));  // as a float it is no number
  std::memcpy(id->internal, &++drawn, sizeof(drawn));
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank) {
  const std::lock_guard lock(mutex);
  std::weak_ptr<ncclComm::Group>& known = groups[std::string(id.internal, sizeof(id.internal))];
  std::shared_ptr<ncclComm::Group> group = known.lock();
  if (group == nullptr) known = group = std::make_shared<ncclComm::Group>(ranks);
  *communicator = new ncclComm{group, rank};
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  delete communicator;
  return ncclSuccess;
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t /*type*/,
                           ncclComm_t communicator, cudaStream_t /*stream*/) {
  const std::vector<float> all = Gathered(from, count, communicator);
  std::memcpy(to, all.data(), all.size() * sizeof(float));
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t /*type*/,
                           ncclRedOp_t /*operation*/, ncclComm_t communicator,
                           cudaStream_t /*stream*/) {
  const std::vector<float> all = Gathered(from, count, communicator);
  float* const sums = static_cast<float*>(to);
  for (size_t i = 0; i < count; ++i) {
    sums[i] = 0;
    for (size_t part = 0; part < all.size(); part += count) sums[i] += all[part + i];
  }
  return ncclSuccess;
}

}  // extern "C"
