#include "model/checkpoint/checkpoint_tensors.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <system_error>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/checkpoint/quantization.h"

namespace specfabric::model {
namespace {

// Some exports of drafters have their only layer, or their first, under this name.
constexpr char kMiddleLayer[] = "midlayer.";
constexpr int64_t kPiece = 1 << 16;  // elements converted at once

// The place of a tensor of one of the model's layers.
struct PlaceInLayer {
  int32_t layer = 0;
  std::string_view name;  // inside the layer
};

std::optional<PlaceInLayer> PlaceOf(std::string_view name, const ModelConfig& config) {
  const std::string_view middle = kMiddleLayer, layers = NamesOf(config).layers;
  if (config.states && name.starts_with(middle)) {
    return PlaceInLayer{0, name.substr(middle.size())};
  }
  if (!name.starts_with(layers)) return std::nullopt;
  name.remove_prefix(layers.size());
  int32_t layer = 0;
  const char* end = name.data() + name.size();
  const auto number = std::from_chars(name.data(), end, layer);
  if (number.ec != std::errc() || number.ptr == end || *number.ptr != '.') return std::nullopt;
  if (layer < 0 || layer >= config.layers) return std::nullopt;
  return PlaceInLayer{layer, name.substr(number.ptr + 1 - name.data())};
}

// The names inside a layer that LoadLayers reads.
std::unordered_set<std::string_view> LayerNames(const ModelConfig& c) {
  std::unordered_set<std::string_view> names = {
      "input_layernorm.weight",  "post_attention_layernorm.weight",
      "self_attn.q_proj.weight", "self_attn.k_proj.weight",
      "self_attn.v_proj.weight", "self_attn.o_proj.weight",
      "mlp.gate_proj.weight",    "mlp.up_proj.weight",
      "mlp.down_proj.weight"};
  if (c.qkv_bias) {
    names.insert({"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"});
  }
  if (c.output_bias) names.insert("self_attn.o_proj.bias");
  if (c.qk_norm) names.insert({"self_attn.q_norm.weight", "self_attn.k_norm.weight"});
  if (c.mlp_bias) names.insert({"mlp.gate_proj.bias", "mlp.up_proj.bias", "mlp.down_proj.bias"});
  if (c.states && c.states->mtp) {
    names.insert({kMtpTokenNormName, kMtpStateNormName, kMtpInputName});
  }
  return names;
}

// Buffers that older versions of transformers stored, and compute anew.
bool IsStoredBuffer(std::string_view name) {
  for (const char* end : {".rotary_emb.inv_freq", ".rotary_emb.cos_cached",
                          ".rotary_emb.sin_cached", ".masked_bias", ".position_ids"}) {
    if (name.ends_with(end)) return true;
  }
  return false;
}

// Whether a model would compute something else with this tensor. Further layers, which are for
// predicting several tokens, and other modalities' parts do not change it.
bool IsOwnPart(std::string_view name, const ModelConfig& config) {
  for (const char* start : {"lm_head.", "model.norm.", "model.embed_tokens."}) {
    if (name.starts_with(start)) return true;
  }
  if (name.find("lora_") != std::string_view::npos) return true;
  return PlaceOf(name, config).has_value();
}

// The same of a drafter, which has no such parts. What it keeps of its training: which ids of the
// target the head has, and the target's own norm and head.
bool IsOwnPartOfDrafter(std::string_view name, const ModelConfig& config) {
  if (name == "t2d" || name.starts_with("verifier_")) return false;
  const std::optional<PlaceInLayer> place = PlaceOf(name, config);
  // Of an MTP drafter's layers the first is run.
  if (config.states->mtp && !place && name.starts_with(NamesOf(config).layers)) return false;
  return !place || place->layer == 0 || place->name != kStateNormName;
}

// Whether a tensor beside a drafter's is of the target whose checkpoint both are in.
bool IsOfTarget(std::string_view name, const ModelConfig& config) {
  const bool in_target = config.states && config.states->mtp && config.states->mtp->in_target;
  return in_target && !name.starts_with(NamesOf(config).layers);
}

void InsertBlockNames(const BlockDrafter& block, std::unordered_set<std::string>* names) {
  const auto insert_layer = [&](const char* name) {
    names->insert({absl::StrCat(name, "weight"), absl::StrCat(name, "bias")});
  };
  names->insert(kStateNormName);
  if (block.markov != MarkovKind::kNone) names->insert({kMarkovTokensName, kMarkovScoresName});
  if (block.markov == MarkovKind::kGated) insert_layer(kMarkovGateName);
  if (block.markov == MarkovKind::kRecurrent) insert_layer(kMarkovJointName);
  if (block.confidence) insert_layer(kConfidenceName);
}

// The tensors above all layers that are read.
std::unordered_set<std::string> NamesAboveLayers(const ModelConfig& c) {
  const TensorNames& names = NamesOf(c);
  std::unordered_set<std::string> all = {names.embedding, names.head, names.norm};
  if (!c.states || c.states->mtp) return all;
  all.insert({kFuseName, kDraftIdsName});
  if (c.states->fc_bias) all.insert(kFuseBiasName);
  if (c.states->norm_before_fc) all.insert(kFuseNormName);
  if (c.states->block) InsertBlockNames(*c.states->block, &all);
  const size_t layers = c.states->layers.empty() ? kDefaultStateLayers : c.states->layers.size();
  for (size_t i = 0; c.states->fc_norm && i < layers; ++i) {
    all.insert(FuseNormName(static_cast<int32_t>(i)));
  }
  return all;
}

int64_t Elements(const StoredTensor& tensor) {
  return tensor.type == StoredType::kFloat32 ? tensor.bytes / 4 : tensor.bytes / 2;
}

// Calls `check` with the values of tensors of one size, piece by piece, while it says true.
template <typename Check>
bool EveryPiece(const StoredTensor& a, const StoredTensor& b, const Check& check) {
  std::vector<float> of_a(kPiece), of_b(kPiece);
  const int64_t elements = Elements(a);
  for (int64_t at = 0; at < elements; at += kPiece) {
    const int64_t count = std::min(kPiece, elements - at);
    ReadFloats(a, at, count, of_a.data());
    ReadFloats(b, at, count, of_b.data());
    if (!check(of_a, of_b, count)) return false;
  }
  return true;
}

bool AreEqual(const StoredTensor& a, const StoredTensor& b) {
  if (a.type == b.type) return std::memcmp(a.data, b.data, a.bytes) == 0;
  return EveryPiece(a, b, [](const auto& of_a, const auto& of_b, int64_t count) {
    return std::equal(of_a.begin(), of_a.begin() + count, of_b.begin());
  });
}

// Some tools store biases of zeros where the architecture has none.
bool IsZeroBias(std::string_view name, const StoredTensor& tensor) {
  if (!name.ends_with(".bias") || tensor.type == StoredType::kOther) return false;
  return EveryPiece(tensor, tensor, [](const auto& values, const auto&, int64_t count) {
    return std::all_of(values.begin(), values.begin() + count, [](float x) { return x == 0.0f; });
  });
}

// Names of one kind: how many, and the first.
struct Names {
  int64_t count = 0;
  std::string first;
  void Add(const std::string& name) {
    if (count++ == 0) first = name;
  }
  std::string Text() const {
    return count == 1 ? absl::StrCat("tensor '", first, "'")
                      : absl::StrCat(count, " tensors, the first '", first, "',");
  }
};

// Adds a note about the tensors that are ignored, if any are.
absl::Status CheckUnread(const ModelConfig& config, OpenedCheckpoint* opened) {
  const std::unordered_set<std::string_view> layer_names = LayerNames(config);
  const std::unordered_set<std::string> other_names = NamesAboveLayers(config);
  const std::string first_layer = LayerPrefix(opened->checkpoint, config, 0);
  const auto is_read = [&](const std::string& name) {
    if (other_names.contains(name)) return true;
    const std::optional<PlaceInLayer> place = PlaceOf(name, config);
    if (!place) return false;
    if (place->layer == 0 && !name.starts_with(first_layer)) return false;
    if (JoinsStates(config) && place->layer == 0 && place->name == kStateNormName) return true;
    return layer_names.contains(place->name);
  };
  const auto is_own = [&](const std::string& name) {
    return config.states ? IsOwnPartOfDrafter(name, config) : IsOwnPart(name, config);
  };
  const std::string where = absl::StrCat("model folder '", opened->checkpoint.model_dir(), "': ");
  if (config.states && opened->checkpoint.Contains("mask_hidden")) {
    return absl::UnimplementedError(absl::StrCat(
        where,
        "tensor 'mask_hidden' belongs to a drafter that predicts in parallel (P-EAGLE), "
        "which is not supported; allowed: EAGLE-3"));
  }
  Names quantized, own, ignored;
  for (const auto& [name, tensor] : opened->checkpoint.tensors()) {
    if (is_read(name) || IsStoredBuffer(name) || (config.states && name == "t2d")) continue;
    if (IsOfTarget(name, config)) continue;
    if (IsQuantizationTensor(name)) {
      quantized.Add(name);
    } else if (is_own(name) && !IsZeroBias(name, *tensor)) {
      own.Add(name);
    } else {
      ignored.Add(name);
    }
  }
  if (quantized.count > 0) {
    return absl::UnimplementedError(
        absl::StrCat(where, quantized.Text(), quantized.count == 1 ? " belongs" : " belong",
                     " to quantized weights, which are not supported; allowed: checkpoints of F32, "
                     "BF16 or F16 weights"));
  }
  if (own.count > 0) {
    return absl::UnimplementedError(
        absl::StrCat(where, own.Text(), own.count == 1 ? " has" : " have", " no place in a ",
                     config.architecture, " of this config.json, and without ",
                     own.count == 1 ? "it" : "them", " the output would be another model's"));
  }
  if (ignored.count > 0) {
    opened->notes.push_back(absl::StrCat(where, ignored.Text(), ignored.count == 1 ? " is" : " are",
                                         " not part of the model and ignored"));
  }
  return absl::OkStatus();
}

absl::Status ResolveHead(const ModelConfig& config, OpenedCheckpoint* opened) {
  const Checkpoint& checkpoint = opened->checkpoint;
  opened->tied_embeddings = config.tied_embeddings;
  if (!checkpoint.Contains(kHeadName)) {
    if (config.tied_embeddings) return absl::OkStatus();
    return absl::NotFoundError(absl::StrCat(
        "model folder '", checkpoint.model_dir(), "': no tensor '", kHeadName,
        "', and config.json does not set tie_word_embeddings, which would take the embedding"));
  }
  if (!config.tied_embeddings || !checkpoint.Contains(kEmbeddingName)) return absl::OkStatus();
  const std::vector<int64_t> shape = {config.vocabulary, config.hidden};
  const absl::StatusOr<const StoredTensor*> embedding = checkpoint.Find(kEmbeddingName, shape);
  if (!embedding.ok()) return embedding.status();
  const absl::StatusOr<const StoredTensor*> head = checkpoint.Find(kHeadName, shape);
  if (!head.ok()) return head.status();
  if (AreEqual(**embedding, **head)) return absl::OkStatus();
  opened->tied_embeddings = false;
  opened->notes.push_back(absl::StrCat(
      "model folder '", checkpoint.model_dir(), "': config.json sets tie_word_embeddings, but '",
      kHeadName, "' differs from '", kEmbeddingName, "': it is used as the output head"));
  return absl::OkStatus();
}

}  // namespace

std::string FuseNormName(int32_t layer) { return absl::StrCat("fc_norm.", layer, ".weight"); }

std::string LayerPrefix(const Checkpoint& checkpoint, const ModelConfig& config, int32_t layer) {
  if (config.states && layer == 0) {
    const auto middle = checkpoint.tensors().lower_bound(kMiddleLayer);
    if (middle != checkpoint.tensors().end() && middle->first.starts_with(kMiddleLayer)) {
      return kMiddleLayer;
    }
  }
  return absl::StrCat(NamesOf(config).layers, layer, ".");
}

absl::StatusOr<OpenedCheckpoint> OpenCheckpoint(const std::string& model_dir,
                                                const ModelConfig& config) {
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(model_dir);
  if (!checkpoint.ok()) return checkpoint.status();
  OpenedCheckpoint opened{
      .checkpoint = *std::move(checkpoint), .tied_embeddings = false, .notes = {}};
  opened.notes = opened.checkpoint.notes();
  if (absl::Status status = CheckUnread(config, &opened); !status.ok()) return status;
  if (config.states) return opened;
  if (absl::Status status = ResolveHead(config, &opened); !status.ok()) return status;
  return opened;
}

}  // namespace specfabric::model
