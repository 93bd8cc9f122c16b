#include "tests/cuda/emulator/emulator.h"

#include <algorithm>
#include <array>
#include <boost/context/fiber.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "tests/base/sanitizers.h"

#if SPECFABRIC_ADDRESS_SANITIZER
#include <sanitizer/common_interface_defs.h>
#endif

thread_local uint3 threadIdx, blockIdx;
thread_local dim3 blockDim, gridDim;

namespace specfabric::emulator {
namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr int kWarp = 32;

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "emulated kernel: %s\n", what);
  std::abort();
}

// What the sanitizer has to know when stacks change. `save` is null where a fiber ends.
void BeforeSwitch([[maybe_unused]] void** save, [[maybe_unused]] const void* stack,
                  [[maybe_unused]] size_t bytes) {
#if SPECFABRIC_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(save, stack, bytes);
#endif
}
void AfterSwitch([[maybe_unused]] void* saved, [[maybe_unused]] const void** stack,
                 [[maybe_unused]] size_t* bytes) {
#if SPECFABRIC_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(saved, stack, bytes);
#endif
}

// An exchange of the lanes of a warp. Two sets of words, used in turn: a lane may come to the next
// exchange before another has read what this one gave it, but not to the one after that.
struct Warp {
  std::array<std::array<uint64_t, kWarp>, 2> words = {};
  uint32_t arrived = 0;  // lanes
  uint64_t exchanges = 0;
};

struct Copy {
  void* to;
  const void* from;
};

enum class State : uint8_t { kReady, kAtBarrier, kInExchange, kEnded };

// A fiber's stack outlives it: the next block's threads run on it again.
struct KeepStack {
  void deallocate(boost::context::stack_context& /*stack*/) const {}
};

struct Fiber {
  boost::context::fiber context;  // empty while it runs, and once it has ended
  std::unique_ptr<char[]> stack;
  void* sanitizer = nullptr;
  uint3 thread = {};
  State state = State::kReady;
  // Copies to shared memory: of the groups that have been made, and since the last.
  std::deque<std::vector<Copy>> groups;
  std::vector<Copy> begun;
};

constexpr std::align_val_t kSharedAlign{128};
struct FreeShared {
  void operator()(std::byte* memory) const { ::operator delete[](memory, kSharedAlign); }
};

class Block {
 public:
  void Run(const cudaLaunchConfig_t& config, uint3 index, const std::function<void()>& kernel);
  void Pause(State state);
  void SyncBlock() { Pause(State::kAtBarrier); }
  const std::array<uint64_t, kWarp>& ExchangeAll(unsigned mask, uint64_t bits);
  uint64_t Exchange(unsigned mask, uint64_t bits, int lane);
  void* dynamic() const { return dynamic_.get(); }
  void StartCopy(const Copy& copy) { fibers_[current_].begun.push_back(copy); }
  void CommitCopies();
  void AwaitCopies(size_t pending);
  int lane() const { return static_cast<int>(current_ % kWarp); }
  void Shuffle(uint64_t seed) { random_.seed(seed); }

 private:
  void Enter();
  void Prepare(size_t index, uint3 thread);
  void Resume(size_t index);
  bool ReleaseBarrier();
  void EndExchange(size_t warp);

  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::vector<size_t> order_;
  std::unique_ptr<std::byte[], FreeShared> dynamic_;
  size_t current_ = 0;
  const std::function<void()>* kernel_ = nullptr;
  boost::context::fiber main_;  // what resumed the thread that runs
  void* main_sanitizer_ = nullptr;
  const void* main_stack_ = nullptr;
  size_t main_bytes_ = 0;
  std::mt19937_64 random_{1};
};

thread_local Block the_block;

void Block::Enter() {
  AfterSwitch(nullptr, &main_stack_, &main_bytes_);
  (*kernel_)();
  fibers_[current_].state = State::kEnded;
  BeforeSwitch(nullptr, main_stack_, main_bytes_);
}

void Block::Prepare(size_t index, uint3 thread) {
  Fiber& fiber = fibers_[index];
  if (!fiber.stack) fiber.stack = std::make_unique<char[]>(kStackBytes);
  fiber.thread = thread;
  fiber.state = State::kReady;
  fiber.groups.clear();
  fiber.begun.clear();
  boost::context::stack_context stack;
  stack.sp = fiber.stack.get() + kStackBytes;
  stack.size = kStackBytes;
  const boost::context::preallocated whole(stack.sp, stack.size, stack);
  fiber.context = boost::context::fiber(std::allocator_arg, whole, KeepStack(),
                                        [this](boost::context::fiber&& main) {
                                          main_ = std::move(main);
                                          Enter();
                                          return std::move(main_);
                                        });
}

void Block::Resume(size_t index) {
  current_ = index;
  Fiber& fiber = fibers_[index];
  threadIdx = fiber.thread;
  BeforeSwitch(&main_sanitizer_, fiber.stack.get(), kStackBytes);
  fiber.context = std::move(fiber.context).resume();
  AfterSwitch(main_sanitizer_, nullptr, nullptr);
}

void Block::Pause(State state) {
  Fiber& fiber = fibers_[current_];
  fiber.state = state;
  BeforeSwitch(&fiber.sanitizer, main_stack_, main_bytes_);
  main_ = std::move(main_).resume();
  AfterSwitch(fiber.sanitizer, nullptr, nullptr);
}

bool Block::ReleaseBarrier() {
  bool any = false;
  for (const Fiber& fiber : fibers_) {
    if (fiber.state == State::kInExchange) return false;
    any = any || fiber.state == State::kAtBarrier;
  }
  for (Fiber& fiber : fibers_) {
    if (fiber.state == State::kAtBarrier) fiber.state = State::kReady;
  }
  return any;
}

void Block::EndExchange(size_t warp) {
  warps_[warp].arrived = 0;
  ++warps_[warp].exchanges;
  const size_t end = std::min(fibers_.size(), (warp + 1) * kWarp);
  for (size_t i = warp * kWarp; i < end; ++i) {
    if (fibers_[i].state == State::kInExchange) fibers_[i].state = State::kReady;
  }
}

// A warp makes one exchange at a time: the project's kernels split no warp over two of them.
const std::array<uint64_t, kWarp>& Block::ExchangeAll(unsigned mask, uint64_t bits) {
  const size_t index = current_ / kWarp;
  Warp& warp = warps_[index];
  const size_t lanes = std::min<size_t>(kWarp, fibers_.size() - index * kWarp);
  const uint32_t present = lanes == kWarp ? ~0u : (1u << lanes) - 1;
  const uint32_t me = 1u << this->lane();
  if ((mask & me) == 0) Die("a lane takes part in an exchange whose mask it is not in");
  auto& words = warp.words[warp.exchanges % 2];
  words[this->lane()] = bits;
  warp.arrived |= me;
  if (warp.arrived == (mask & present)) {
    EndExchange(index);
  } else {
    Pause(State::kInExchange);
  }
  return words;
}

uint64_t Block::Exchange(unsigned mask, uint64_t bits, int lane) {
  const size_t lanes = fibers_.size() - current_ / kWarp * kWarp;
  if (static_cast<size_t>(lane) >= lanes || (mask >> lane & 1) == 0) {
    Die("a lane reads from one outside the mask");
  }
  return ExchangeAll(mask, bits)[lane];
}

void Block::CommitCopies() {
  Fiber& fiber = fibers_[current_];
  fiber.groups.push_back(std::move(fiber.begun));
  fiber.begun.clear();
}

void Block::AwaitCopies(size_t pending) {
  constexpr size_t kBytes = 16;
  auto& groups = fibers_[current_].groups;
  for (; groups.size() > pending; groups.pop_front()) {
    for (const Copy& copy : groups.front()) {
      if (copy.from == nullptr) {
        std::memset(copy.to, 0, kBytes);
      } else {
        std::memcpy(copy.to, copy.from, kBytes);
      }
    }
  }
}

void Block::Run(const cudaLaunchConfig_t& config, uint3 index,
                const std::function<void()>& kernel) {
  const dim3 size = config.blockDim;
  const size_t threads = size_t{size.x} * size.y * size.z;
  kernel_ = &kernel;
  blockIdx = index;
  blockDim = size;
  gridDim = config.gridDim;
  constexpr int kPoison = 0xff;
  dynamic_.reset(static_cast<std::byte*>(::operator new[](config.dynamicSmemBytes, kSharedAlign)));
  std::memset(dynamic_.get(), kPoison, config.dynamicSmemBytes);
  fibers_.resize(threads);
  warps_.assign((threads + kWarp - 1) / kWarp, Warp{});
  order_.resize(threads);
  for (size_t i = 0; i < threads; ++i) {
    order_[i] = i;
    const uint3 thread = {static_cast<unsigned>(i % size.x),
                          static_cast<unsigned>(i / size.x % size.y),
                          static_cast<unsigned>(i / size.x / size.y)};
    Prepare(i, thread);
  }
  for (;;) {
    std::shuffle(order_.begin(), order_.end(), random_);
    bool ran = false;
    for (size_t i : order_) {
      if (fibers_[i].state != State::kReady) continue;
      ran = true;
      Resume(i);
    }
    if (ran || ReleaseBarrier()) continue;
    const bool ended = std::all_of(fibers_.begin(), fibers_.end(),
                                   [](const Fiber& f) { return f.state == State::kEnded; });
    if (ended) return;
    Die("a lane waits for others of its warp, which are at a barrier or have ended");
  }
}

}  // namespace

int Lane() { return the_block.lane(); }
void SyncBlock() { the_block.SyncBlock(); }
uint64_t Exchange(unsigned mask, uint64_t bits, int lane) {
  return the_block.Exchange(mask, bits, lane);
}

const std::array<uint64_t, 32>& ExchangeAll(unsigned mask, uint64_t bits) {
  return the_block.ExchangeAll(mask, bits);
}
void* DynamicShared() { return the_block.dynamic(); }
void StartCopy16(void* to, const void* from) { the_block.StartCopy({to, from}); }
void CommitCopies() { the_block.CommitCopies(); }
void AwaitCopies(int pending) { the_block.AwaitCopies(static_cast<size_t>(pending)); }

void Shuffle(uint64_t seed) { the_block.Shuffle(seed); }

cudaError_t Run(const cudaLaunchConfig_t& config, const std::function<void()>& kernel) {
  const dim3 grid = config.gridDim, block = config.blockDim;
  constexpr unsigned kMostThreads = 1024, kMostHigh = 65535;
  constexpr size_t kMostShared = size_t{227} << 10;
  const bool any =
      grid.x > 0 && grid.y > 0 && grid.z > 0 && block.x > 0 && block.y > 0 && block.z > 0;
  if (!any || block.x * block.y * block.z > kMostThreads || grid.y > kMostHigh ||
      grid.z > kMostHigh || config.dynamicSmemBytes > kMostShared) {
    return cudaErrorInvalidConfiguration;
  }
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) the_block.Run(config, {x, y, z}, kernel);
    }
  }
  return cudaSuccess;
}

}  // namespace specfabric::emulator
