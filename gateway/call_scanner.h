#ifndef SPECFABRIC_GATEWAY_CALL_SCANNER_H_
#define SPECFABRIC_GATEWAY_CALL_SCANNER_H_

// Reads one call of a tool, {"name": ..., "arguments": {...}}, a character at a time. Pure.

#include <optional>
#include <string>

namespace specfabric::gateway {

class CallScanner {
 public:
  enum class State {
    kGoesOn,
    kDone,  // the object is closed
    kBad,   // it is no call
  };
  State Push(char c);

  // Once it is known.
  const std::optional<std::string>& name() const { return name_; }
  // The text of the arguments since the last call, as it was written. "parameters" are arguments,
  // too; none are {}, and where they are a string, its value is their text.
  std::string TakeArguments();

 private:
  enum class Where { kOpen, kFirstKey, kKey, kInKey, kColon, kValue, kInValue, kAfterValue, kDone };

  State Key(char c);
  State Begin(char c);
  State Value(char c);
  State AfterValue(char c);
  State EndValue();
  bool IsArguments() const { return key_ == "arguments" || key_ == "parameters"; }

  Where where_ = Where::kOpen;
  std::string key_, value_;  // value_: of a name, or of arguments that are a string
  std::optional<std::string> name_;
  std::string arguments_;
  bool has_arguments_ = false;
  bool is_string_ = false, is_scalar_ = false;  // the value at hand
  int depth_ = 0;                               // of lists and objects in it
  bool in_string_ = false, escaped_ = false;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_CALL_SCANNER_H_
