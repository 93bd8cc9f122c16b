#ifndef SPECFABRIC_GATEWAY_REASONING_H_
#define SPECFABRIC_GATEWAY_REASONING_H_

// Models that reason before they answer put what they think between two marks, <think> and
// </think> (Qwen 3, DeepSeek-R1) or [THINK] and [/THINK] (Magistral). Templates of some write the
// first mark into the prompt already. Pure.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/grammar.h"
#include "base/types.h"

namespace specfabric::gateway {

struct ReasoningMarks {
  std::string open, close;
};

// The marks that a chat template has; nothing if it has none.
std::optional<ReasoningMarks> ReasoningMarksOf(std::string_view chat_template);

// Where an output begins.
enum class ReasoningStart : uint8_t {
  kOpen,    // the prompt ends with the opening mark: what comes is reasoning
  kMaybe,   // the model may open it
  kClosed,  // the prompt has closed it: what comes is the answer
};
ReasoningStart ReasoningStartOf(std::string_view prompt, const ReasoningMarks& marks);

// Of one output.
struct Reasoning {
  ReasoningMarks marks;
  ReasoningStart start = ReasoningStart::kMaybe;
  std::optional<base::TokenId> close = {};  // the token that the closing mark is, if it is one
};

struct ReasonedText {
  std::string reasoning = {};
  std::string content = {};
};

// Splits one output as it arrives. Work is linear in the text; what is held back is a part of a
// mark, or white space at the end of the reasoning. Marks, and white space around them, are in
// neither part. The reasoning comes first, once; marks that follow are content.
class ReasoningSplitter {
 public:
  explicit ReasoningSplitter(const Reasoning& reasoning);

  ReasonedText Push(std::string_view text);
  // The output has ended: what was held back.
  ReasonedText Finish();
  bool reasons() const { return where_ == Where::kReasoning; }

 private:
  enum class Where {
    kBefore,     // white space, or a part of the opening mark
    kReasoning,  // until the closing mark
    kAfter,      // white space after it
    kContent,
  };

  bool ReadBefore(ReasonedText* out);
  bool ReadReasoning(ReasonedText* out);
  void Reason(std::string_view text, ReasonedText* out);

  ReasoningMarks marks_;
  Where where_;
  std::string pending_;  // not read yet
  std::string spaces_;   // at the end of the reasoning so far, not told yet
  bool reasoned_ = false;
};

// `grammar` describes the answer; the result describes the output, which may begin with reasoning.
// open, close: the tokens that the marks are, where they are special ones.
base::Grammar AfterReasoning(const base::Grammar& grammar, const Reasoning& reasoning,
                             std::optional<base::TokenId> open, std::optional<base::TokenId> close);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_REASONING_H_
