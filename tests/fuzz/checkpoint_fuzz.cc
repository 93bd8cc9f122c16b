// A checkpoint's files. The first byte 0: the rest is model.safetensors. Otherwise the rest is an
// index of shards, beside two good shards. Whatever is accepted must be readable to its last byte.

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "model/checkpoint/checkpoint_tensors.h"
#include "model/checkpoint/drafter_tensors.h"
#include "model/checkpoint/safetensors.h"
#include "tests/fuzz/target.h"
#include "tests/fuzz/temporary_folder.h"

namespace specfabric {
namespace {

constexpr char kWhole[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";
constexpr char kShard[] = "a.safetensors";
constexpr char kOtherShard[] = "b.safetensors";

std::string Safetensors(const std::string& header, size_t data_bytes) {
  const uint64_t size = header.size();
  std::string file(sizeof(size), '\0');
  std::memcpy(file.data(), &size, sizeof(size));
  return file + header + std::string(data_bytes, '\x3f');
}

std::string GoodFile() {
  return Safetensors(
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
      R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]},)"
      R"("h":{"dtype":"F16","shape":[1],"data_offsets":[22,24]},)"
      R"("i":{"dtype":"I64","shape":[],"data_offsets":[24,32]}})",
      32);
}

std::string SmallFile() {
  return Safetensors(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4);
}

// Tied, with most kinds of names.
model::ModelConfig SmallConfig() {
  model::ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.vocabulary = config.hidden = 2;
  config.layers = 1;
  config.tied_embeddings = config.qkv_bias = config.output_bias = true;
  return config;
}

model::ModelConfig SmallDrafter() {
  model::ModelConfig config;
  config.architecture = "LlamaForCausalLMEagle3";
  config.vocabulary = 4;
  config.hidden = 2;
  config.layers = 1;
  config.states = {.layers = {0}, .target_hidden = 2, .draft_vocabulary = 2};
  return config;
}

void OpenSmallDrafter(const std::string& folder) {
  model::ModelConfig config = SmallDrafter();
  const auto opened = model::OpenDrafter(folder, "", &config);
  if (!opened.ok()) return;
  for (const model::StoredTensor* tensor : {opened->embedding, opened->head}) {
    SPECFABRIC_CHECK(tensor->shape.size() == 2 && tensor->shape[1] == config.hidden);
  }
  SPECFABRIC_CHECK(opened->target_ids.size() == 2);
  for (const base::TokenId id : opened->target_ids) SPECFABRIC_CHECK(id >= 0 && id < 4);
  SPECFABRIC_CHECK(opened->target_ids[0] != opened->target_ids[1]);
}

void ReadAll(const model::StoredTensor& tensor) {
  int64_t elements = 1;
  for (const int64_t extent : tensor.shape) elements *= extent;
  SPECFABRIC_CHECK(elements >= 0 && tensor.bytes >= elements);
  if (tensor.type == model::StoredType::kOther) return;
  std::vector<float> values(static_cast<size_t>(elements));
  model::ReadFloats(tensor, 0, elements, values.data());
  fuzz::Use(values);
}

void ReadFile(const std::string& path) {
  const auto file = model::SafetensorsFile::Open(path);
  if (!file.ok()) return;
  for (const auto& [name, tensor] : file->tensors()) ReadAll(tensor);
}

}  // namespace

std::vector<fuzz::Bytes> fuzz::Seeds() {
  const std::string index =
      R"({"metadata":{"total_size":32},"weight_map":{"w":"a.safetensors","b":"a.safetensors"}})";
  const std::string two_shards =
      R"({"weight_map":{"w":"b.safetensors","b":"a.safetensors","h":"a.safetensors"}})";
  const std::string names =
      R"({"model.embed_tokens.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
      R"("lm_head.weight":{"dtype":"BF16","shape":[2,2],"data_offsets":[16,24]},)"
      R"("model.layers.0.mlp.up_proj.bias":{"dtype":"F16","shape":[2],"data_offsets":[24,28]},)"
      R"("model.layers.1.x_scale":{"dtype":"U8","shape":[4],"data_offsets":[28,32]}})";
  std::string drafter = Safetensors(
      R"({"embed_tokens.weight":{"dtype":"F16","shape":[4,2],"data_offsets":[0,16]},)"
      R"("lm_head.weight":{"dtype":"F16","shape":[2,2],"data_offsets":[16,24]},)"
      R"("d2t":{"dtype":"I64","shape":[2],"data_offsets":[24,40]},)"
      R"("midlayer.mlp.up_proj.weight":{"dtype":"F16","shape":[1],"data_offsets":[40,42]}})",
      42);
  // The second draft token is the target's last.
  std::fill(drafter.end() - 18, drafter.end() - 2, '\0');
  drafter[drafter.size() - 10] = '\2';
  return {ToBytes('\0' + drafter),
          ToBytes('\0' + GoodFile()),
          ToBytes('\0' + Safetensors("{}", 0)),
          ToBytes('\0' + Safetensors(names, 32)),
          ToBytes('\1' + index),
          ToBytes('\1' + two_shards)};
}

}  // namespace specfabric

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace specfabric;  // NOLINT: the entry point cannot be inside
  static const fuzz::TemporaryFolder folder;
  if (size == 0) return 0;
  const std::string_view content(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] == 0) {
    folder.Write(kWhole, content);
    ReadFile(folder.path() + "/" + kWhole);
  } else {
    folder.Remove(kWhole);
    folder.Write(kShard, GoodFile());
    folder.Write(kOtherShard, SmallFile());
    folder.Write(kIndex, content);
  }
  const auto checkpoint = model::Checkpoint::Open(folder.path());
  if (checkpoint.ok()) fuzz::Use(checkpoint->ContentHash());
  const auto opened = model::OpenCheckpoint(folder.path(), SmallConfig());
  SPECFABRIC_CHECK(!opened.ok() || checkpoint.ok());
  OpenSmallDrafter(folder.path());
  return 0;
}
