#include "gateway/reasoning.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gateway/grammar_rules.h"
#include "gateway/text_marks.h"

namespace specfabric::gateway {

std::optional<ReasoningMarks> ReasoningMarksOf(std::string_view chat_template) {
  static const std::array kKnown = {ReasoningMarks{"<think>", "</think>"},
                                    ReasoningMarks{"[THINK]", "[/THINK]"}};
  for (const ReasoningMarks& marks : kKnown) {
    // Templates that only take the reasoning out of earlier answers have the closing mark alone.
    if (chat_template.find(marks.close) != std::string_view::npos) return marks;
  }
  return std::nullopt;
}

ReasoningStart ReasoningStartOf(std::string_view prompt, const ReasoningMarks& marks) {
  prompt = prompt.substr(0, SizeWithoutEnd(prompt));
  if (prompt.ends_with(marks.open)) return ReasoningStart::kOpen;
  if (prompt.ends_with(marks.close)) return ReasoningStart::kClosed;
  return ReasoningStart::kMaybe;
}

ReasoningSplitter::ReasoningSplitter(const Reasoning& reasoning)
    : marks_(reasoning.marks),
      where_(reasoning.start == ReasoningStart::kOpen    ? Where::kReasoning
             : reasoning.start == ReasoningStart::kMaybe ? Where::kBefore
                                                         : Where::kContent) {}

ReasonedText ReasoningSplitter::Push(std::string_view text) {
  ReasonedText out;
  if (where_ == Where::kContent) {
    out.content = text;
    return out;
  }
  pending_ += text;
  if (where_ == Where::kBefore && !ReadBefore(&out)) return out;
  if (where_ == Where::kReasoning && !ReadReasoning(&out)) return out;
  if (where_ == Where::kAfter) {
    pending_.erase(0, std::min(pending_.find_first_not_of(kSpaces), pending_.size()));
    if (pending_.empty()) return out;
    where_ = Where::kContent;
  }
  out.content += std::exchange(pending_, {});
  return out;
}

ReasonedText ReasoningSplitter::Finish() {
  ReasonedText out;
  if (where_ == Where::kReasoning) {
    Reason(std::exchange(pending_, {}), &out);
  } else {
    out.content = std::exchange(pending_, {});
  }
  return out;
}

// False: more text is needed.
bool ReasoningSplitter::ReadBefore(ReasonedText* out) {
  const size_t begin = pending_.find_first_not_of(kSpaces);
  if (begin == std::string::npos) return false;
  const std::string_view rest = std::string_view(pending_).substr(begin);
  if (rest.starts_with(marks_.open)) {
    pending_.erase(0, begin + marks_.open.size());
    where_ = Where::kReasoning;
    return true;
  }
  if (marks_.open.starts_with(rest)) return false;
  where_ = Where::kContent;
  out->content = std::exchange(pending_, {});
  return true;
}

bool ReasoningSplitter::ReadReasoning(ReasonedText* out) {
  const size_t mark = pending_.find(marks_.close);
  if (mark == std::string::npos) {
    const size_t certain = pending_.size() - BegunAtEnd(pending_, marks_.close);
    Reason(std::string_view(pending_).substr(0, certain), out);
    pending_.erase(0, certain);
    return false;
  }
  Reason(std::string_view(pending_).substr(0, mark), out);
  pending_.erase(0, mark + marks_.close.size());
  where_ = Where::kAfter;
  return true;
}

// White space at the beginning and the end is left out.
void ReasoningSplitter::Reason(std::string_view text, ReasonedText* out) {
  if (!reasoned_) text.remove_prefix(std::min(text.find_first_not_of(kSpaces), text.size()));
  if (text.empty()) return;
  reasoned_ = true;
  TellText(text, &spaces_, &out->reasoning);
}

base::Grammar AfterReasoning(const base::Grammar& grammar, const Reasoning& reasoning,
                             std::optional<base::TokenId> open,
                             std::optional<base::TokenId> close) {
  const auto& [marks, start, token] = reasoning;
  if (start == ReasoningStart::kClosed) return grammar;
  // Text up to the closing mark: no text of special tokens is text to a grammar.
  std::string lark = "start: ";
  absl::StrAppend(&lark,
                  start == ReasoningStart::kOpen ? "thought answer\n" : "(open thought)? answer\n");
  if (start == ReasoningStart::kMaybe)
    absl::StrAppend(&lark, "open: ", MarkRule(marks.open, open), "\n");
  if (close) {
    absl::StrAppend(&lark, "thought: /(?s:.*)/ ", MarkRule(marks.close, close), " space\n");
  } else {
    absl::StrAppend(&lark, "thought: text space\ntext[suffix=", MarkRule(marks.close, close),
                    "]: /(?s:.*)/\n");
  }
  // Some, but not without end.
  absl::StrAppend(&lark, "space: /[ \\n]{0,4}/\n", "answer: ", RuleOf(grammar), "\n");
  return {base::GrammarLanguage::kLark, std::move(lark)};
}

}  // namespace specfabric::gateway
