#include "gateway/anthropic_format.h"

#include <algorithm>
#include <utility>

#include "gateway/answer_blocks.h"
#include "gateway/openai_format.h"

namespace specfabric::gateway {
namespace {

// An event has its type as its name and in its data.
std::string TypedEvent(const Json& json) {
  return NamedEvent(json["type"].get_ref<const std::string&>(), Dump(json));
}

// What a call was given as arguments; what is no JSON object is none.
Json InputOf(const std::string& arguments) {
  Json input = Json::parse(arguments, nullptr, /*allow_exceptions=*/false);
  return input.is_object() ? input : Json::object();
}

Json AnthropicUsageJson(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", usage.cached_tokens},
          {"output_tokens", usage.completion_tokens}};
}

Json Message(const AnswerHead& head, const Usage& usage) {
  return {{"id", head.id},
          {"type", "message"},
          {"role", "assistant"},
          {"model", head.model},
          {"content", Json::array()},
          {"stop_reason", nullptr},
          {"stop_sequence", nullptr},
          {"usage", AnthropicUsageJson(usage)}};
}

const char* StopReason(const ChoicePart& part) {
  if (part.finish_reason == "tool_calls") return "tool_use";
  if (part.finish_reason == "length") return "max_tokens";
  return part.stop.empty() ? "end_turn" : "stop_sequence";
}

Json StopSequence(const ChoicePart& part) { return part.stop.empty() ? Json() : Json(part.stop); }

// With its content, or empty as it begins.
Json BlockJson(const AnswerHead& head, const AnswerBlock& block, size_t index, bool whole) {
  switch (block.kind) {
    case BlockKind::kReasoning:
      return {{"type", "thinking"}, {"thinking", whole ? block.text : ""}, {"signature", ""}};
    case BlockKind::kText:
      return {{"type", "text"}, {"text", whole ? block.text : ""}, {"citations", nullptr}};
    case BlockKind::kCall:
      break;
  }
  return {{"type", "tool_use"},
          {"id", "toolu_" + CallId(head, 0, static_cast<int>(index))},
          {"name", block.name},
          {"input", whole ? InputOf(block.text) : Json::object()}};
}

Json Delta(BlockKind kind, std::string text) {
  switch (kind) {
    case BlockKind::kReasoning:
      return {{"type", "thinking_delta"}, {"thinking", std::move(text)}};
    case BlockKind::kText:
      return {{"type", "text_delta"}, {"text", std::move(text)}};
    case BlockKind::kCall:
      break;
  }
  return {{"type", "input_json_delta"}, {"partial_json", std::move(text)}};
}

class AnthropicWriter : public AnswerWriter {
 public:
  std::string Whole(const AnswerHead& head, std::vector<ChoicePart> parts,
                    const Usage& usage) override {
    Json json = Message(head, usage);
    ChoicePart& part = parts.front();
    blocks_.Add(std::move(part.piece));
    for (size_t i = 0; i < blocks_.blocks().size(); ++i) {
      json["content"].push_back(BlockJson(head, blocks_.blocks()[i], i, /*whole=*/true));
    }
    json["stop_reason"] = StopReason(part);
    json["stop_sequence"] = StopSequence(part);
    return Dump(json);
  }

  std::string Begin(const AnswerHead& head, size_t, const Usage& usage) override {
    return TypedEvent({{"type", "message_start"}, {"message", Message(head, usage)}});
  }

  std::string News(const AnswerHead& head, ChoicePart part) override {
    std::string events;
    for (BlockNews& news : blocks_.Add(std::move(part.piece))) {
      const AnswerBlock& block = blocks_.blocks()[news.block];
      if (news.begins) {
        if (news.block > 0) events += Stop(news.block - 1);
        events += TypedEvent({{"type", "content_block_start"},
                              {"index", news.block},
                              {"content_block", BlockJson(head, block, news.block, false)}});
      }
      if (news.text.empty()) continue;
      events += TypedEvent({{"type", "content_block_delta"},
                            {"index", news.block},
                            {"delta", Delta(block.kind, std::move(news.text))}});
    }
    if (!part.finish_reason.empty()) last_ = std::move(part);
    return events;
  }

  std::string End(const AnswerHead&, const Usage& usage) override {
    const size_t blocks = blocks_.blocks().size();
    std::string events = blocks > 0 ? Stop(blocks - 1) : "";
    events += TypedEvent(
        {{"type", "message_delta"},
         {"delta", {{"stop_reason", StopReason(last_)}, {"stop_sequence", StopSequence(last_)}}},
         {"usage", AnthropicUsageJson(usage)}});
    return events + TypedEvent({{"type", "message_stop"}});
  }

  std::string Failed(const AnswerHead&, const ApiError& error) override {
    return NamedEvent("error", AnthropicErrorBody(error));
  }

 private:
  static std::string Stop(size_t block) {
    return TypedEvent({{"type", "content_block_stop"}, {"index", block}});
  }

  AnswerBlocks blocks_;
  ChoicePart last_;  // how the output ended
};

// Anthropic's name for the kind of an error.
const char* ErrorType(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

std::unique_ptr<AnswerWriter> MakeAnthropicWriter() { return std::make_unique<AnthropicWriter>(); }

std::string AnthropicErrorBody(const ApiError& error) {
  return Dump(
      {{"type", "error"},
       {"error", {{"type", ErrorType(error.status)}, {"message", OneLine(error.message)}}}});
}

std::string TokenCountBody(int64_t tokens) { return Dump({{"input_tokens", tokens}}); }

}  // namespace specfabric::gateway
