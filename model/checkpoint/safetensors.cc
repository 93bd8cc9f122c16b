#include "model/checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/hash.h"
#include "model/checkpoint/float16.h"
#include "model/checkpoint/json_fields.h"
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
  const absl::StatusOr<Json> header =
      ParseUniqueKeys({reinterpret_cast<const char*>(data) + sizeof(header_bytes), header_bytes});
  if (!header.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("header: ", header.status().message()));
  }

  const size_t data_start = sizeof(header_bytes) + header_bytes;
  const DataRegion region{data + data_start, size - data_start};
  std::map<std::string, StoredTensor> tensors;
  for (const auto& [name, entry] : header->items()) {
    if (name == "__metadata__") continue;
    absl::StatusOr<StoredTensor> tensor = ReadEntry(name, entry, region);
    if (!tensor.ok()) return tensor.status();
    tensors.emplace(name, *std::move(tensor));
  }
  if (absl::Status status = CheckDisjoint(tensors); !status.ok()) return status;
  return tensors;
}

// By tensor, the shard file that an index assigns it to: plain names in the model's own folder.
using ShardMap = std::map<std::string, std::string>;

absl::StatusOr<ShardMap> ReadIndex(const std::string& path) {
  const absl::StatusOr<Json> index = ParseUniqueKeys(ReadText(path).value_or(""));
  const auto error = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
  };
  if (!index.ok()) return error(std::string(index.status().message()));
  const auto map = index->find("weight_map");
  if (map == index->end() || !map->is_object()) return error("has no weight_map");
  if (map->empty()) return error("its weight_map names no tensor");
  ShardMap shards;
  for (const auto& [tensor, shard] : map->items()) {
    const std::string name = shard.is_string() ? shard.get<std::string>() : "";
    if (name.empty() || name == "." || name == ".." ||
        name.find_first_of(std::string_view("/\0", 2)) != std::string::npos) {
      return error(absl::StrCat("tensor ", Shown(tensor), " is in ", Shown(shard),
                                "; allowed: the name of a file beside the index"));
    }
    shards.emplace(tensor, name);
  }
  return shards;
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
  // Not blocking: it might be a pipe that nobody writes to.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
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
  Checkpoint checkpoint;
  checkpoint.model_dir_ = model_dir;
  const std::string index = absl::StrCat(model_dir, "/", kIndex);
  const bool has_index = std::filesystem::exists(index, error);
  if (std::filesystem::exists(absl::StrCat(model_dir, "/", kSingle), error)) {
    if (has_index) {
      checkpoint.notes_.push_back(
          absl::StrCat("model folder '", model_dir, "' holds both ", kSingle, " and ", kIndex,
                       ": the index and the other files that it names are not read"));
    }
    if (absl::Status status = checkpoint.AddFile(kSingle); !status.ok()) return status;
    for (const auto& [name, tensor] : checkpoint.files_.begin()->second.tensors()) {
      checkpoint.tensors_.emplace(name, &tensor);
    }
    return checkpoint;
  }
  if (!has_index) {
    for (const char* other : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
      if (!std::filesystem::exists(absl::StrCat(model_dir, "/", other), error)) continue;
      return absl::UnimplementedError(absl::StrCat("model folder '", model_dir, "' holds ", other,
                                                   ", which is not supported; allowed: ", kSingle,
                                                   " or ", kIndex));
    }
    return absl::NotFoundError(
        absl::StrCat("model folder '", model_dir, "' holds neither ", kSingle, " nor ", kIndex));
  }
  const absl::StatusOr<ShardMap> shards = ReadIndex(index);
  if (!shards.ok()) return shards.status();
  if (absl::Status status = checkpoint.AddShards(index, *shards); !status.ok()) return status;
  return checkpoint;
}

absl::Status Checkpoint::AddFile(const std::string& name) {
  if (files_.contains(name)) return absl::OkStatus();
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(absl::StrCat(model_dir_, "/", name));
  if (!file.ok()) return file.status();
  files_.emplace(name, *std::move(file));
  return absl::OkStatus();
}

// A tensor is taken from the shard that the index assigns it to, whatever the other shards hold
// under its name. One that the index leaves out is taken from the shard that has it, as
// transformers does.
absl::Status Checkpoint::AddShards(const std::string& index,
                                   const std::map<std::string, std::string>& shards) {
  const auto error = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(index, ": ", what));
  };
  for (const auto& [name, shard] : shards) {
    if (absl::Status status = AddFile(shard); !status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat(index, ": tensor ", Shown(name), ": ", status.message()));
    }
    const auto& held = files_.at(shard).tensors();
    const auto it = held.find(name);
    if (it == held.end()) {
      return error(absl::StrCat("tensor ", Shown(name), " is not in the file it is assigned to, ",
                                Shown(shard)));
    }
    tensors_.emplace(name, &it->second);
  }
  for (const auto& [shard, file] : files_) {
    for (const auto& [name, tensor] : file.tensors()) {
      if (shards.contains(name) || tensors_.emplace(name, &tensor).second) continue;
      return error(absl::StrCat("tensor ", Shown(name), " is in two files, one of them ",
                                Shown(shard), ", and is not assigned to either"));
    }
  }
  return absl::OkStatus();
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

uint64_t Checkpoint::ContentHash(int threads) const {
  std::vector<std::pair<const std::string*, const StoredTensor*>> all;
  for (const auto& [name, tensor] : tensors_) all.emplace_back(&name, tensor);
  std::vector<uint64_t> contents(all.size());
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < all.size(); i = next++) {
      contents[i] = HashBytes(all[i].second->data, all[i].second->bytes);
    }
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  uint64_t hash = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto& [name, tensor] = all[i];
    hash = base::Mix64(hash ^ base::Fnv1a(absl::StrCat(*name, " ", tensor->type_name, " ",
                                                       ShapeText(tensor->shape))));
    hash = base::Mix64(hash ^ contents[i]);
  }
  return hash;
}

uint64_t ContentHash(const StoredTensor& tensor) {
  const uint64_t kind = base::Fnv1a(absl::StrCat(tensor.type_name, " ", ShapeText(tensor.shape)));
  return base::Mix64(kind ^ HashBytes(tensor.data, tensor.bytes));
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

void ReadElements(const StoredTensor& tensor, int64_t first, int64_t count, base::DataType type,
                  std::byte* out) {
  if (type == base::DataType::kFloat32) {
    ReadFloats(tensor, first, count, reinterpret_cast<float*>(out));
    return;
  }
  if (tensor.type == StoredType::kBFloat16) {
    std::memcpy(out, tensor.data + first * 2, count * 2);
    return;
  }
  // In pieces that stay in the innermost cache.
  constexpr int64_t kPiece = 1024;
  std::array<float, kPiece> values;
  auto* const rounded = reinterpret_cast<uint16_t*>(out);
  for (int64_t at = 0; at < count; at += kPiece) {
    const int64_t piece = std::min(kPiece, count - at);
    ReadFloats(tensor, first + at, piece, values.data());
    for (int64_t i = 0; i < piece; ++i) rounded[at + i] = RoundToBFloat16(values[i]);
  }
}

}  // namespace specfabric::model
