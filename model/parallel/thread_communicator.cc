#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "model/parallel/communicator.h"
#include "model/parallel/rank_tree.h"
#include "model/parallel/spin_wait.h"

namespace specfabric::model {
namespace {

constexpr size_t kCacheLineFloats = 16;

// What a rank shows the others during one collective.
struct alignas(64) Published {
  float* data = nullptr;
  sampling::ScoredToken* pairs = nullptr;
  const float* shard = nullptr;
  int width = 0;
};

struct Group {
  explicit Group(int size) : ranks(size) {}
  std::vector<Published> ranks;
  std::vector<std::shared_ptr<Group>> parts;  // of the Split at hand
  alignas(64) std::atomic<uint32_t> arrived{0};
  alignas(64) std::atomic<uint32_t> generation{0};
};

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Group> group, int rank, int local_rank)
      : group_(std::move(group)),
        rank_(rank),
        size_(static_cast<int>(group_->ranks.size())),
        local_rank_(local_rank) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return local_rank_; }

  // Every rank adds a slice of its own, for all, in everybody's buffers: nobody else touches that
  // slice.
  void AllReduceSum(absl::Span<float> data) override {
    if (size_ == 1) return;
    group_->ranks[rank_].data = data.data();
    Barrier();
    const auto [begin, end] = Slice(data.size(), kCacheLineFloats);
    ForRankPairs(size_, [&](int left, int right) {
      float* sum = group_->ranks[left].data;
      const float* term = group_->ranks[right].data;
      for (size_t i = begin; i < end; ++i) sum[i] += term[i];
    });
    const float* sum = group_->ranks[0].data;
    for (int other = 1; other < size_; ++other) {
      std::copy(sum + begin, sum + end, group_->ranks[other].data + begin);
    }
    Barrier();
  }

  void AllReduceBest(absl::Span<sampling::ScoredToken> pairs) override {
    if (size_ == 1) return;
    group_->ranks[rank_].pairs = pairs.data();
    Barrier();
    const auto [begin, end] = Slice(pairs.size(), 1);
    for (size_t i = begin; i < end; ++i) {
      sampling::ScoredToken best;
      for (const Published& other : group_->ranks) {
        if (sampling::Better(other.pairs[i], best)) best = other.pairs[i];
      }
      for (const Published& other : group_->ranks) other.pairs[i] = best;
    }
    Barrier();
  }

  void GatherRows(absl::Span<const float> shard, int width, absl::Span<const int> owners,
                  std::vector<float>* out) override {
    group_->ranks[rank_].shard = shard.data();
    group_->ranks[rank_].width = width;
    Barrier();
    out->clear();
    for (size_t row = 0; row < owners.size(); ++row) {
      if (owners[row] != rank_) continue;
      for (const Published& other : group_->ranks) {
        const float* from = other.shard + row * other.width;
        out->insert(out->end(), from, from + other.width);
      }
    }
    Barrier();
  }

  void Shift(int distance, absl::Span<const float> out, absl::Span<float> in) override {
    group_->ranks[rank_].shard = out.data();
    Barrier();
    if (!in.empty()) std::copy_n(group_->ranks[rank_ - distance].shard, in.size(), in.data());
    Barrier();
  }

  void Broadcast(int root, absl::Span<float> data) override {
    group_->ranks[rank_].data = data.data();
    Barrier();
    if (rank_ != root) std::copy_n(group_->ranks[root].data, data.size(), data.data());
    Barrier();
  }

  std::unique_ptr<Communicator> Split(int parts) override {
    const int ranks = size_ / parts;
    if (rank_ == 0) {
      group_->parts.clear();
      for (int part = 0; part < parts; ++part) {
        group_->parts.push_back(std::make_shared<Group>(ranks));
      }
    }
    Barrier();
    auto part = std::make_unique<ThreadCommunicator>(group_->parts[rank_ / ranks], rank_ % ranks,
                                                     local_rank_);
    Barrier();
    return part;
  }

  void Barrier() override {
    if (size_ == 1) return;
    const uint32_t generation = group_->generation.load(std::memory_order_acquire);
    if (group_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 ==
        static_cast<uint32_t>(size_)) {
      group_->arrived.store(0, std::memory_order_relaxed);
      group_->generation.fetch_add(1, std::memory_order_release);
      group_->generation.notify_all();
    } else {
      WaitWhileEqual(group_->generation, generation);
    }
  }

 private:
  struct Range {
    size_t begin, end;
  };

  // This rank's share of n elements, cut at multiples of `unit`.
  Range Slice(size_t n, size_t unit) const {
    const size_t units = (n + unit - 1) / unit;
    return {std::min(n, units * rank_ / size_ * unit),
            std::min(n, units * (rank_ + 1) / size_ * unit)};
  }

  std::shared_ptr<Group> group_;
  const int rank_;
  const int size_;
  const int local_rank_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeThreadCommunicators(int size) {
  const auto group = std::make_shared<Group>(size);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int rank = 0; rank < size; ++rank) {
    communicators.push_back(std::make_unique<ThreadCommunicator>(group, rank, rank));
  }
  return communicators;
}

}  // namespace specfabric::model
