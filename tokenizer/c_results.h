#ifndef SPECFABRIC_TOKENIZER_C_RESULTS_H_
#define SPECFABRIC_TOKENIZER_C_RESULTS_H_

// Takes what the calls of tokenizer/c_api.h give, and frees it. Private to tokenizer/.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/types.h"
#include "tokenizer/c_api.h"

namespace specfabric::tokenizer {

inline std::string TakeBytes(SfBytes bytes) {
  std::string text(reinterpret_cast<const char*>(bytes.data), bytes.size);
  sf_tokenizer_free_bytes(bytes);
  return text;
}

inline std::vector<base::TokenId> TakeIds(SfIds ids) {
  std::vector<base::TokenId> copy(ids.data, ids.data + ids.size);
  sf_tokenizer_free_ids(ids);
  return copy;
}

// `bytes` is the message if `code` is an error.
inline absl::StatusOr<std::string> TakeResult(int32_t code, SfBytes bytes) {
  std::string text = TakeBytes(bytes);
  if (code != 0) return absl::Status(static_cast<absl::StatusCode>(code), text);
  return text;
}

inline absl::Status TakeStatus(int32_t code, SfBytes message) {
  return TakeResult(code, message).status();
}

}  // namespace specfabric::tokenizer

#endif  // SPECFABRIC_TOKENIZER_C_RESULTS_H_
