#ifndef SPECFABRIC_METRICS_VLLM_LABELS_H_
#define SPECFABRIC_METRICS_VLLM_LABELS_H_

#include <string>

#include "metrics/registry.h"

namespace specfabric::metrics {

// The labels of vLLM's series, so that the filters of its dashboards match.
inline Labels VllmLabels(const std::string& model_name) {
  return {{"model_name", model_name}, {"engine", "0"}};
}

}  // namespace specfabric::metrics

#endif  // SPECFABRIC_METRICS_VLLM_LABELS_H_
