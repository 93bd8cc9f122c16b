#ifndef SPECFABRIC_TESTS_MODEL_CONFIG_JSON_H_
#define SPECFABRIC_TESTS_MODEL_CONFIG_JSON_H_

// What tests of config.json give to LoadModelConfig.

#include <gtest/gtest.h>

#include "absl/status/statusor.h"
#include "model/checkpoint/config.h"
#include "nlohmann/json.hpp"
#include "tests/model/checkpoint_writer.h"

namespace specfabric::model {

using Json = nlohmann::json;

inline absl::StatusOr<ModelConfig> Load(const Json& json) {
  const TempDir dir;
  WriteFile(dir.File("config.json"), json.dump());
  return LoadModelConfig(dir.path());
}

inline ModelConfig LoadOrDie(const Json& json) {
  absl::StatusOr<ModelConfig> config = Load(json);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.value_or(ModelConfig{});
}

// `json` with what the object `patch` says; null takes a field away.
inline Json With(Json json, const char* patch) {
  json.merge_patch(Json::parse(patch));
  return json;
}

}  // namespace specfabric::model

#endif  // SPECFABRIC_TESTS_MODEL_CONFIG_JSON_H_
