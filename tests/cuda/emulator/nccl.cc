// What the project calls of NCCL, for ranks that are threads of this process. Communicators do not
// block: they are joined once all ranks have come, which ncclCommGetAsyncError tells.

#include <nccl.h>

#include <barrier>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda/emulator/stream.h"

struct ncclComm {
  struct Group {
    explicit Group(int ranks) : size(ranks), data(ranks), barrier(ranks) {}
    const int size;
    int joined = 0;  // guarded by the file's mutex
    std::vector<const float*> data;
    std::barrier<> barrier;

    std::mutex mutex;  // of what is sent
    std::condition_variable sent;
    std::map<std::pair<int, int>, std::deque<std::vector<float>>> letters;  // by sender, receiver
  };
  std::shared_ptr<Group> group;
  int rank = 0;
};

namespace {

std::mutex mutex;
int drawn = 0;
std::map<std::string, std::weak_ptr<ncclComm::Group>> groups;

// Of the calling thread, between ncclGroupStart and ncclGroupEnd, which runs them: sends first, so
// that ranks which send to each other do not wait for ever.
thread_local bool grouped = false;
thread_local std::vector<std::function<void()>> sends, receives;

void RunOrKeep(std::vector<std::function<void()>>* kept, std::function<void()> work) {
  if (grouped) {
    kept->push_back(std::move(work));
  } else {
    work();
  }
}

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

ncclResult_t Enqueue(std::function<void()> work) {
  const cudaError_t error = specfabric::emulator::Enqueue([work = std::move(work)] {
    work();
    return cudaSuccess;
  });
  return error == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

}  // namespace

extern "C" {

const char* ncclGetErrorString(ncclResult_t /*result*/) { return "emulated error"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (std::getenv("EMULATED_NO_ID") != nullptr) return ncclSystemError;
  const std::lock_guard lock(mutex);
  std::memset(id->internal, 0xff, sizeof(id->internal));  // as a float it is no number
  std::memcpy(id->internal, &++drawn, sizeof(drawn));
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config->blocking != 0) return ncclInvalidUsage;
  if (rank == 1 && std::getenv("EMULATED_RANK_FAILS") != nullptr) return ncclSystemError;
  const std::lock_guard lock(mutex);
  std::weak_ptr<ncclComm::Group>& known = groups[std::string(id.internal, sizeof(id.internal))];
  std::shared_ptr<ncclComm::Group> group = known.lock();
  if (group == nullptr) known = group = std::make_shared<ncclComm::Group>(ranks);
  // A process starts with all ranks there.
  if (rank + 1 < ranks || std::getenv("EMULATED_RANK_ABSENT") == nullptr) ++group->joined;
  *communicator = new ncclComm{group, rank};
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* state) {
  const std::lock_guard lock(mutex);
  const ncclComm::Group& group = *communicator->group;
  *state = group.joined < group.size ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  delete communicator;
  return ncclSuccess;
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t /*type*/,
                           ncclComm_t communicator, cudaStream_t /*stream*/) {
  return Enqueue([=] {
    const std::vector<float> all = Gathered(from, count, communicator);
    std::memcpy(to, all.data(), all.size() * sizeof(float));
  });
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t /*type*/,
                           ncclRedOp_t /*operation*/, ncclComm_t communicator,
                           cudaStream_t /*stream*/) {
  return Enqueue([=] {
    const std::vector<float> all = Gathered(from, count, communicator);
    float* const sums = static_cast<float*>(to);
    for (size_t i = 0; i < count; ++i) {
      sums[i] = 0;
      for (size_t part = 0; part < all.size(); part += count) sums[i] += all[part + i];
    }
  });
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t /*type*/,
                           int root, ncclComm_t communicator, cudaStream_t /*stream*/) {
  return Enqueue([=] {
    const std::vector<float> all = Gathered(from, count, communicator);
    std::memcpy(to, all.data() + root * count, count * sizeof(float));
  });
}

ncclResult_t ncclGroupStart() {
  grouped = true;
  return ncclSuccess;
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t /*type*/, int to,
                      ncclComm_t communicator, cudaStream_t /*stream*/) {
  RunOrKeep(&sends, [=] {
    ncclComm::Group& group = *communicator->group;
    const auto* data = static_cast<const float*>(from);
    const std::lock_guard lock(group.mutex);
    group.letters[{communicator->rank, to}].emplace_back(data, data + count);
    group.sent.notify_all();
  });
  return ncclSuccess;
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t /*type*/, int from,
                      ncclComm_t communicator, cudaStream_t /*stream*/) {
  RunOrKeep(&receives, [=] {
    ncclComm::Group& group = *communicator->group;
    std::unique_lock lock(group.mutex);
    auto& letters = group.letters[{from, communicator->rank}];
    group.sent.wait(lock, [&] { return !letters.empty(); });
    // NCCL would hang, or write as much as was sent.
    if (letters.front().size() != count) __builtin_trap();
    std::memcpy(to, letters.front().data(), count * sizeof(float));
    letters.pop_front();
  });
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  grouped = false;
  for (auto* works : {&sends, &receives}) {
    for (auto& work : std::exchange(*works, {})) {
      if (const ncclResult_t result = Enqueue(std::move(work)); result != ncclSuccess)
        return result;
    }
  }
  return ncclSuccess;
}

}  // extern "C"
