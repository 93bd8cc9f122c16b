#ifndef SPECFABRIC_GATEWAY_TOOL_PARSER_H_
#define SPECFABRIC_GATEWAY_TOOL_PARSER_H_

// Finds the calls of tools in the text of one choice as it arrives. Pure. Work is linear in the
// text; what is held back is a part of a mark, or a call whose name is not known yet.
//
// A call's name is told once it is known, and its arguments as they come, as the model wrote them.
// Text that begins like a call and turns out to be none is content after all; a call whose name was
// told stays one, whatever follows.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gateway/call_scanner.h"
#include "gateway/tool_format.h"

namespace specfabric::gateway {

// New of one call. The first of a call has its name.
struct ToolCallPart {
  int index = 0;          // of the call in its choice
  std::string name = {};  // empty: told before
  std::string arguments = {};
};

struct ToolText {
  std::string content = {};
  std::vector<ToolCallPart> calls = {};
};

class ToolParser {
 public:
  explicit ToolParser(ToolFormat format) : format_(format), marks_(MarksOf(format)) {}

  ToolText Push(std::string_view text);
  // The output has ended: what was held back.
  ToolText Finish();
  int calls() const { return calls_; }  // told so far

 private:
  enum class Where {
    kContent,  // before a mark or a call
    kBefore,   // of a group of calls: before a call
    kCall,
    kAfter,  // after a call
  };

  // Each reads pending_ from at_ on, and returns false if it needs more text.
  bool ReadContent(ToolText* out);
  bool ReadBefore(ToolText* out);
  bool ReadCall(ToolText* out);
  bool ReadAfter();
  void Tell(ToolText* out);
  // The group is no group of calls; what was held of it is content.
  void GiveUp(ToolText* out);
  void Say(std::string_view content, ToolText* out);
  bool InLists() const { return format_ == ToolFormat::kMistral || format_ == ToolFormat::kJson; }

  const ToolFormat format_;
  const ToolMarks marks_;
  Where where_ = Where::kContent;
  bool said_ = false;        // content that is not white space
  bool after_call_ = false;  // and nothing was said since
  std::string spaces_;       // at the end of the content, not said yet
  bool in_list_ = false;     // the group is a list
  std::string pending_;      // text that was not read, from at_ on
  size_t at_ = 0;
  std::string held_;  // of the group: text since the last call that was told
  std::optional<CallScanner> scanner_;
  bool told_ = false;  // the name of the call at hand
  int calls_ = 0;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_TOOL_PARSER_H_
