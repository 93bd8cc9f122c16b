#include "model/checkpoint/drafter_tensors.h"

#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace specfabric::model {
namespace {

std::string Where(const std::string& model_dir) {
  return absl::StrCat("model folder '", model_dir, "': ");
}

// What the drafter reads of its target beside hidden states.
class Shared {
 public:
  Shared(const std::string& target_dir, const ModelConfig& drafter, OpenedDrafter* opened)
      : target_dir_(target_dir), drafter_(drafter), opened_(*opened) {}

  // The target's configuration, if its folder is given.
  absl::Status LoadConfig() {
    if (target_dir_.empty()) return absl::OkStatus();
    absl::StatusOr<ModelConfig> config = LoadModelConfig(target_dir_);
    if (!config.ok()) return config.status();
    config_ = *std::move(config);
    return absl::OkStatus();
  }
  const std::optional<ModelConfig>& config() const { return config_; }

  // The drafter's tensor `name`, [rows][hidden], or else the one that `of_target` names of the
  // target, [vocabulary][hidden].
  template <typename OfTarget>
  absl::StatusOr<const StoredTensor*> Find(const char* name, int32_t rows,
                                           const OfTarget& of_target) {
    const Checkpoint& own = opened_.own.checkpoint;
    const int32_t hidden = drafter_.hidden;
    const std::optional<MtpDrafter>& mtp = drafter_.states->mtp;
    const bool in_target = mtp && mtp->in_target;
    if (own.Contains(name) && !in_target) return own.Find(name, {rows, hidden});
    const std::string missing = absl::StrCat(Where(own.model_dir()), "no tensor '", name, "'");
    if (!config_) {
      return absl::InvalidArgumentError(
          absl::StrCat(missing,
                       ": the target's, which stands in for it, is needed, and the "
                       "target's checkpoint is not given"));
    }
    if (hidden != config_->hidden || rows != config_->vocabulary) {
      return absl::InvalidArgumentError(absl::StrCat(
          missing, ", and the target's, of ", config_->vocabulary, " tokens and hidden size ",
          config_->hidden, ", cannot stand in for it: allowed: ", rows, " tokens and ", hidden));
    }
    if (absl::Status status = OpenTarget(); !status.ok()) return status;
    return opened_.target->checkpoint.Find(of_target(*opened_.target), {rows, hidden});
  }

  // The target's last norm, [hidden], which a drafter of its last states needs.
  absl::StatusOr<const StoredTensor*> FindNorm() {
    if (!config_) {
      return absl::InvalidArgumentError(
          absl::StrCat(Where(opened_.own.checkpoint.model_dir()), "'", kNormName,
                       "' of the target's checkpoint, which is needed, is not given"));
    }
    if (absl::Status status = OpenTarget(); !status.ok()) return status;
    return opened_.target->checkpoint.Find(kNormName, {drafter_.hidden});
  }

 private:
  absl::Status OpenTarget() {
    if (opened_.target) return absl::OkStatus();
    absl::StatusOr<OpenedCheckpoint> target = OpenCheckpoint(target_dir_, *config_);
    if (!target.ok()) return target.status();
    opened_.target.emplace(*std::move(target));
    return absl::OkStatus();
  }

  const std::string& target_dir_;
  const ModelConfig& drafter_;
  OpenedDrafter& opened_;
  std::optional<ModelConfig> config_;
};

// A checkpoint has the distance of each target id from the id that the drafter's head has for it.
absl::StatusOr<std::vector<base::TokenId>> ReadTargetIds(const Checkpoint& checkpoint,
                                                         const ModelConfig& config) {
  const int32_t count = config.states->draft_vocabulary;
  const auto error = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(Where(checkpoint.model_dir()), what));
  };
  const auto it = checkpoint.tensors().find(kDraftIdsName);
  if (it == checkpoint.tensors().end()) {
    if (count == config.vocabulary) return std::vector<base::TokenId>();
    return error(absl::StrCat("no tensor '", kDraftIdsName, "', which a draft vocabulary of ",
                              count, " of ", config.vocabulary, " tokens needs"));
  }
  const StoredTensor& tensor = *it->second;
  if (tensor.type_name != "I64" || tensor.shape != std::vector<int64_t>{count}) {
    return error(absl::StrCat("tensor '", kDraftIdsName, "' has dtype ", tensor.type_name, " and ",
                              tensor.bytes, " bytes; allowed: I64, one for each of ", count,
                              " draft tokens"));
  }
  std::vector<base::TokenId> ids(count);
  std::vector<bool> taken(config.vocabulary);
  for (int32_t i = 0; i < count; ++i) {
    int64_t offset;
    std::memcpy(&offset, tensor.data + int64_t{i} * 8, sizeof(offset));
    // Compared before it is added, which may overflow.
    if (offset < -i || offset >= config.vocabulary - i || taken[i + offset]) {
      return error(absl::StrCat("tensor '", kDraftIdsName, "' sets draft token ", i, " off by ",
                                offset, "; allowed: to ids below ", config.vocabulary,
                                ", each once"));
    }
    ids[i] = static_cast<base::TokenId>(i + offset);
    taken[ids[i]] = true;
  }
  return ids;
}

}  // namespace

absl::StatusOr<OpenedDrafter> OpenDrafter(const std::string& model_dir,
                                          const std::string& target_dir, ModelConfig* config) {
  absl::StatusOr<OpenedCheckpoint> own = OpenCheckpoint(model_dir, *config);
  if (!own.ok()) return own.status();
  std::error_code error;
  if (config->states->block && std::filesystem::exists(model_dir + "/mask_embedding.pt", error)) {
    return absl::UnimplementedError(
        absl::StrCat(Where(model_dir),
                     "mask_embedding.pt, an embedding of its own for masks, is not supported; "
                     "allowed: that of mask_token_id"));
  }
  OpenedDrafter opened = {.own = *std::move(own), .target = {}, .target_ids = {}};
  Shared shared(target_dir, *config, &opened);
  if (absl::Status status = shared.LoadConfig(); !status.ok()) return status;
  if (shared.config()) {
    if (absl::Status status = ResolveDrafter(*shared.config(), config); !status.ok()) return status;
  } else if (config->states->layers.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Where(model_dir),
                     "config.json does not say which layers of the target are "
                     "read: it follows from the target's checkpoint, which is "
                     "needed and not given"));
  }
  const TensorNames& names = NamesOf(*config);
  absl::StatusOr<const StoredTensor*> embedding =
      shared.Find(names.embedding, config->vocabulary, [](const OpenedCheckpoint& target) {
        return EmbeddingName(target.checkpoint, target.tied_embeddings);
      });
  if (!embedding.ok()) return embedding.status();
  opened.embedding = *embedding;
  absl::StatusOr<const StoredTensor*> head =
      shared.Find(names.head, config->states->draft_vocabulary, [](const OpenedCheckpoint& target) {
        return target.tied_embeddings ? EmbeddingName(target.checkpoint, /*tied=*/true) : kHeadName;
      });
  if (!head.ok()) return head.status();
  opened.head = *head;
  if (config->states->mtp) {
    absl::StatusOr<const StoredTensor*> norm = shared.FindNorm();
    if (!norm.ok()) return norm.status();
    opened.target_norm = *norm;
    opened.target_epsilon = shared.config()->rms_epsilon;
  }
  absl::StatusOr<std::vector<base::TokenId>> ids = ReadTargetIds(opened.own.checkpoint, *config);
  if (!ids.ok()) return ids.status();
  opened.target_ids = *std::move(ids);
  return opened;
}

}  // namespace specfabric::model
