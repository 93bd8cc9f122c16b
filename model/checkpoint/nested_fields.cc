#include "model/checkpoint/nested_fields.h"

#include <algorithm>

namespace specfabric::model {

using Json = nlohmann::json;

std::vector<int32_t> ReadBoundaries(Fields& fields, const char* name, IdsAre ids_are) {
  const Json* list = fields.Find(name);
  if (list == nullptr) return {};
  const int32_t least = ids_are == IdsAre::kLayers ? -1 : 0;
  const auto is_id = [&](const Json& id) {
    return id.is_number_integer() && id.get<double>() >= least && id.get<double>() < kMaxCount;
  };
  if (!list->is_array() || !std::all_of(list->begin(), list->end(), is_id)) {
    fields.Fail(name, absl::StrCat("is ", Shown(*list), "; allowed: a list of integers from ",
                                   least, " to ", kMaxCount - 1));
    return {};
  }
  auto boundaries = list->get<std::vector<int32_t>>();
  if (boundaries.empty()) return boundaries;
  const bool are_layers = ids_are == IdsAre::kLayers ||
                          (ids_are == IdsAre::kLayersIfTheFirstIsOne && boundaries.front() == 1);
  if (are_layers) {
    for (int32_t& boundary : boundaries) ++boundary;
  }
  return boundaries;
}

}  // namespace specfabric::model
