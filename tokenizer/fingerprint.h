#ifndef SPECFABRIC_TOKENIZER_FINGERPRINT_H_
#define SPECFABRIC_TOKENIZER_FINGERPRINT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace specfabric::tokenizer {

// FNV-1a hash of the bytes of the checkpoint's tokenizer.json: equal on all machines with the same
// file. NotFound without the file. Needs no tokenizer library, so that every role can compare
// vocabularies.
absl::StatusOr<uint64_t> FingerprintOf(const std::string& model_dir);

}  // namespace specfabric::tokenizer

#endif  // SPECFABRIC_TOKENIZER_FINGERPRINT_H_
