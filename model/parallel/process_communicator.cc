#include "model/parallel/process_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "model/parallel/rank_tree.h"

namespace specfabric::model {
namespace {

// What the ranks of one process share. Written between two of their barriers: `mine` by each rank
// its own, the rest by the first.
struct Shared {
  ProcessExchange* exchange = nullptr;
  int ranks = 0;
  std::vector<absl::Span<const uint8_t>> mine;  // [ranks here]
  std::vector<std::vector<uint8_t>> all;        // [ranks] of the collective at hand
  bool ended = false;
};

class ProcessCommunicator : public Communicator {
 public:
  ProcessCommunicator(std::shared_ptr<Shared> shared, std::unique_ptr<Communicator> local,
                      int first_rank)
      : shared_(std::move(shared)), local_(std::move(local)), first_rank_(first_rank) {}

  int rank() const override { return first_rank_ + local_->rank(); }
  int size() const override { return shared_->ranks; }
  int local_rank() const override { return local_->rank(); }

  void AllReduceSum(absl::Span<float> data) override {
    if (!Gather<float>(data, true)) return;
    terms_.clear();
    for (int rank = 0; rank < size(); ++rank) {
      const auto part = Part<float>(rank);
      terms_.insert(terms_.end(), part.begin(), part.end());
    }
    ForRankPairs(size(), [&](int left, int right) {
      float* sum = terms_.data() + left * data.size();
      const float* term = terms_.data() + right * data.size();
      for (size_t i = 0; i < data.size(); ++i) sum[i] += term[i];
    });
    std::copy_n(terms_.begin(), data.size(), data.begin());
  }

  void AllReduceBest(absl::Span<sampling::ScoredToken> pairs) override {
    if (!Gather<sampling::ScoredToken>(pairs, true)) return;
    for (size_t i = 0; i < pairs.size(); ++i) {
      sampling::ScoredToken best;
      for (int rank = 0; rank < size(); ++rank) {
        const sampling::ScoredToken pair = Part<sampling::ScoredToken>(rank)[i];
        if (sampling::Better(pair, best)) best = pair;
      }
      pairs[i] = best;
    }
  }

  void GatherRows(absl::Span<const float> shard, int width, absl::Span<const int> owners,
                  std::vector<float>* out) override {
    if (!Gather<float>(shard, false)) {
      // Rows enough for a caller that does not know yet: shards differ by one token at most.
      const auto owned = std::count(owners.begin(), owners.end(), rank());
      return out->assign(owned * (width + 1) * size(), 0.0f);
    }
    out->clear();
    for (size_t row = 0; row < owners.size(); ++row) {
      if (owners[row] != rank()) continue;
      for (int other = 0; other < size(); ++other) {
        const auto part = Part<float>(other);
        const size_t columns = part.size() / owners.size();
        const auto from = part.subspan(row * columns, columns);
        out->insert(out->end(), from.begin(), from.end());
      }
    }
  }

  void Shift(int distance, absl::Span<const float> out, absl::Span<float> in) override {
    if (Gather<float>(out, false) && !in.empty()) Take(rank() - distance, in);
  }

  void Broadcast(int root, absl::Span<float> data) override {
    const absl::Span<const float> mine = rank() == root ? data : absl::Span<const float>();
    if (Gather<float>(mine, false)) Take(root, data);
  }

  void Barrier() override { Gather<uint8_t>({}, true); }

  std::unique_ptr<Communicator> Split(int parts) override {
    const int ranks = size() / parts;
    if (first_rank_ % ranks != 0 || local_->size() % ranks != 0) return nullptr;
    return local_->Split(local_->size() / ranks);
  }

 private:
  // Everybody's parts, in shared_->all until this rank's next collective; false: the group has
  // ended. alike: all parts must be of one size.
  template <typename T>
  bool Gather(absl::Span<const T> mine, bool alike) {
    shared_->mine[local_->rank()] = {reinterpret_cast<const uint8_t*>(mine.data()),
                                     mine.size() * sizeof(T)};
    local_->Barrier();
    if (local_->rank() == 0 && !shared_->ended) Exchange(sizeof(T), alike);
    local_->Barrier();
    return !shared_->ended;
  }

  void Exchange(size_t element, bool alike) {
    shared_->ended = !shared_->exchange->Exchange(shared_->mine, &shared_->all);
    if (shared_->ended) return;
    const size_t size = shared_->mine[0].size();
    const bool fits = std::all_of(shared_->all.begin(), shared_->all.end(), [&](const auto& part) {
      return alike ? part.size() == size : part.size() % element == 0;
    });
    if (fits) return;
    shared_->exchange->Diverged();
    shared_->ended = true;
  }

  void Take(int rank, absl::Span<float> to) {
    const auto part = Part<float>(rank);
    if (part.size() == to.size()) {
      std::copy(part.begin(), part.end(), to.begin());
    } else {
      shared_->exchange->Diverged();
    }
  }

  // Vectors are aligned for any of these types.
  template <typename T>
  absl::Span<const T> Part(int rank) const {
    const std::vector<uint8_t>& part = shared_->all[rank];
    return {reinterpret_cast<const T*>(part.data()), part.size() / sizeof(T)};
  }

  const std::shared_ptr<Shared> shared_;
  const std::unique_ptr<Communicator> local_;
  const int first_rank_;
  std::vector<float> terms_;  // [ranks][elements] of a sum
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeProcessCommunicators(ProcessExchange* exchange,
                                                                    int ranks, int first_rank,
                                                                    int rank_count) {
  const auto shared = std::make_shared<Shared>();
  shared->exchange = exchange;
  shared->ranks = ranks;
  shared->mine.resize(rank_count);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (auto& local : MakeThreadCommunicators(rank_count)) {
    communicators.push_back(
        std::make_unique<ProcessCommunicator>(shared, std::move(local), first_rank));
  }
  return communicators;
}

}  // namespace specfabric::model
