#ifndef SPECFABRIC_GATEWAY_ANSWER_WRITER_H_
#define SPECFABRIC_GATEWAY_ANSWER_WRITER_H_

// Writes an answer in the form of the API that it was asked by.

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "gateway/answer.h"
#include "gateway/api_error.h"

namespace specfabric::gateway {

struct GenerationRequest;

// Of one request. Its methods are called one after the other, on whatever thread formats: either
// Whole alone; or, of a stream, Begin, News for all that is new, and then End or Failed.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // The body of a whole answer.
  virtual std::string Whole(const AnswerHead& head, std::vector<ChoicePart> parts,
                            const Usage& usage) = 0;

  // Events of a stream. `usage` of Begin knows the prompt's tokens alone.
  virtual std::string Begin(const AnswerHead& head, size_t choices, const Usage& usage) = 0;
  virtual std::string News(const AnswerHead& head, ChoicePart part) = 0;
  virtual std::string End(const AnswerHead& head, const Usage& usage) = 0;
  virtual std::string Failed(const AnswerHead& head, const ApiError& error) = 0;

  // Bytes that whole answers, and the beginning and the end of streams, have besides what is new:
  // of the request, and of what was told before.
  virtual size_t RepeatedBytes() const { return 0; }
};

// Work grows with what answers repeat of the request.
std::unique_ptr<AnswerWriter> MakeAnswerWriter(const GenerationRequest& request);

// The body of an answer that is an error.
std::string ErrorBody(Api api, const ApiError& error);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_ANSWER_WRITER_H_
