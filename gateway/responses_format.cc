#include "gateway/responses_format.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gateway/answer_blocks.h"
#include "gateway/format_speculation.h"
#include "gateway/openai_format.h"

namespace specfabric::gateway {
namespace {

constexpr const char* kInProgress = "in_progress";
constexpr const char* kCompleted = "completed";
constexpr const char* kIncomplete = "incomplete";

Json ResponsesUsageJson(const Usage& usage) {
  return {
      {"input_tokens", usage.prompt_tokens},
      {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", 0}}},
      {"output_tokens", usage.completion_tokens},
      {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
      {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

std::string ItemId(const AnswerHead& head, BlockKind kind, size_t index) {
  const char* const prefix = kind == BlockKind::kReasoning ? "rs"
                             : kind == BlockKind::kText    ? "msg"
                                                           : "fc";
  return absl::StrCat(prefix, head.id.substr(head.id.find('_')), "_", index);
}

Json Logprobs(const std::vector<TokenEntry>& entries) {
  Json list = Json::array();
  for (const TokenEntry& entry : entries) list.push_back(ChatToken(entry, /*as_ids=*/false));
  return list;
}

// The only content part of a reasoning or a text block.
Json PartJson(const AnswerBlock& block, bool whole) {
  if (block.kind == BlockKind::kReasoning) {
    return {{"type", "reasoning_text"}, {"text", whole ? block.text : ""}};
  }
  return {{"type", "output_text"},
          {"text", whole ? block.text : ""},
          {"annotations", Json::array()},
          {"logprobs", whole ? Logprobs(block.entries) : Json::array()}};
}

// An output item: with its content, or empty as it begins.
Json ItemJson(const AnswerHead& head, const AnswerBlock& block, size_t index, const char* status) {
  const bool whole = status != kInProgress;
  Json item = {{"id", ItemId(head, block.kind, index)}};
  Json content = Json::array();
  if (whole && block.kind != BlockKind::kCall) content.push_back(PartJson(block, whole));
  switch (block.kind) {
    case BlockKind::kReasoning:
      item["type"] = "reasoning";
      item["summary"] = Json::array();
      item["content"] = std::move(content);
      break;
    case BlockKind::kText:
      item["type"] = "message";
      item["role"] = "assistant";
      item["content"] = std::move(content);
      break;
    case BlockKind::kCall:
      item["type"] = "function_call";
      item["call_id"] = "call_" + CallId(head, 0, static_cast<int>(index));
      item["name"] = block.name;
      item["arguments"] = whole ? block.text : "";
      break;
  }
  item["status"] = status;
  return item;
}

class ResponsesWriter : public AnswerWriter {
 public:
  explicit ResponsesWriter(const std::string& echoed)
      : echoed_(Json::parse(echoed)), repeated_bytes_(echoed.size()) {}

  std::string Whole(const AnswerHead& head, std::vector<ChoicePart> parts,
                    const Usage& usage) override {
    finish_reason_ = parts.front().finish_reason;
    blocks_.Add(std::move(parts.front().piece));
    return Dump(Response(head, Status(), &usage));
  }

  std::string Begin(const AnswerHead& head, size_t, const Usage&) override {
    const Json response = Response(head, kInProgress, nullptr);
    // One after the other: each takes the next number.
    std::string events = Event("response.created", {{"response", response}});
    return events += Event("response.in_progress", {{"response", response}});
  }

  std::string News(const AnswerHead& head, ChoicePart part) override {
    std::string events;
    for (BlockNews& news : blocks_.Add(std::move(part.piece))) {
      if (news.begins) {
        if (news.block > 0) events += EndBlock(head, news.block - 1, kCompleted);
        events += BeginBlock(head, news.block);
      }
      repeated_bytes_ += news.text.size();
      if (!news.text.empty()) events += Delta(head, std::move(news));
    }
    if (!part.finish_reason.empty()) finish_reason_ = part.finish_reason;
    return events;
  }

  std::string End(const AnswerHead& head, const Usage& usage) override {
    const size_t blocks = blocks_.blocks().size();
    std::string events = blocks > 0 ? EndBlock(head, blocks - 1, Status()) : "";
    const char* const type = Status() == kIncomplete ? "response.incomplete" : "response.completed";
    return events += Event(type, {{"response", Response(head, Status(), &usage)}});
  }

  std::string Failed(const AnswerHead& head, const ApiError& error) override {
    const char* const code = error.status == 429 ? "rate_limit_exceeded" : "server_error";
    Json response = Response(head, "failed", nullptr);
    response["error"] = {{"code", code}, {"message", OneLine(error.message)}};
    // Clients want to hear of a response before anything about it.
    std::string events = sequence_ == 0 ? Begin(head, 1, {}) : "";
    return events += Event("response.failed", {{"response", std::move(response)}});
  }

  size_t RepeatedBytes() const override { return repeated_bytes_; }

 private:
  std::string Event(const char* type, Json members) {
    Json json = {{"type", type}, {"sequence_number", sequence_++}};
    for (auto& [name, value] : members.items()) json[name] = std::move(value);
    return NamedEvent(type, Dump(json));
  }

  const char* Status() const { return finish_reason_ == "length" ? kIncomplete : kCompleted; }

  // Without `usage`: as it begins, or of one that failed.
  Json Response(const AnswerHead& head, const char* status, const Usage* usage) const {
    Json json = {{"id", head.id},
                 {"object", "response"},
                 {"created_at", head.created},
                 {"status", status},
                 {"error", nullptr},
                 {"incomplete_details",
                  status == kIncomplete ? Json({{"reason", "max_output_tokens"}}) : Json()},
                 {"model", head.model},
                 {"output", Json::array()}};
    json.update(echoed_);
    if (status != kInProgress) {
      const std::vector<AnswerBlock>& blocks = blocks_.blocks();
      for (size_t i = 0; i < blocks.size(); ++i) {
        const char* const of_block = i + 1 < blocks.size() ? kCompleted : Status();
        json["output"].push_back(ItemJson(head, blocks[i], i, of_block));
      }
    }
    json["usage"] = usage == nullptr ? Json() : ResponsesUsageJson(*usage);
    json["system_fingerprint"] = head.system_fingerprint;
    json["exactness"] = Name(head.exactness);
    if (usage != nullptr) {
      json["speculation"] = SpeculationJson(*usage);
      json["metrics"] = MetricsJson(*usage);
    }
    return json;
  }

  // Where an event belongs to.
  Json Place(const AnswerHead& head, size_t index) const {
    const BlockKind kind = blocks_.blocks()[index].kind;
    Json place = {{"item_id", ItemId(head, kind, index)}, {"output_index", index}};
    if (kind != BlockKind::kCall) place["content_index"] = 0;
    return place;
  }

  std::string BeginBlock(const AnswerHead& head, size_t index) {
    const AnswerBlock& block = blocks_.blocks()[index];
    std::string events =
        Event("response.output_item.added",
              {{"output_index", index}, {"item", ItemJson(head, block, index, kInProgress)}});
    if (block.kind == BlockKind::kCall) return events;
    Json part = Place(head, index);
    part["part"] = PartJson(block, /*whole=*/false);
    return events += Event("response.content_part.added", std::move(part));
  }

  std::string Delta(const AnswerHead& head, BlockNews news) {
    Json delta = Place(head, news.block);
    delta["delta"] = std::move(news.text);
    switch (blocks_.blocks()[news.block].kind) {
      case BlockKind::kReasoning:
        return Event("response.reasoning_text.delta", std::move(delta));
      case BlockKind::kText:
        delta["logprobs"] = Logprobs(news.entries);
        return Event("response.output_text.delta", std::move(delta));
      case BlockKind::kCall:
        break;
    }
    return Event("response.function_call_arguments.delta", std::move(delta));
  }

  std::string EndBlock(const AnswerHead& head, size_t index, const char* status) {
    const AnswerBlock& block = blocks_.blocks()[index];
    Json done = Place(head, index);
    std::string events;
    if (block.kind == BlockKind::kCall) {
      done["name"] = block.name;
      done["arguments"] = block.text;
      events = Event("response.function_call_arguments.done", std::move(done));
    } else {
      Json part = done;
      part["part"] = PartJson(block, /*whole=*/true);
      done["text"] = block.text;
      const bool reasoning = block.kind == BlockKind::kReasoning;
      if (!reasoning) done["logprobs"] = Logprobs(block.entries);
      events = Event(reasoning ? "response.reasoning_text.done" : "response.output_text.done",
                     std::move(done));
      events += Event("response.content_part.done", std::move(part));
    }
    return events +=
           Event("response.output_item.done",
                 {{"output_index", index}, {"item", ItemJson(head, block, index, status)}});
  }

  const Json echoed_;
  size_t repeated_bytes_;
  AnswerBlocks blocks_;
  std::string finish_reason_;
  int64_t sequence_ = 0;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeResponsesWriter(const std::string& echoed) {
  return std::make_unique<ResponsesWriter>(echoed);
}

}  // namespace specfabric::gateway
