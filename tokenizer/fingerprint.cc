#include "tokenizer/fingerprint.h"

#include <fstream>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/hash.h"

namespace specfabric::tokenizer {

absl::StatusOr<uint64_t> FingerprintOf(const std::string& model_dir) {
  const std::string path = absl::StrCat(model_dir, "/tokenizer.json");
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot open ", path));
  std::vector<char> chunk(1 << 16);
  uint64_t hash = base::kFnvBasis;
  do {
    file.read(chunk.data(), static_cast<std::streamsize>(chunk.size()));
    hash = base::Fnv1a(std::string_view(chunk.data(), static_cast<size_t>(file.gcount())), hash);
  } while (file);
  if (!file.eof()) return absl::DataLossError(absl::StrCat("cannot read ", path));
  return hash;
}

}  // namespace specfabric::tokenizer
