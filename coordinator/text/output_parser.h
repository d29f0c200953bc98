// Committed tokens of one choice to reasoning, content and tool calls.
// Owns: the state (reasoning, content, calls) and the detokenizer of each part.
// Thread: one object is used by one thread.
// Must never: let text that looks like a marker act as one; only ids count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/text/detokenizer.h"
#include "coordinator/text/tokenizer.h"
#include "coordinator/text/tool_call_parser.h"

namespace skein::coordinator {

// kChat: special tokens are never visible and the reasoning end splits the text. kRaw: all text is
// content and special tokens are shown as their text.
enum class OutputForm { kChat, kRaw };

struct OutputOptions {
  OutputForm form = OutputForm::kChat;
  bool starts_in_reasoning = false;
  int32_t end_think_id = -1;
  StopStrings stop;  // of the content
  int32_t dsml_id = -1;
  ToolCallOptions calls = {};  // kChat only
};

struct OutputText {
  std::string reasoning;
  std::string content;
  std::vector<ToolCallDelta> calls = {};
  bool empty() const { return reasoning.empty() && content.empty() && calls.empty(); }
  size_t size() const;  // bytes of text
};

class OutputParser {
 public:
  // `tokenizer` outlives the parser.
  OutputParser(const Tokenizer& tokenizer, OutputOptions options);

  // Adds one committed token that is no stop token and returns the text that became certain.
  OutputText Append(int32_t id, Detokenizer::Honour honour = Detokenizer::Honour::kStops);
  // The rest of the text, at the end of the generation.
  OutputText Finish();

  // A block of calls was closed: the generation ends here.
  bool done() const { return calls_.done(); }
  bool has_calls() const { return calls_.num_closed() > 0; }
  const ParseCounts& call_counts() const { return calls_.counts(); }
  // How the reasoning was read; nothing without reasoning and without a stray end.
  std::optional<ParseResult> reasoning_result() const;

  bool in_reasoning() const { return in_reasoning_; }
  // Tokens up to the reasoning end, inclusive.
  size_t reasoning_tokens() const { return reasoning_tokens_; }
  // Reasoning ends that came after the first and were dropped.
  size_t dropped_ends() const { return dropped_ends_; }
  // The stop string that ended the content.
  const std::optional<std::string>& matched_stop() const { return content_.matched(); }

 private:
  OutputText AppendMark(Detokenizer::Honour honour);
  OutputText TextOf(ToolCallParser::Output out, Detokenizer::Honour honour);

  const Tokenizer& tokenizer_;
  const OutputForm form_;
  const int32_t end_think_id_;
  const int32_t dsml_id_;
  const bool starts_in_reasoning_;
  const bool has_tools_;
  bool in_reasoning_;
  size_t reasoning_tokens_ = 0;
  size_t dropped_ends_ = 0;
  Detokenizer reasoning_;
  ToolCallParser calls_;
  Detokenizer content_;
};

}  // namespace skein::coordinator
