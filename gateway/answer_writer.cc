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
  explicit OpenAiWriter(EventUsage usage) : usage_(usage) {}

  std::string Whole(const AnswerHead& head, std::vector<ChoicePart> parts,
                    const Usage& usage) override {
    return Answer(head, parts, usage);
  }

  // OpenAI's Python client keeps choices in the order in which they first appear.
  std::string Begin(const AnswerHead& head, size_t choices, const Usage& usage) override {
    std::string events;
    if (head.api == Api::kCompletions) return events;
    for (size_t i = 0; i < choices; ++i) {
      events += Event(RoleChunk(head, static_cast<int>(i), usage.prompt_tokens, usage_));
    }
    return events;
  }

  std::string News(const AnswerHead& head, ChoicePart part) override {
    return Event(Chunk(head, part, usage_));
  }

  std::string End(const AnswerHead& head, const Usage& usage) override {
    const bool told = usage_ != EventUsage::kAbsent;
    return (told ? Event(UsageChunk(head, usage)) : "") + Event("[DONE]");
  }

  std::string Failed(const AnswerHead&, const ApiError& error) override {
    return Event(ErrorBody(error)) + Event("[DONE]");
  }

 private:
  const EventUsage usage_;
};

EventUsage UsageIn(const GenerationRequest& request) {
  if (!request.include_usage) return EventUsage::kAbsent;
  return request.usage_in_each ? EventUsage::kSoFar : EventUsage::kNull;
}

}  // namespace

std::unique_ptr<AnswerWriter> MakeAnswerWriter(const GenerationRequest& request) {
  switch (request.api) {
    case Api::kResponses:
      return MakeResponsesWriter(request.echoed);
    case Api::kAnthropic:
      return MakeAnthropicWriter();
    default:
      return std::make_unique<OpenAiWriter>(UsageIn(request));
  }
}

std::string ErrorBody(Api api, const ApiError& error) {
  return api == Api::kAnthropic ? AnthropicErrorBody(error) : ErrorBody(error);
}

}  // namespace specfabric::gateway
