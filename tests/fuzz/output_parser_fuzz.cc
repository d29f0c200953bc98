// Generated tokens to reasoning, content and calls: the same text spelled by other tokens gives the
// same answer, and every part of it is UTF-8.
// Thread: one.
// Must never: depend on anything but the input.
#include "coordinator/text/output_parser.h"
#include "protocol/json/utf8.h"
#include "tests/coordinator/tool_transcripts.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/small_vocabulary.h"

namespace skein::tests {
namespace {

using coordinator::OutputForm;
using coordinator::OutputOptions;
using coordinator::OutputParser;
using coordinator::OutputText;

struct Answer {
  std::string reasoning, content, calls;
  std::optional<std::string> stop;
  bool done = false;
  size_t dropped_ends = 0;
  friend bool operator==(const Answer&, const Answer&) = default;
};

void Add(const OutputText& text, Answer& answer) {
  Require(protocol::IsValidUtf8(text.reasoning) && protocol::IsValidUtf8(text.content),
          "no character is cut", text.content);
  answer.reasoning += text.reasoning;
  answer.content += text.content;
  size_t size = text.reasoning.size() + text.content.size();
  for (const auto& call : text.calls) {
    if (!call.id.empty()) answer.calls += "\n" + call.id + " " + call.name + " ";
    answer.calls += call.arguments;
    if (call.closes) answer.calls += " closed";
    size += call.name.size() + call.arguments.size();
  }
  Require(text.size() == size && text.empty() == (size == 0 && text.calls.empty()),
          "its size is that of its text");
}

Answer Read(const std::vector<int32_t>& ids, const OutputOptions& options) {
  OutputParser parser(SmallTokenizer(), options);
  Answer answer;
  for (const int32_t id : ids) {
    if (parser.done() || parser.matched_stop()) break;  // as a choice ends there
    Add(parser.Append(id), answer);
  }
  const bool ended = parser.done() || parser.matched_stop().has_value();
  Add(parser.Finish(), answer);
  answer.stop = parser.matched_stop();
  answer.done = parser.done() && ended;
  answer.dropped_ends = parser.dropped_ends();
  Require(parser.reasoning_result().has_value() || !options.starts_in_reasoning,
          "how reasoning was read is known");
  return answer;
}

void Check(std::string_view text) {
  const std::vector<int32_t> merged = Spell(text, Spelling::kMerged);
  const std::vector<int32_t> bytes = Spell(text, Spelling::kBytes);
  OutputOptions options;
  options.end_think_id = SmallChat().end_think_id();
  options.dsml_id = SmallChat().dsml_id();
  options.stop.strings = {"STOP", "name\n"};
  for (const OutputForm form : {OutputForm::kChat, OutputForm::kRaw}) {
    options.form = form;
    for (const bool has_tools : {false, true}) {
      options.calls = {};
      if (has_tools) {
        options.calls = {TranscriptTools(), [](size_t index) { return std::to_string(index); }};
      }
      for (const bool reasons : {false, true}) {
        options.starts_in_reasoning = reasons;
        Require(Read(merged, options) == Read(bytes, options), "other tokens, the same answer",
                text);
      }
    }
  }
}

}  // namespace
}  // namespace skein::tests

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  skein::tests::Check(skein::tests::TextOf(data, size));
  return 0;
}
