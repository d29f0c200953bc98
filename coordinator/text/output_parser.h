// Committed tokens of one choice to reasoning and content text.
// Owns: the state (reasoning, then content) and the detokenizer of each part.
// Thread: one object is used by one thread.
// Must never: let text that looks like a marker act as one; only ids count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "coordinator/text/detokenizer.h"
#include "coordinator/text/tokenizer.h"

namespace skein::coordinator {

// kChat: special tokens are never visible and the reasoning end splits the text. kRaw: all text is
// content and special tokens are shown as their text.
enum class OutputForm { kChat, kRaw };

struct OutputOptions {
  OutputForm form = OutputForm::kChat;
  bool starts_in_reasoning = false;
  int32_t end_think_id = -1;
  StopStrings stop;  // of the content
};

struct OutputText {
  std::string reasoning;
  std::string content;
};

class OutputParser {
 public:
  // `tokenizer` outlives the parser.
  OutputParser(const Tokenizer& tokenizer, OutputOptions options);

  // Adds one committed token that is no stop token and returns the text that became certain.
  OutputText Append(int32_t id, Detokenizer::Honour honour = Detokenizer::Honour::kStops);
  // The rest of the text, at the end of the generation.
  OutputText Finish();

  bool in_reasoning() const { return in_reasoning_; }
  // Tokens up to the reasoning end, inclusive.
  size_t reasoning_tokens() const { return reasoning_tokens_; }
  // Reasoning ends that came after the first and were dropped.
  size_t dropped_ends() const { return dropped_ends_; }
  // The stop string that ended the content.
  const std::optional<std::string>& matched_stop() const { return content_.matched(); }

 private:
  const Tokenizer& tokenizer_;
  const OutputForm form_;
  const int32_t end_think_id_;
  bool in_reasoning_;
  size_t reasoning_tokens_ = 0;
  size_t dropped_ends_ = 0;
  Detokenizer reasoning_;
  Detokenizer content_;
};

}  // namespace skein::coordinator
