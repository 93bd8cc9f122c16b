#include "gateway/tool_parser.h"

#include <algorithm>
#include <utility>

#include "gateway/text_marks.h"

namespace specfabric::gateway {
ToolText ToolParser::Push(std::string_view text) {
  ToolText out;
  pending_ += text;
  for (bool goes_on = true; goes_on && at_ < pending_.size();) {
    switch (where_) {
      case Where::kContent:
        goes_on = ReadContent(&out);
        break;
      case Where::kBefore:
        goes_on = ReadBefore(&out);
        break;
      case Where::kCall:
        goes_on = ReadCall(&out);
        break;
      case Where::kAfter:
        goes_on = ReadAfter();
        break;
    }
  }
  pending_.erase(0, at_);
  at_ = 0;
  return out;
}

ToolText ToolParser::Finish() {
  ToolText out;
  if (where_ == Where::kCall && told_) {
    Tell(&out);
  } else if (where_ == Where::kContent || where_ == Where::kBefore || where_ == Where::kCall) {
    GiveUp(&out);
    Say(std::exchange(pending_, {}), &out);
  }
  if (calls_ == 0) out.content += spaces_;
  return out;
}

// White space after a call is none, nor is what only calls follow.
void ToolParser::Say(std::string_view content, ToolText* out) {
  if (after_call_)
    content.remove_prefix(std::min(content.find_first_not_of(kSpaces), content.size()));
  if (content.empty()) return;
  after_call_ = false;
  if (TellText(content, &spaces_, &out->content)) said_ = true;
}

void ToolParser::GiveUp(ToolText* out) {
  where_ = Where::kContent;
  scanner_.reset();
  Say(std::exchange(held_, {}), out);
  said_ = true;
}

bool ToolParser::ReadContent(ToolText* out) {
  const std::string_view rest = std::string_view(pending_).substr(at_);
  const bool unmarked = format_ == ToolFormat::kJson || format_ == ToolFormat::kLlama3;
  if (unmarked && !said_ && calls_ == 0) {
    const size_t begin = rest.find_first_not_of(kSpaces);
    if (begin == std::string_view::npos) return false;
    if (rest[begin] == '{' || (InLists() && rest[begin] == '[')) {
      where_ = Where::kBefore;
      in_list_ = false;
      return true;
    }
  }
  if (marks_.open.empty()) {
    Say(rest, out);
    at_ = pending_.size();
    return false;
  }
  const size_t mark = rest.find(marks_.open);
  if (mark != std::string_view::npos) {
    Say(rest.substr(0, mark), out);
    held_ = marks_.open;
    at_ += mark + marks_.open.size();
    where_ = Where::kBefore;
    in_list_ = false;
    return true;
  }
  const size_t content = rest.size() - BegunAtEnd(rest, marks_.open);
  Say(rest.substr(0, content), out);
  at_ += content;
  return false;
}

bool ToolParser::ReadBefore(ToolText* out) {
  const char c = pending_[at_];
  if (c == '{') {
    scanner_.emplace();
    told_ = false;
    where_ = Where::kCall;
    return true;
  }
  held_ += c;
  ++at_;
  if (IsSpace(c)) return true;
  if (c == '[' && InLists() && !in_list_) {
    in_list_ = true;
    return true;
  }
  GiveUp(out);
  return true;
}

bool ToolParser::ReadCall(ToolText* out) {
  while (at_ < pending_.size()) {
    const char c = pending_[at_++];
    if (!told_) held_ += c;
    const CallScanner::State state = scanner_->Push(c);
    if (state == CallScanner::State::kGoesOn) continue;
    if (state == CallScanner::State::kBad && !told_ && !scanner_->name()) {
      GiveUp(out);
      return true;
    }
    Tell(out);
    scanner_.reset();
    where_ = Where::kAfter;
    return true;
  }
  Tell(out);
  return true;
}

void ToolParser::Tell(ToolText* out) {
  if (!scanner_->name()) return;
  std::string arguments = scanner_->TakeArguments();
  if (told_ && arguments.empty()) return;
  ToolCallPart part = {.arguments = std::move(arguments)};
  if (!std::exchange(told_, true)) {
    part.name = *scanner_->name();
    ++calls_;
    held_.clear();
    after_call_ = true;
  }
  part.index = calls_ - 1;
  out->calls.push_back(std::move(part));
}

bool ToolParser::ReadAfter() {
  const std::string_view rest = std::string_view(pending_).substr(at_);
  const std::string_view close = marks_.close;
  if (!close.empty()) {
    const size_t mark = rest.find(close);
    // What stands between a call and its closing mark is lost, as in a call that went wrong.
    if (mark == std::string_view::npos) {
      at_ += rest.size() - BegunAtEnd(rest, close);
      return false;
    }
    at_ += mark + close.size();
    where_ = Where::kContent;
    return true;
  }
  const char c = rest[0];
  ++at_;
  if (IsSpace(c)) return true;
  const bool next = in_list_ ? c == ',' : format_ == ToolFormat::kLlama3 && (c == ';' || c == ',');
  if (next) {
    where_ = Where::kBefore;
    return true;
  }
  where_ = Where::kContent;
  if (!(in_list_ && c == ']')) --at_;
  return true;
}

}  // namespace specfabric::gateway
