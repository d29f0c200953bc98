// Reasoning and content by the ids that were generated.
// Thread: one object is used by one thread.
// Must never: let text that looks like a marker act as one.
#include "coordinator/text/output_parser.h"

#include <utility>

namespace skein::coordinator {

OutputParser::OutputParser(const Tokenizer& tokenizer, OutputOptions options)
    : tokenizer_(tokenizer),
      form_(options.form),
      end_think_id_(options.end_think_id),
      in_reasoning_(options.starts_in_reasoning),
      content_(std::move(options.stop)) {}

OutputText OutputParser::Append(int32_t id, Detokenizer::Honour honour) {
  OutputText text;
  if (in_reasoning_) ++reasoning_tokens_;
  if (form_ == OutputForm::kChat && tokenizer_.IsSpecial(id)) {
    if (id != end_think_id_) return text;
    if (in_reasoning_) {
      in_reasoning_ = false;
      text.reasoning = reasoning_.Finish();
    } else {
      ++dropped_ends_;
    }
    return text;
  }
  const std::string_view bytes = tokenizer_.TokenBytes(id);
  if (in_reasoning_) {
    text.reasoning = reasoning_.Append(bytes);
  } else {
    text.content = content_.Append(bytes, honour);
  }
  return text;
}

OutputText OutputParser::Finish() {
  OutputText text;
  if (in_reasoning_) text.reasoning = reasoning_.Finish();
  text.content = content_.Finish();
  return text;
}

}  // namespace skein::coordinator
