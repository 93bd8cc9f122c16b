#ifndef SPECFABRIC_SCHEMAS_WIRE_H_
#define SPECFABRIC_SCHEMAS_WIRE_H_

// What the codecs share: verified access to a FlatBuffer, and the range checks that the schema
// language cannot say. Private to schemas/.

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/types.h"
#include "flatbuffers/flatbuffers.h"
#include "schemas/messages.h"
#include "schemas/specfabric_generated.h"

namespace specfabric::schemas::wire {

using flatbuffers::FlatBufferBuilder;

// A payload that has passed the FlatBuffers verifier as a table of type T. Reads in place; only a
// span that does not start on an 8-byte boundary (a heap vector always does) is copied first.
template <typename T>
class VerifiedTable {
 public:
  static absl::StatusOr<VerifiedTable> Open(absl::Span<const uint8_t> payload, const char* name) {
    VerifiedTable table;
    if (reinterpret_cast<uintptr_t>(payload.data()) % alignof(uint64_t) != 0) {
      table.aligned_.assign(payload.begin(), payload.end());
      payload = table.aligned_;
    }
    if (payload.size() < sizeof(flatbuffers::uoffset_t) ||
        payload.size() >= FLATBUFFERS_MAX_BUFFER_SIZE ||
        !flatbuffers::Verifier(payload.data(), payload.size()).VerifyBuffer<T>(nullptr)) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, ": ", payload.size(), " bytes that are not a FlatBuffer of this message"));
    }
    table.root_ = flatbuffers::GetRoot<T>(payload.data());
    return table;
  }

  const T* operator->() const { return root_; }

 private:
  std::vector<uint8_t> aligned_;  // moving keeps its storage, so root_ stays valid
  const T* root_ = nullptr;
};

// Collects the first range error of one message, so that a decoder reads as a list of its rules.
class Checker {
 public:
  explicit Checker(const char* message) : message_(message) {}

  // `rule` says what is allowed, `given` what was found.
  template <typename V>
  void Fail(const char* field, const V& given, absl::string_view rule) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(
        absl::StrCat(message_, ": ", field, " is ", given, ", must be ", rule));
  }
  // Fails unless `ok`. Where `given` or `rule` would have to be put together first, ask and Fail.
  template <typename V>
  void Require(bool ok, const char* field, const V& given, absl::string_view rule) {
    if (!ok) Fail(field, given, rule);
  }
  void NonNegative(const char* field, int64_t value) {
    Require(value >= 0, field, value, "at least 0");
  }
  void AtMost(const char* field, uint64_t value, uint64_t limit) {
    if (value > limit) Fail(field, value, absl::StrCat("at most ", limit));
  }
  void Size(const char* field, size_t size, size_t limit) {
    if (size > limit) {
      Fail(field, absl::StrCat(size, " entries long"), absl::StrCat("at most ", limit));
    }
  }
  void Cost(const char* field, float value) {
    Require(value >= 0 && std::isfinite(value), field, value, "finite and at least 0");
  }
  void Finite(const char* field, absl::Span<const float> values);
  void TokenIds(const char* field, absl::Span<const base::TokenId> tokens);
  // Short, and without control characters: it will be printed in logs.
  void Text(const char* field, std::string_view text, size_t limit);
  void Sampling(const base::SamplingParams& sampling);

  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }

 private:
  const char* message_;
  absl::Status status_;
};

// A vector field as a span over the buffer; an absent field is empty.
template <typename T>
absl::Span<const T> View(const flatbuffers::Vector<T>* field) {
  if (field == nullptr) return {};
  return {field->data(), field->size()};
}
inline std::string_view View(const flatbuffers::String* field) {
  if (field == nullptr) return {};
  return {field->data(), field->size()};
}
template <typename T>
std::vector<T> Copy(absl::Span<const T> view) {
  return {view.begin(), view.end()};
}

SamplingParams ToWire(const base::SamplingParams& sampling);
// An absent struct is the default sampling.
base::SamplingParams FromWire(const SamplingParams* sampling);

TraceContext ToWire(const base::TraceContext& trace);
// An absent struct is not traced, and a span of no trace is none.
base::TraceContext FromWire(const TraceContext* trace);

// Ends the buffer and hands its bytes over.
template <typename T>
std::vector<uint8_t> Finish(FlatBufferBuilder& builder, flatbuffers::Offset<T> root) {
  builder.Finish(root);
  return {builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize()};
}

}  // namespace specfabric::schemas::wire

#endif  // SPECFABRIC_SCHEMAS_WIRE_H_
