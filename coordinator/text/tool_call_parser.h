// Content of one choice to content and tool calls: the model's DSML syntax, byte by byte.
// Owns: the place in the syntax and what is held back there.
// Thread: one object is used by one thread.
// Must never: take characters for the DSML token, or show half a tag as an argument.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/text/detokenizer.h"

namespace skein::coordinator {

// A function that the model may call.
struct DeclaredTool {
  std::string name;
  std::vector<std::string> required;         // parameters without which a call is not whole
  std::vector<std::string> parameters = {};  // that its schema declares
  bool any_parameters = false;               // the schema takes names that it does not declare
};

// A piece of a call. The first of a call carries id and name, the others arguments alone; all
// arguments of a call joined are one JSON object. `closes`: the call is whole.
struct ToolCallDelta {
  size_t index = 0;
  std::string id;
  std::string name;
  std::string arguments;
  bool closes = false;
  // With `closes`: the call as the model wrote it, cut where the DSML token stood.
  std::vector<std::string> original;
};

// Adds a delta, joined to the last one when both carry arguments of the same call.
void AppendCallDelta(ToolCallDelta delta, std::vector<ToolCallDelta>* list);

// How calls were read (serving.md S11).
enum class ParseResult : uint8_t { kOk, kRecovered, kMalformed, kUnclosed };
inline constexpr std::array<std::string_view, 4> kParseResultNames = {"ok", "recovered",
                                                                      "malformed", "unclosed"};
using ParseCounts = std::array<uint32_t, 4>;  // by ParseResult

struct ToolCallOptions {
  std::vector<DeclaredTool> tools;             // empty: nothing becomes a call
  std::function<std::string(size_t)> call_id;  // of the call with that index
};

// A block opens with a blank line and its tag. Inside, string values are passed on as they come,
// others once they are whole. Calls without that wrapper are kept back until they proved to be
// whole calls of a declared tool; what does not is content.
class ToolCallParser {
 public:
  struct Output {
    std::string content;  // bytes; a character may be cut
    std::vector<ToolCallDelta> calls;
  };

  explicit ToolCallParser(ToolCallOptions options);

  // Adds bytes of ordinary tokens, cut anywhere.
  void Text(std::string_view bytes, Output* out);
  // Adds the DSML token.
  void Mark(Output* out);
  // The generation ended.
  void Finish(Output* out);

  // The block was closed: nothing may follow.
  bool done() const { return place_ == Place::kDone; }
  // The first tag of a block was begun as it should: what follows is the rest of a block.
  bool opens_block() const { return place_ == Place::kOpening && is_strict_; }
  // Calls that were closed so far.
  size_t num_closed() const { return num_closed_; }
  const ParseCounts& counts() const { return counts_; }

 private:
  enum class Place {
    kContent,
    kOpening,  // in a tag that may open a block or a call
    kBlock,    // between calls
    kCall,     // between parameters
    kValue,
    kDone,
  };
  static constexpr int kMark = 256;
  static constexpr char kMarkByte = '\xFF';  // stands for the DSML token in tags
  static constexpr size_t kTagBytesMax = 4096;

  void Symbol(int symbol, Output* out);
  void OnContent(int symbol, Output* out);
  void OnTag(int symbol, Output* out);
  void OnBetween(int symbol, Output* out);
  void OnValue(int symbol, Output* out);
  void EndTag(Output* out);
  bool OpenCall(Output* out);
  bool OpenParameter(Output* out);
  bool CloseCall(Output* out);
  void CloseParameter(Output* out);
  void AddValue(char byte, Output* out);
  // `symbol` does not fit: what was kept since the last delta is content after all.
  void Fail(int symbol, Output* out);
  void Emit(ToolCallDelta delta, Output* out);
  void EmitArguments(std::string text, Output* out);
  void Count(ParseResult result) { ++counts_[static_cast<size_t>(result)]; }
  void ShowHeld(Output* out);
  const DeclaredTool* Find(std::string_view name) const;

  const ToolCallOptions options_;
  Place place_ = Place::kContent;
  std::string held_;        // content: what may begin a block; value: what may begin its close tag
  std::string kept_;        // since the last delta, to become content if the syntax breaks
  std::string tag_;         // the tag being read; empty: none
  bool in_block_ = false;   // a wrapper is open
  bool is_strict_ = false;  // it was opened as it should: deltas go out as they come
  std::vector<ToolCallDelta> pending_;  // not strict: deltas of the call

  // The open call.
  const DeclaredTool* tool_ = nullptr;
  bool is_recovered_ = false;
  std::vector<std::string> parameters_;
  std::vector<std::string> original_;
  bool is_string_ = false;
  std::string value_;  // of a parameter that is no string
  Detokenizer text_;   // of a string value
  size_t num_opened_ = 0;
  size_t num_closed_ = 0;
  ParseCounts counts_ = {};
};

}  // namespace skein::coordinator
