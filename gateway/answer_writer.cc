#include "gateway/answer_writer.h"

#include <utility>

#include "gateway/anthropic_format.h"
#include "gateway/openai_format.h"
#include "gateway/openai_parse.h"
#include "gateway/responses_format.h"

namespace specfabric::gateway {
namespace {

// Completions and chats.
class OpenAiWriter : public AnswerWriter {
 public:
  explicit OpenAiWriter(bool with_usage) : with_usage_(with_usage) {}

  std::string Whole(const AnswerHead& head, std::vector<ChoicePart> parts,
                    const Usage& usage) override {
    return Answer(head, parts, usage);
  }

  // OpenAI's Python client keeps choices in the order in which they first appear.
  std::string Begin(const AnswerHead& head, size_t choices, const Usage&) override {
    std::string events;
    if (head.api == Api::kCompletions) return events;
    for (size_t i = 0; i < choices; ++i) {
      events += Event(RoleChunk(head, static_cast<int>(i), with_usage_));
    }
    return events;
  }

  std::string News(const AnswerHead& head, ChoicePart part) override {
    return Event(Chunk(head, part, with_usage_));
  }

  std::string End(const AnswerHead& head, const Usage& usage) override {
    const std::string events = with_usage_ ? Event(UsageChunk(head, usage)) : "";
    return events + Event("[DONE]");
  }

  std::string Failed(const AnswerHead&, const ApiError& error) override {
    return Event(ErrorBody(error)) + Event("[DONE]");
  }

 private:
  const bool with_usage_;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeAnswerWriter(const GenerationRequest& request) {
  switch (request.api) {
    case Api::kResponses:
      return MakeResponsesWriter(request.echoed);
    case Api::kAnthropic:
      return MakeAnthropicWriter();
    default:
      return std::make_unique<OpenAiWriter>(request.include_usage);
  }
}

std::string ErrorBody(Api api, const ApiError& error) {
  return api == Api::kAnthropic ? AnthropicErrorBody(error) : ErrorBody(error);
}

}  // namespace specfabric::gateway
