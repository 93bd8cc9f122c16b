#ifndef SPECFABRIC_MODEL_CHECKPOINT_SAFETENSORS_H_
#define SPECFABRIC_MODEL_CHECKPOINT_SAFETENSORS_H_

// Reads checkpoints in the safetensors format: eight bytes of header length (little-endian), a JSON
// header naming each tensor's dtype, shape and byte range, then the data. Files are mapped, not
// copied; every offset is checked against the file before anything is read.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_type.h"

namespace specfabric::model {

enum class StoredType : uint8_t { kFloat32, kBFloat16, kFloat16, kOther };

// A tensor inside a mapped file; valid while its file is open. data may be unaligned.
struct StoredTensor {
  StoredType type = StoredType::kOther;
  std::string type_name;  // as in the file, e.g. "BF16"
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  int64_t bytes = 0;
};

// One file.
class SafetensorsFile {
 public:
  // NotFound: no such file. InvalidArgument: truncated, overlapping or malformed.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);
  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) = delete;
  ~SafetensorsFile();

  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }

 private:
  SafetensorsFile(const std::byte* data, size_t size) : data_(data), size_(size) {}

  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::map<std::string, StoredTensor> tensors_;
};

// All files of a checkpoint: model.safetensors, or else the shards that
// model.safetensors.index.json names.
class Checkpoint {
 public:
  // Errors are SafetensorsFile::Open's; Unimplemented: the folder has files of another format.
  static absl::StatusOr<Checkpoint> Open(const std::string& model_dir);

  const std::string& model_dir() const { return model_dir_; }
  // By name.
  const std::map<std::string, const StoredTensor*>& tensors() const { return tensors_; }
  // What the operator should know about the files, for the log.
  const std::vector<std::string>& notes() const { return notes_; }

  bool Contains(const std::string& name) const { return tensors_.contains(name); }
  // NotFound: no such tensor. InvalidArgument: another shape than `shape`, or not F32, BF16, F16.
  absl::StatusOr<const StoredTensor*> Find(const std::string& name,
                                           const std::vector<int64_t>& shape) const;
  // A hash of every tensor's name, dtype, shape and bytes; the same however tensors are spread over
  // files. Reads the whole checkpoint once, with `threads` threads.
  uint64_t ContentHash(int threads = 1) const;

 private:
  absl::Status AddFile(const std::string& name);
  absl::Status AddShards(const std::string& index,
                         const std::map<std::string, std::string>& shards);

  std::string model_dir_;
  std::map<std::string, SafetensorsFile> files_;  // by name in the folder
  std::map<std::string, const StoredTensor*> tensors_;
  std::vector<std::string> notes_;
};

// A hash of a tensor's dtype, shape and bytes.
uint64_t ContentHash(const StoredTensor& tensor);

// Of one element of a tensor of F32, BF16 or F16.
constexpr int ElementBytes(StoredType type) { return type == StoredType::kFloat32 ? 4 : 2; }

// Converts `count` elements, from element `first` on, to float32.
void ReadFloats(const StoredTensor& tensor, int64_t first, int64_t count, float* out);
// The same to either type: a plain copy where they are stored as `type`; bfloat16 is rounded to
// nearest. `out` is aligned for it.
void ReadElements(const StoredTensor& tensor, int64_t first, int64_t count, base::DataType type,
                  std::byte* out);

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_CHECKPOINT_SAFETENSORS_H_
