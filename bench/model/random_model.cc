#include "bench/model/random_model.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/hash.h"
#include "nlohmann/json.hpp"

namespace specfabric::model {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kPrefix[] = "random:";

struct Shape {
  const char* name;
  const char* architecture;
  int32_t vocabulary, hidden, intermediate, layers, heads, kv_heads, head_dim;
  double theta;
  bool tied, qk_norm;
};
constexpr Shape kShapes[] = {
    {"llama-1b", "LlamaForCausalLM", 128256, 2048, 8192, 16, 32, 8, 64, 5e5, true, false},
    {"llama-8b", "LlamaForCausalLM", 128256, 4096, 14336, 32, 32, 8, 128, 5e5, false, false},
    {"qwen3-8b", "Qwen3ForCausalLM", 151936, 4096, 12288, 36, 32, 8, 128, 1e6, false, true},
    // For tests: heads of a size that every attention kernel takes.
    {"tiny", "LlamaForCausalLM", 500, 128, 256, 2, 4, 2, 64, 1e4, true, false},
};

absl::StatusOr<Shape> FindShape(absl::string_view name) {
  std::string known;
  for (const Shape& shape : kShapes) {
    if (shape.name == name) return shape;
    absl::StrAppend(&known, known.empty() ? "" : ", ", kPrefix, shape.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("model ", kPrefix, name, "; allowed: a folder, ", known));
}

Json ConfigOf(const Shape& shape) {
  return {{"architectures", Json::array({shape.architecture})},
          {"model_type", shape.qk_norm ? "qwen3" : "llama"},
          {"hidden_act", "silu"},
          {"vocab_size", shape.vocabulary},
          {"hidden_size", shape.hidden},
          {"intermediate_size", shape.intermediate},
          {"num_hidden_layers", shape.layers},
          {"num_attention_heads", shape.heads},
          {"num_key_value_heads", shape.kv_heads},
          {"head_dim", shape.head_dim},
          {"max_position_embeddings", 32768},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", shape.theta},
          {"tie_word_embeddings", shape.tied},
          {"eos_token_id", 0},
          {"torch_dtype", "bfloat16"}};
}

// What a safetensors file of bfloat16 says of its tensors, in the order in which they lie.
struct Layout {
  Json header;
  uint64_t bytes = 0;                                  // of all tensors
  std::vector<std::pair<uint64_t, uint64_t>> vectors;  // begin and end of the norms' weights

  void Add(const std::string& name, const std::vector<int64_t>& shape) {
    const uint64_t begin = bytes;
    uint64_t size = sizeof(uint16_t);
    for (const int64_t extent : shape) size *= static_cast<uint64_t>(extent);
    bytes += size;
    header[name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {begin, bytes}}};
    if (shape.size() == 1) vectors.emplace_back(begin, bytes);
  }
};

Layout LayoutOf(const Shape& shape) {
  const int64_t queries = int64_t{shape.heads} * shape.head_dim;
  const int64_t keys = int64_t{shape.kv_heads} * shape.head_dim;
  Layout layout;
  layout.Add("model.embed_tokens.weight", {shape.vocabulary, shape.hidden});
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    const std::string in = absl::StrCat("model.layers.", layer, ".");
    layout.Add(in + "input_layernorm.weight", {shape.hidden});
    layout.Add(in + "self_attn.q_proj.weight", {queries, shape.hidden});
    layout.Add(in + "self_attn.k_proj.weight", {keys, shape.hidden});
    layout.Add(in + "self_attn.v_proj.weight", {keys, shape.hidden});
    layout.Add(in + "self_attn.o_proj.weight", {shape.hidden, queries});
    if (shape.qk_norm) {
      layout.Add(in + "self_attn.q_norm.weight", {shape.head_dim});
      layout.Add(in + "self_attn.k_norm.weight", {shape.head_dim});
    }
    layout.Add(in + "post_attention_layernorm.weight", {shape.hidden});
    layout.Add(in + "mlp.gate_proj.weight", {shape.intermediate, shape.hidden});
    layout.Add(in + "mlp.up_proj.weight", {shape.intermediate, shape.hidden});
    layout.Add(in + "mlp.down_proj.weight", {shape.hidden, shape.intermediate});
  }
  layout.Add("model.norm.weight", {shape.hidden});
  if (!shape.tied) layout.Add("lm_head.weight", {shape.vocabulary, shape.hidden});
  return layout;
}

// Four bfloat16 of random sign and of magnitudes from 2^-6 to 2^-5, so that activations keep their
// size from layer to layer and logits are finite.
uint64_t FourWeights(uint64_t index) {
  return (base::Mix64(index) & 0x807F807F807F807F) | 0x3C803C803C803C80;
}
constexpr uint16_t kOne = 0x3F80;  // as bfloat16

void FillWords(uint64_t* words, uint64_t first, uint64_t count) {
  for (uint64_t i = first; i < first + count; ++i) words[i] = FourWeights(i);
}

void Fill(uint64_t* words, uint64_t count) {
  const uint64_t threads = std::clamp(std::thread::hardware_concurrency(), 1u, 32u);
  const uint64_t each = (count + threads - 1) / threads;
  std::vector<std::thread> workers;
  for (uint64_t first = 0; first < count; first += each) {
    workers.emplace_back(FillWords, words, first, std::min(each, count - first));
  }
  for (std::thread& worker : workers) worker.join();
}

absl::Status Failed(absl::string_view what) {
  return absl::ResourceExhaustedError(
      absl::StrCat("random weights: ", what, ": ", std::strerror(errno)));
}

// Writes the file's header and weights through its pages.
absl::Status WriteWeights(const Layout& layout, int file) {
  std::string header = layout.header.dump();
  header.append((8 - header.size() % 8) % 8, ' ');  // the weights begin at a whole word
  const uint64_t header_bytes = header.size();
  const uint64_t begin = sizeof(header_bytes) + header_bytes;
  const uint64_t bytes = begin + layout.bytes;
  if (ftruncate(file, static_cast<off_t>(bytes)) != 0) return Failed("ftruncate");
  void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) return Failed(absl::StrCat("mmap of ", bytes, " bytes"));
  auto* const to = static_cast<uint8_t*>(mapped);
  std::memcpy(to, &header_bytes, sizeof(header_bytes));
  header.copy(static_cast<char*>(mapped) + sizeof(header_bytes), header.size());
  // The last word may end beyond the file, but not beyond its last page.
  Fill(reinterpret_cast<uint64_t*>(to + begin), (layout.bytes + 7) / 8);
  for (const auto& [first, last] : layout.vectors) {
    for (uint64_t at = first; at < last; at += sizeof(kOne)) {
      std::memcpy(to + begin + at, &kOne, sizeof(kOne));
    }
  }
  munmap(mapped, bytes);
  return absl::OkStatus();
}

// A folder with the configuration, and the file under the name that loaders look for.
absl::StatusOr<std::string> MakeFolder(const Json& config, int file) {
  std::string folder = std::filesystem::temp_directory_path() / "specfabric-random-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return Failed(folder);
  std::ofstream(folder + "/config.json") << config.dump();
  std::error_code error;
  std::filesystem::create_symlink(absl::StrCat("/proc/", getpid(), "/fd/", file),
                                  folder + "/model.safetensors", error);
  if (!error) return folder;
  return absl::ResourceExhaustedError(absl::StrCat(folder, ": ", error.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<BenchCheckpoint>> BenchCheckpoint::Open(const std::string& model) {
  std::unique_ptr<BenchCheckpoint> checkpoint(new BenchCheckpoint);
  if (!absl::StartsWith(model, kPrefix)) {
    checkpoint->folder_ = model;
    return checkpoint;
  }
  const absl::StatusOr<Shape> shape = FindShape(absl::StripPrefix(model, kPrefix));
  if (!shape.ok()) return shape.status();
  checkpoint->file_ = memfd_create("weights", MFD_CLOEXEC);
  if (checkpoint->file_ < 0) return Failed("memfd_create");
  const absl::Status written = WriteWeights(LayoutOf(*shape), checkpoint->file_);
  if (!written.ok()) return written;
  absl::StatusOr<std::string> folder = MakeFolder(ConfigOf(*shape), checkpoint->file_);
  if (!folder.ok()) return folder.status();
  checkpoint->folder_ = *std::move(folder);
  return checkpoint;
}

BenchCheckpoint::~BenchCheckpoint() {
  if (file_ < 0) return;
  close(file_);
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

int64_t HeadBytes(const ModelConfig& config, DataType dtype) {
  return int64_t{config.vocabulary} * config.hidden * base::Bytes(dtype);
}

int64_t PassWeightBytes(const ModelConfig& config, DataType dtype) {
  const int64_t queries = int64_t{config.heads} * config.head_dim;
  const int64_t keys = int64_t{config.kv_heads} * config.head_dim;
  const int64_t layer = config.hidden * (2 * queries + 2 * keys + int64_t{3} * config.intermediate);
  return config.layers * layer * base::Bytes(dtype) + HeadBytes(config, dtype);
}

}  // namespace specfabric::model
