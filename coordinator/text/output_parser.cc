// Reasoning, content and calls by the ids that were generated.
// Thread: one object is used by one thread.
// Must never: let text that looks like a marker act as one.
#include "coordinator/text/output_parser.h"

#include <utility>

namespace skein::coordinator {

size_t OutputText::size() const {
  size_t size = reasoning.size() + content.size();
  for (const ToolCallDelta& call : calls) size += call.name.size() + call.arguments.size();
  return size;
}

OutputParser::OutputParser(const Tokenizer& tokenizer, OutputOptions options)
    : tokenizer_(tokenizer),
      form_(options.form),
      end_think_id_(options.end_think_id),
      dsml_id_(options.dsml_id),
      starts_in_reasoning_(options.starts_in_reasoning),
      has_tools_(!options.calls.tools.empty()),
      in_reasoning_(options.starts_in_reasoning),
      calls_(std::move(options.calls)),
      content_(std::move(options.stop)) {}

OutputText OutputParser::Append(int32_t id, Detokenizer::Honour honour) {
  OutputText text;
  if (in_reasoning_) ++reasoning_tokens_;
  if (form_ == OutputForm::kChat && tokenizer_.IsSpecial(id)) {
    if (id == dsml_id_ && has_tools_ && !in_reasoning_) return AppendMark(honour);
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
  } else if (has_tools_) {
    ToolCallParser::Output out;
    calls_.Text(bytes, &out);
    text = TextOf(std::move(out), honour);
  } else {
    text.content = content_.Append(bytes, honour);
  }
  return text;
}

OutputText OutputParser::AppendMark(Detokenizer::Honour honour) {
  ToolCallParser::Output out;
  calls_.Mark(&out);
  return TextOf(std::move(out), honour);
}

OutputText OutputParser::TextOf(ToolCallParser::Output out, Detokenizer::Honour honour) {
  OutputText text;
  if (!out.content.empty()) text.content = content_.Append(out.content, honour);
  text.calls = std::move(out.calls);
  return text;
}

std::optional<ParseResult> OutputParser::reasoning_result() const {
  if (!starts_in_reasoning_) {
    return dropped_ends_ > 0 ? std::optional(ParseResult::kMalformed) : std::nullopt;
  }
  if (in_reasoning_) return ParseResult::kUnclosed;
  return dropped_ends_ > 0 ? ParseResult::kRecovered : ParseResult::kOk;
}

OutputText OutputParser::Finish() {
  ToolCallParser::Output out;
  calls_.Finish(&out);
  OutputText text = TextOf(std::move(out), Detokenizer::Honour::kStops);
  if (in_reasoning_) text.reasoning = reasoning_.Finish();
  text.content += content_.Finish();
  return text;
}

}  // namespace skein::coordinator
