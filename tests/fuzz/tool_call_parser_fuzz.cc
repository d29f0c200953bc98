// Calls in generated text, in which ｜DSML｜ stands for the token: wherever the bytes are cut the
// same content and calls come out, a closed call is a declared one whose arguments are one JSON
// object, and without the token there is no call.
// Thread: one.
// Must never: depend on anything but the input.
#include "coordinator/text/tool_call_parser.h"
#include "protocol/json/json.h"
#include "tests/coordinator/tool_transcripts.h"
#include "tests/fuzz/fuzz_target.h"

namespace skein::tests {
namespace {

using coordinator::ParseCounts;
using coordinator::ToolCallDelta;
using coordinator::ToolCallParser;

struct Call {
  std::string name, arguments;
  bool closed = false;
  friend bool operator==(const Call&, const Call&) = default;
};
struct Result {
  std::string content;
  std::vector<Call> calls;
  ParseCounts counts = {};
  bool done = false;
  friend bool operator==(const Result&, const Result&) = default;
};

void Add(const ToolCallParser::Output& out, Result& result) {
  result.content += out.content;
  for (const ToolCallDelta& delta : out.calls) {
    if (!delta.id.empty()) {
      Require(delta.index == result.calls.size(), "calls are counted from 0 on");
      result.calls.push_back({delta.name, {}, false});
    }
    Require(delta.index + 1 == result.calls.size(), "a delta belongs to the last call");
    Require(!result.calls.back().closed, "nothing follows the end of a call");
    result.calls.back().arguments += delta.arguments;
    result.calls.back().closed |= delta.closes;
  }
}

Result Read(std::string_view text, Cut cut) {
  ToolCallParser parser({TranscriptTools(), [](size_t index) { return std::to_string(index); }});
  Result result;
  while (!text.empty()) {
    const size_t mark = std::min(text.find(kTranscriptMark), text.size());
    for (const std::string_view piece : Pieces(text.substr(0, mark), cut)) {
      ToolCallParser::Output out;
      parser.Text(piece, &out);
      Add(out, result);
    }
    text.remove_prefix(mark);
    if (text.empty()) break;
    ToolCallParser::Output out;
    parser.Mark(&out);
    Add(out, result);
    text.remove_prefix(kTranscriptMark.size());
  }
  result.done = parser.done();
  ToolCallParser::Output out;
  parser.Finish(&out);
  Add(out, result);
  result.counts = parser.counts();
  return result;
}

void CheckCalls(const Result& result) {
  size_t num_closed = 0;
  for (size_t i = 0; i < result.calls.size(); ++i) {
    const Call& call = result.calls[i];
    bool declared = false;
    for (const auto& tool : TranscriptTools()) declared |= tool.name == call.name;
    Require(declared, "a call is of a declared function", call.name);
    if (!call.closed) continue;
    ++num_closed;
    const auto arguments = protocol::ParseJson(call.arguments);
    Require(arguments.ok() && arguments->IsObject(), "arguments are one JSON object",
            call.arguments);
  }
  Require(result.counts[0] + result.counts[1] == num_closed, "closed calls are counted");
}

void Check(std::string_view text) {
  const Result whole = Read(text, Cut::kWhole);
  for (const Cut cut : {Cut::kBytes, Cut::kSome}) {
    Require(Read(text, cut) == whole, "cuts do not matter", whole.content);
  }
  CheckCalls(whole);
  // The same characters, none of which is the token.
  ToolCallParser parser({TranscriptTools(), [](size_t) { return std::string("x"); }});
  ToolCallParser::Output out;
  parser.Text(text, &out);
  parser.Finish(&out);
  Require(out.calls.empty() && out.content == text, "characters are no token", out.content);
}

}  // namespace
}  // namespace skein::tests

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  skein::tests::Check(skein::tests::TextOf(data, size));
  return 0;
}
