// Sums over ranks, each a thread with a GPU of its own, beside the CPU's.

#include "model/cuda/collectives.h"

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cuda/device.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::Device;
using base::cuda::DeviceArray;
using base::cuda::Devices;
using base::cuda::DeviceTest;
using base::cuda::Emulated;

struct Rank {
  Communicator* host = nullptr;
  std::unique_ptr<Device> device;
  std::unique_ptr<Collectives> sums;
};

// Runs `work` on every rank's thread.
void OnRanks(int ranks, const CollectivesOptions& options, const std::function<void(Rank*)>& work) {
  auto hosts = MakeThreadCommunicators(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      Rank rank;
      rank.host = hosts[r].get();
      absl::StatusOr<std::unique_ptr<Device>> device = Device::Open(r);
      ASSERT_TRUE(device.ok()) << device.status();
      rank.device = *std::move(device);
      auto sums = Collectives::Create(rank.host, rank.host, rank.device.get(), options);
      ASSERT_TRUE(sums.ok()) << sums.status();
      rank.sums = *std::move(sums);
      work(&rank);
      ASSERT_TRUE(rank.device->Finish().ok());
      rank.host->Barrier();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Of all magnitudes, so that another order of adding shows in the bits.
std::vector<float> Part(int rank, int call, int64_t count) {
  std::mt19937 random(rank * 1000 + call);
  std::normal_distribution<float> normal;
  std::vector<float> part(count);
  for (float& x : part) x = std::ldexp(normal(random), static_cast<int>(random() % 16));
  return part;
}

// The sum of a part of each rank's, by the GPUs; then the CPU's on `expected`.
std::vector<float> Sum(Rank* rank, std::vector<float> part, std::vector<float>* expected) {
  DeviceArray<float> data(part);
  const auto count = static_cast<int64_t>(part.size());
  EXPECT_TRUE(rank->sums->Sum(data.data(), count).ok());
  EXPECT_TRUE(rank->device->Finish().ok());
  rank->host->AllReduceSum(absl::MakeSpan(part));
  *expected = std::move(part);
  return data.Read();
}

class CollectivesTest : public DeviceTest, public testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (GetParam() > Devices()) GTEST_SKIP() << GetParam() << " GPUs are needed";
  }
};

TEST_P(CollectivesTest, HasTheCpusBits) {
  const int64_t most = MostPeerFloats(GetParam());
  const std::vector<int64_t> counts = {1,    3,    255,    256,  257,     8191,
                                       8192, 8193, 40'000, most, most + 1};
  for (bool peer_sums : {false, true}) {
    OnRanks(GetParam(), {.batch_invariant = true, .peer_sums = peer_sums}, [&](Rank* rank) {
      EXPECT_EQ(rank->sums->peer_sums().on, peer_sums);
      int call = 0;
      for (int64_t count : counts) {
        std::vector<float> expected;
        const std::vector<float> sum =
            Sum(rank, Part(rank->host->rank(), ++call, count), &expected);
        EXPECT_TRUE(sum == expected) << count << " floats, in one shot: " << peer_sums;
      }
    });
  }
}

// What a sum over ranks, residual and norm leave on a GPU.
struct NormedRows {
  std::vector<float> residual, normed;
  bool operator==(const NormedRows&) const = default;
};
NormedRows SumAndNorm(Rank* rank, int32_t rows, int32_t hidden) {
  const int64_t count = int64_t{rows} * hidden;
  DeviceArray<float> added(Part(rank->host->rank(), 1, count)), residual(Part(100, 2, count));
  DeviceArray<float> bias(Part(100, 3, hidden)), weight(Part(100, 4, hidden));
  DeviceArray<float> normed(static_cast<size_t>(count));
  const NormArgs args = {.type = DataType::kFloat32,
                         .rows = rows,
                         .hidden = hidden,
                         .epsilon = 1e-5f,
                         .residual = residual.data(),
                         .bias = bias.data(),
                         .weight = weight.data(),
                         .normed = normed.data()};
  EXPECT_TRUE(rank->sums->SumAddAndNorm(args, added.data()).ok());
  EXPECT_TRUE(rank->device->Finish().ok());
  return {residual.Read(), normed.Read()};
}

// In one kernel, where there are few rows, and in three: rows of every length of a thread's part,
// and more rows than blocks.
TEST_P(CollectivesTest, SumsAndNormsInOneKernelWithTheSameBits) {
  const std::pair<int32_t, int32_t> shapes[] = {{1, 64}, {3, 2052}, {40, 128}, {2, 5000}, {2, 101}};
  for (const auto& [rows, hidden] : shapes) {
    std::vector<std::vector<NormedRows>> found(2, std::vector<NormedRows>(GetParam()));
    for (const bool peer_sums : {false, true}) {
      OnRanks(GetParam(), {.peer_sums = peer_sums}, [&, rows = rows, hidden = hidden](Rank* rank) {
        found[peer_sums ? 1 : 0][rank->host->rank()] = SumAndNorm(rank, rows, hidden);
      });
    }
    EXPECT_TRUE(found[0] == found[1]) << rows << " rows of " << hidden;
    EXPECT_TRUE(found[0][0] == found[0].back());
  }
}

// Ranks come late in turn, and no call waits for the end of the one before on the others.
TEST_P(CollectivesTest, ManyInARowOfRanksThatComeLate) {
  OnRanks(GetParam(), {.peer_sums = true}, [&](Rank* rank) {
    ASSERT_TRUE(rank->sums->peer_sums().on);
    std::mt19937 sizes(5), naps(rank->host->rank());
    constexpr int kCalls = 60;
    std::vector<std::vector<float>> parts;
    std::vector<DeviceArray<float>> arrays;
    for (int call = 0; call < kCalls; ++call) {
      parts.push_back(Part(rank->host->rank(), call, 1 + sizes() % 3000));
      arrays.emplace_back(parts.back());
    }
    for (int call = 0; call < kCalls; ++call) {
      if (naps() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(naps() % 2000));
      const auto count = static_cast<int64_t>(parts[call].size());
      ASSERT_TRUE(rank->sums->Sum(arrays[call].data(), count).ok());
    }
    for (int call = 0; call < kCalls; ++call) {
      rank->host->AllReduceSum(absl::MakeSpan(parts[call]));
      EXPECT_TRUE(arrays[call].Read() == parts[call]) << "call " << call;
    }
  });
}

TEST_P(CollectivesTest, GpusThatDoNotReachEachOtherSumByNccl) {
  if (!Emulated()) GTEST_SKIP() << "these may reach each other";
  setenv("EMULATED_GPUS_APART", "", /*overwrite=*/1);
  OnRanks(GetParam(), {.peer_sums = true}, [&](Rank* rank) {
    EXPECT_FALSE(rank->sums->peer_sums().on);
    EXPECT_EQ(rank->sums->peer_sums().why, "rank 0: GPU 0 cannot access the memory of GPU 1");
    std::vector<float> expected;
    const std::vector<float> sum = Sum(rank, Part(rank->host->rank(), 1, 1000), &expected);
    EXPECT_TRUE(sum == expected);
  });
  unsetenv("EMULATED_GPUS_APART");
}

// What each rank says of joining the others, where the emulated NCCL does what `fault` calls for.
std::vector<absl::StatusCode> Join(int ranks, const char* fault, base::Nanos timeout) {
  setenv(fault, "", /*overwrite=*/1);
  auto hosts = MakeThreadCommunicators(ranks);
  std::vector<absl::StatusCode> said(ranks);
  std::vector<std::thread> threads;
  for (auto& host : hosts) {
    threads.emplace_back([&] {
      auto device = Device::Open(host->rank());
      ASSERT_TRUE(device.ok()) << device.status();
      const auto sums =
          Collectives::Create(host.get(), host.get(), device->get(), {.join_timeout = timeout});
      said[host->rank()] = sums.status().code();
    });
  }
  for (std::thread& thread : threads) thread.join();
  unsetenv(fault);
  return said;
}

TEST_P(CollectivesTest, RanksThatDoNotMeetGiveUpTogether) {
  if (!Emulated()) GTEST_SKIP() << "real GPUs do meet";
  for (absl::StatusCode said : Join(GetParam(), "EMULATED_RANK_ABSENT", 20 * base::kMillisecond)) {
    EXPECT_EQ(said, absl::StatusCode::kDeadlineExceeded);
  }
}

// Neither is waited for: the limit is longer than the test may take.
TEST_P(CollectivesTest, ARankThatCannotBeginFailsThemAllAtOnce) {
  if (!Emulated()) GTEST_SKIP() << "real GPUs do meet";
  for (const auto& [fault, rank] :
       {std::pair("EMULATED_NO_ID", 0), std::pair("EMULATED_RANK_FAILS", 1)}) {
    std::vector<absl::StatusCode> expected(GetParam(), absl::StatusCode::kAborted);
    expected[rank] = absl::StatusCode::kInternal;
    EXPECT_EQ(Join(GetParam(), fault, 24 * 3600 * base::kSecond), expected) << fault;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, CollectivesTest, testing::Values(2, 3, 4));

TEST(PeerSumTest, NoMoreGpusThanFlags) {
  EXPECT_EQ(MostPeerFloats(4), 128 * 1024);
  EXPECT_EQ(MostPeerFloats(8), 64 * 1024);
  EXPECT_EQ(MostPeerFloats(9), 0);
}

}  // namespace
}  // namespace specfabric::model::cuda
