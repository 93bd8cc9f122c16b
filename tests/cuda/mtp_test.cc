// MTP drafters on GPUs, beside the CPU's.

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "model/checkpoint/checkpoint_tensors.h"
#include "tests/cuda/device.h"
#include "tests/cuda/drafter_states.h"
#include "tests/model/checkpoint_writer.h"
#include "tests/model/group.h"
#include "tests/model/mtp_checkpoints.h"
#include "tests/model/passes.h"

namespace specfabric::model::cuda {
namespace {

// Drafters in every layout, with the checkpoints of their targets.
class Drafters {
 public:
  struct Folders {
    std::string name, drafter, target;
  };

  Drafters() {
    const std::string mimo = NewFolder();
    WriteMimo(mimo, OddMimoConfig(), 1);
    folders_.push_back({"MiMo's", mimo, mimo});
    ModelConfig tied = OddMimoConfig();
    tied.tied_embeddings = true;
    tied.hidden = 39;  // not in fours
    const std::string of_tied = NewFolder();
    WriteMimo(of_tied, tied, 2);
    folders_.push_back({"MiMo's with one matrix as embedding and head", of_tied, of_tied});

    // Its last norm is not as its drafter's norms.
    ModelConfig config = OddConfig();
    config.rms_epsilon = 0.05f;
    const std::string target = NewFolder();
    WriteCheckpoint(target, config, 3);
    const std::string own = NewFolder(), shared = NewFolder();
    WriteCheckpoint(own, OddMtpConfig(), 4);
    folders_.push_back({"speculators'", own, target});
    WriteCheckpoint(shared, OddMtpConfig(), 5);
    std::vector<NamedTensor> tensors = RandomTensors(OddMtpConfig(), 5);
    std::erase_if(tensors, [](const NamedTensor& tensor) {
      return tensor.name == kMtpNames.embedding || tensor.name == kMtpNames.head;
    });
    WriteSafetensors(shared + "/model.safetensors", tensors, DataType::kFloat32);
    folders_.push_back({"speculators' with the target's embedding and head", shared, target});
  }
  const std::vector<Folders>& folders() const { return folders_; }

 private:
  std::string NewFolder() { return dirs_.emplace_back().path(); }

  std::deque<TempDir> dirs_;
  std::vector<Folders> folders_;
};

RankOptions OptionsOf(const Drafters::Folders& folders, DataType dtype) {
  RankOptions options = CudaOptions(dtype);
  options.target_dir = folders.target;
  return options;
}

// Appends to the batch's states that of a row of the last pass, for `count` rows.
void AddStates(TestGroup& group, int logit_row, int count, Batch* batch) {
  const size_t hidden = group.config().hidden;
  const absl::Span<const float> next = group.rank(0).next_states();
  for (int i = 0; i < count; ++i) {
    batch->states.insert(batch->states.end(), next.begin() + logit_row * hidden,
                         next.begin() + (logit_row + 1) * hidden);
  }
}

// The CPU's model, and the GPU's with and without graphs.
class Beside {
 public:
  Beside(const Drafters::Folders& folders, DataType dtype)
      : cpu(LoadOrDie(folders.drafter, OptionsOf(folders, dtype))),
        device(OnDevice(folders.drafter, OptionsOf(folders, dtype))),
        graphs(OnDevice(folders.drafter, WithGraphs(OptionsOf(folders, dtype)))),
        tolerance_(Tolerance(dtype)) {}

  // A pass of each, on the batch that `make` makes for it. The GPU's logits.
  template <typename Make>
  LogitRows ExpectClose(const Make& make) {
    const LogitRows want = Logits(cpu, make(cpu)), logits = Logits(device, make(device));
    EXPECT_LT(MaxDifference(logits, want), tolerance_);
    EXPECT_LT(MaxDifference(NextStates(device), NextStates(cpu)), tolerance_);
    EXPECT_EQ(Logits(graphs, make(graphs)), logits);
    EXPECT_EQ(NextStates(graphs), NextStates(device));
    return logits;
  }

  TestGroup cpu, device, graphs;

 private:
  static RankOptions WithGraphs(RankOptions options) {
    options.cuda_graphs = true;
    return options;
  }

  double tolerance_;
};

class CudaMtpTest : public base::cuda::DeviceTest, public ::testing::WithParamInterface<DataType> {
 protected:
  const Drafters drafters_;
};

// Two sequences: their prompts, then chains and trees of tokens drafted after them, which read what
// their own model has handed on.
TEST_P(CudaMtpTest, DraftsAsTheCpu) {
  for (const Drafters::Folders& folders : drafters_.folders()) {
    SCOPED_TRACE(folders.name);
    Beside models(folders, GetParam());
    const std::vector<float> states =
        RandomStates(7 + 4, StateWidth(models.cpu.config()), /*seed=*/6);
    const LogitRows fused = Fused(models.cpu.rank(0), states, 7 + 4);
    EXPECT_LT(MaxDifference(Fused(models.device.rank(0), states, 7 + 4), fused),
              Tolerance(DataType::kFloat32))
        << "which are not rounded";
    Batch prompts;
    AddChain(&prompts, RandomTokens(7, 7), 0, Iota(0, 4));
    AddChain(&prompts, RandomTokens(4, 8), 0, Iota(10, 4));
    prompts.logit_rows = {6, 10};
    prompts.states = fused[0];
    const LogitRows logits = models.ExpectClose([&](TestGroup&) { return prompts; });
    for (int step = 0; step < 4; ++step) {  // as it is, captured, replayed twice
      models.ExpectClose([&](TestGroup& group) {
        Batch level;
        AddChain(&level, RandomTokens(1, 10 + step), 7 + step, Iota(0, 4));
        AddChain(&level, RandomTokens(1, 20 + step), 4 + step, Iota(10, 4));
        AddStates(group, 0, 1, &level);
        AddStates(group, 1, 1, &level);
        return level;
      });
    }
    models.ExpectClose([&](TestGroup& group) {
      Batch trees;
      AddTree(&trees, RandomTokens(3, 30), {-1, 0, 0}, 11, Iota(0, 4));
      AddTree(&trees, RandomTokens(4, 31), {-1, 0, 1, 0}, 8, Iota(10, 4));
      AddStates(group, 0, 3, &trees);
      AddStates(group, 1, 4, &trees);
      trees.logit_rows = {1, 2, 5, 6};
      return trees;
    });

    Batch alone;
    AddChain(&alone, RandomTokens(4, 8), 0, Iota(20, 4));
    alone.logit_rows = {3};
    alone.states.assign(fused[0].end() - 4 * models.cpu.config().hidden, fused[0].end());
    EXPECT_EQ(Logits(models.device, alone), LogitRows{logits[1]});
    alone.logit_rows.clear();
    EXPECT_TRUE(Logits(models.device, alone).empty());
    EXPECT_TRUE(models.device.rank(0).next_states().empty());
  }
}

TEST_P(CudaMtpTest, FusesWhatLiesInTheDevicesMemory) {
  for (const Drafters::Folders& folders : drafters_.folders()) {
    SCOPED_TRACE(folders.name);
    TestGroup group = OnDevice(folders.drafter, OptionsOf(folders, GetParam()));
    ExpectFusesDeviceStates(group.rank(0));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaMtpTest,
                         ::testing::Values(DataType::kFloat32, DataType::kBFloat16),
                         [](const auto& info) { return Name(info.param); });

}  // namespace
}  // namespace specfabric::model::cuda
