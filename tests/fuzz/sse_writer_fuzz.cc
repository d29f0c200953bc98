// Events of a stream: whatever a token's text is, an event is one line of JSON that holds it, and a
// client's splitter finds it again.
// Thread: one.
// Must never: depend on anything but the input.
#include "coordinator/api/sse_writer.h"
#include "protocol/http/event_splitter.h"
#include "protocol/json/json.h"
#include "protocol/json/utf8.h"
#include "tests/fuzz/fuzz_target.h"

namespace skein::tests {
namespace {

using coordinator::AnswerIdentity;
using coordinator::ApiError;
using coordinator::ChoiceEnd;
using coordinator::ChoicePiece;
using coordinator::RequestForm;
using coordinator::SseWriter;
using coordinator::Usage;
using protocol::JsonValue;

// The JSON of an event, as a client sees it.
JsonValue Seen(const std::string& event) {
  std::vector<std::string> seen;
  protocol::EventSplitter splitter;
  splitter.Feed(event, [&](std::string_view text) {
    seen.emplace_back(text);
    return true;
  });
  Require(seen.size() == 1 && splitter.waiting_bytes() == 0, "an event is one", event);
  Require(seen[0].find('\n') == std::string::npos, "of one line", event);
  auto json = protocol::ParseJson(seen[0]);
  Require(json.ok(), "an event is JSON", event);
  return *std::move(json);
}

std::string_view TextIn(const JsonValue& event, RequestForm form) {
  const JsonValue& choice = event.Find("choices")->elements()[0];
  return form == RequestForm::kChat ? choice.Find("delta")->Find("content")->string()
                                    : choice.Find("text")->string();
}

void Check(std::string_view text) {
  const Usage usage{.prompt_tokens = static_cast<int64_t>(text.size()), .completion_tokens = 3};
  for (const RequestForm form : {RequestForm::kChat, RequestForm::kCompletion}) {
    AnswerIdentity identity;
    identity.form = form;
    identity.id = identity.model = std::string(text);
    for (const auto show : {SseWriter::ChunkUsage::kNone, SseWriter::ChunkUsage::kNull,
                            SseWriter::ChunkUsage::kSoFar}) {
      const SseWriter writer(identity, show);
      if (form == RequestForm::kChat) {
        Seen(writer.First(0, SseWriter::Opens::kContent, usage));
        Seen(writer.First(1, SseWriter::Opens::kReasoning, usage, std::vector<int32_t>{1, 2}));
      }
      ChoicePiece piece;
      piece.text.content = std::string(text) + ".";
      const JsonValue event = Seen(writer.Delta(2, piece, usage));
      Require(!protocol::IsValidUtf8(text) || TextIn(event, form) == piece.text.content,
              "it holds the text", text);
      piece.text.reasoning = std::string(text);
      if (form == RequestForm::kChat) Seen(writer.Delta(2, piece, usage));
      Seen(writer.Last(2, ChoiceEnd{"stop", "null", false}, usage));
      Seen(writer.UsageChunk(usage));
    }
  }
  ApiError error;
  error.message = error.code = error.type = std::string(text);
  Seen(SseWriter::Error(error, usage));
}

}  // namespace
}  // namespace skein::tests

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  skein::tests::Check(skein::tests::TextOf(data, size));
  return 0;
}
