#include "model/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/hash.h"
#include "model/bfloat16.h"
#include "nlohmann/json.hpp"

namespace specfabric::model {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit

struct TypeInfo {
  const char* name;
  int bytes;
  StoredType type;
};
constexpr TypeInfo kTypes[] = {
    {"F32", 4, StoredType::kFloat32},  {"BF16", 2, StoredType::kBFloat16},
    {"F16", 2, StoredType::kFloat16},  {"F64", 8, StoredType::kOther},
    {"I64", 8, StoredType::kOther},    {"I32", 4, StoredType::kOther},
    {"I16", 2, StoredType::kOther},    {"I8", 1, StoredType::kOther},
    {"U64", 8, StoredType::kOther},    {"U32", 4, StoredType::kOther},
    {"U16", 2, StoredType::kOther},    {"U8", 1, StoredType::kOther},
    {"BOOL", 1, StoredType::kOther},   {"F8_E4M3", 1, StoredType::kOther},
    {"F8_E5M2", 1, StoredType::kOther}};

const TypeInfo* FindType(const std::string& name) {
  const auto it = std::find_if(std::begin(kTypes), std::end(kTypes),
                               [&](const TypeInfo& info) { return name == info.name; });
  return it == std::end(kTypes) ? nullptr : it;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// A non-negative integer of the header, or nothing.
std::optional<uint64_t> Natural(const Json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  return value.get<uint64_t>();
}

// The bytes that a tensor of this shape takes, or nothing if the shape is malformed or overflows.
std::optional<uint64_t> ReadShape(const Json& dims, int element_bytes,
                                  std::vector<int64_t>* shape) {
  if (!dims.is_array()) return std::nullopt;
  uint64_t bytes = element_bytes;
  for (const Json& dim : dims) {
    const std::optional<uint64_t> extent = Natural(dim);
    if (!extent || *extent > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return std::nullopt;
    }
    if (__builtin_mul_overflow(bytes, *extent, &bytes)) return std::nullopt;
    shape->push_back(static_cast<int64_t>(*extent));
  }
  return bytes;
}

struct DataRegion {
  const std::byte* data;
  uint64_t size;
};

absl::StatusOr<StoredTensor> ReadEntry(const std::string& name, const Json& entry,
                                       const DataRegion& region) {
  const auto error = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("tensor '", name, "' ", what));
  };
  if (!entry.is_object()) return error("is not described by an object");
  const auto dtype = entry.find("dtype"), shape = entry.find("shape"),
             offsets = entry.find("data_offsets");
  if (dtype == entry.end() || !dtype->is_string()) return error("has no dtype");
  const TypeInfo* info = FindType(dtype->get<std::string>());
  if (info == nullptr) return error(absl::StrCat("has an unknown dtype, ", dtype->dump()));

  StoredTensor tensor;
  tensor.type = info->type;
  tensor.type_name = info->name;
  const std::optional<uint64_t> bytes =
      shape == entry.end() ? std::nullopt : ReadShape(*shape, info->bytes, &tensor.shape);
  if (!bytes) return error("has no valid shape");
  if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2) {
    return error("has no data_offsets");
  }
  const std::optional<uint64_t> begin = Natural((*offsets)[0]), end = Natural((*offsets)[1]);
  if (!begin || !end || *begin > *end) return error("has no valid data_offsets");
  if (*end > region.size) {
    return error(absl::StrCat("ends at byte ", *end, " of the data, but the file has ", region.size,
                              " (truncated?)"));
  }
  if (*end - *begin != *bytes) {
    return error(absl::StrCat("takes ", *end - *begin, " bytes, but ", info->name, " ",
                              ShapeText(tensor.shape), " needs ", *bytes));
  }
  tensor.data = region.data + *begin;
  tensor.bytes = static_cast<int64_t>(*bytes);
  return tensor;
}

absl::Status CheckDisjoint(const std::map<std::string, StoredTensor>& tensors) {
  std::vector<std::pair<const std::byte*, const std::string*>> starts;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.bytes > 0) starts.emplace_back(tensor.data, &name);
  }
  std::sort(starts.begin(), starts.end());
  for (size_t i = 1; i < starts.size(); ++i) {
    const std::string& before = *starts[i - 1].second;
    if (starts[i - 1].first + tensors.at(before).bytes > starts[i].first) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensors '", before, "' and '", *starts[i].second, "' overlap"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::map<std::string, StoredTensor>> ReadHeader(const std::byte* data, size_t size) {
  uint64_t header_bytes = 0;
  if (size < sizeof(header_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("is ", size, " bytes long (truncated?)"));
  }
  std::memcpy(&header_bytes, data, sizeof(header_bytes));
  if (header_bytes > kMaxHeaderBytes || header_bytes > size - sizeof(header_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("announces a header of ", header_bytes,
                                                   " bytes, but is ", size,
                                                   " bytes long (truncated?)"));
  }
  const char* text = reinterpret_cast<const char*>(data) + sizeof(header_bytes);
  const Json header =
      Json::parse(text, text + header_bytes, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return absl::InvalidArgumentError("has a header that is not JSON");

  const size_t data_start = sizeof(header_bytes) + header_bytes;
  const DataRegion region{data + data_start, size - data_start};
  std::map<std::string, StoredTensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    absl::StatusOr<StoredTensor> tensor = ReadEntry(name, entry, region);
    if (!tensor.ok()) return tensor.status();
    tensors.emplace(name, *std::move(tensor));
  }
  if (absl::Status status = CheckDisjoint(tensors); !status.ok()) return status;
  return tensors;
}

// The shard files that an index names: plain names in the model's own folder.
absl::StatusOr<std::set<std::string>> ReadIndex(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  const Json index = Json::parse(text.str(), /*cb=*/nullptr, /*allow_exceptions=*/false);
  const auto error = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
  };
  if (!index.is_object()) return error("not a JSON object");
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object()) return error("has no weight_map");
  std::set<std::string> names;
  for (const auto& [tensor, shard] : map->items()) {
    const std::string name = shard.is_string() ? shard.get<std::string>() : "";
    if (name.empty() || name.find('/') != std::string::npos) {
      return error(absl::StrCat("tensor '", tensor, "' is in ",
                                shard.is_string() ? shard.dump() : shard.type_name(),
                                "; allowed: the name of a file beside the index"));
    }
    names.insert(name);
  }
  return names;
}

// Four independent multiply-and-rotate lanes over 64-bit words: a memory-bound pass.
uint64_t HashBytes(const std::byte* data, int64_t bytes) {
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15;
  std::array<uint64_t, 4> lanes = {1, 2, 3, 4};
  const auto mix = [&](int lane, const std::byte* from) {
    uint64_t word;
    std::memcpy(&word, from, sizeof(word));
    const uint64_t product = (lanes[lane] ^ word) * kMultiplier;
    lanes[lane] = (product << 29) | (product >> 35);
  };
  int64_t at = 0;
  for (; at + 32 <= bytes; at += 32) {
    for (int lane = 0; lane < 4; ++lane) mix(lane, data + at + 8 * lane);
  }
  std::array<std::byte, 32> rest{};
  std::copy(data + at, data + bytes, rest.begin());
  for (int lane = 0; lane < 4; ++lane) mix(lane, rest.data() + 8 * lane);
  uint64_t hash = base::Mix64(static_cast<uint64_t>(bytes));
  for (uint64_t lane : lanes) hash = base::Mix64(hash ^ lane);
  return hash;
}

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::NotFoundError(absl::StrCat("cannot open ", path));
  const absl::Cleanup close_file = [fd] { close(fd); };
  struct stat info {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": empty, or not a regular file"));
  }
  const size_t size = static_cast<size_t>(info.st_size);
  void* mapped = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (mapped == MAP_FAILED) return absl::InternalError(absl::StrCat(path, ": mmap failed"));

  SafetensorsFile file(static_cast<const std::byte*>(mapped), size);
  absl::StatusOr<std::map<std::string, StoredTensor>> tensors = ReadHeader(file.data_, size);
  if (!tensors.ok()) {
    return absl::Status(tensors.status().code(),
                        absl::StrCat(path, ": ", tensors.status().message()));
  }
  file.tensors_ = *std::move(tensors);
  return file;
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(other.size_),
      tensors_(std::move(other.tensors_)) {}

SafetensorsFile::~SafetensorsFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& model_dir) {
  constexpr char kSingle[] = "model.safetensors", kIndex[] = "model.safetensors.index.json";
  std::error_code error;
  std::set<std::string> names;
  if (std::filesystem::exists(absl::StrCat(model_dir, "/", kSingle), error)) {
    names.insert(kSingle);
  } else if (std::filesystem::exists(absl::StrCat(model_dir, "/", kIndex), error)) {
    absl::StatusOr<std::set<std::string>> listed = ReadIndex(absl::StrCat(model_dir, "/", kIndex));
    if (!listed.ok()) return listed.status();
    names = *std::move(listed);
  } else {
    return absl::NotFoundError(
        absl::StrCat("model folder '", model_dir, "' holds neither ", kSingle, " nor ", kIndex));
  }

  Checkpoint checkpoint;
  checkpoint.model_dir_ = model_dir;
  for (const std::string& name : names) {
    absl::StatusOr<SafetensorsFile> file =
        SafetensorsFile::Open(absl::StrCat(model_dir, "/", name));
    if (!file.ok()) return file.status();
    checkpoint.files_.push_back(*std::move(file));
  }
  for (const SafetensorsFile& file : checkpoint.files_) {
    for (const auto& [name, tensor] : file.tensors()) {
      if (!checkpoint.tensors_.emplace(name, &tensor).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("model folder '", model_dir, "': tensor '", name, "' is in two files"));
      }
    }
  }
  return checkpoint;
}

absl::StatusOr<const StoredTensor*> Checkpoint::Find(const std::string& name,
                                                     const std::vector<int64_t>& shape) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) {
    return absl::NotFoundError(
        absl::StrCat("model folder '", model_dir_, "': no tensor '", name, "'"));
  }
  const StoredTensor& tensor = *it->second;
  const auto error = [&](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat("model folder '", model_dir_, "': tensor '", name, "' ", what));
  };
  if (tensor.shape != shape) {
    return error(absl::StrCat("has shape ", ShapeText(tensor.shape), ", but config.json says ",
                              ShapeText(shape)));
  }
  if (tensor.type == StoredType::kOther) {
    return error(absl::StrCat("has dtype ", tensor.type_name, "; allowed: F32, BF16, F16"));
  }
  return &tensor;
}

uint64_t Checkpoint::ContentHash() const {
  uint64_t hash = 0;
  for (const auto& [name, tensor] : tensors_) {
    hash = base::Mix64(hash ^ base::Fnv1a(absl::StrCat(name, " ", tensor->type_name, " ",
                                                       ShapeText(tensor->shape))));
    hash = base::Mix64(hash ^ HashBytes(tensor->data, tensor->bytes));
  }
  return hash;
}

void ReadFloats(const StoredTensor& tensor, int64_t first, int64_t count, float* out) {
  if (tensor.type == StoredType::kFloat32) {
    std::memcpy(out, tensor.data + first * 4, count * 4);
    return;
  }
  const std::byte* from = tensor.data + first * 2;
  const bool bfloat16 = tensor.type == StoredType::kBFloat16;
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, from + i * 2, sizeof(bits));
    out[i] = bfloat16 ? WidenBFloat16(bits) : WidenFloat16(bits);
  }
}

}  // namespace specfabric::model
