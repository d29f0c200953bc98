// Framing of server-sent events and the chunk objects.
// Thread: one object is used by one thread.
// Must never: write an event that is not one JSON value or [DONE].
#include "coordinator/api/sse_writer.h"

#include "protocol/json/json_writer.h"

namespace skein::coordinator {
namespace {

using protocol::JsonWriter;

std::string Framed(std::string_view json) {
  std::string event = "data: ";
  event += json;
  event += "\n\n";
  return event;
}

// One choice: `fill` writes its delta or text.
template <typename Fill>
std::string ChoiceJson(size_t index, Fill fill, const ChoicePiece& piece, const ChoiceEnd* end) {
  std::string out;
  JsonWriter writer(&out);
  writer.BeginObject();
  writer.Key("index");
  writer.Uint(index);
  fill(&writer);
  writer.Key("logprobs");
  writer.Raw(piece.logprobs);
  writer.Key("finish_reason");
  end == nullptr ? writer.Null() : writer.String(end->finish_reason);
  if (end != nullptr) {
    writer.Key("stop_reason");
    writer.Raw(end->stop_reason);
  }
  WriteIds("prompt_token_ids", piece.prompt_ids, &writer);
  WriteIds("token_ids", piece.ids, &writer);
  writer.EndObject();
  return out;
}

// The first fragment of a call has id, type and name; the others arguments alone.
void WriteCalls(const std::vector<ToolCallDelta>& calls, JsonWriter* writer) {
  if (calls.empty()) return;
  writer->Key("tool_calls");
  writer->BeginArray();
  for (const ToolCallDelta& call : calls) {
    writer->BeginObject();
    writer->Key("index");
    writer->Uint(call.index);
    if (!call.id.empty()) {
      writer->Key("id");
      writer->String(call.id);
      writer->Key("type");
      writer->String("function");
    }
    writer->Key("function");
    writer->BeginObject();
    if (!call.id.empty()) {
      writer->Key("name");
      writer->String(call.name);
    }
    writer->Key("arguments");
    writer->String(call.arguments);
    writer->EndObject();
    writer->EndObject();
  }
  writer->EndArray();
}

}  // namespace

SseWriter::SseWriter(const AnswerIdentity& identity, ChunkUsage usage)
    : form_(identity.form), names_reasoning_(identity.names_reasoning), usage_(usage) {
  JsonWriter writer(&head_);
  writer.BeginObject();
  writer.Key("id");
  writer.String(identity.id);
  writer.Key("object");
  writer.String(form_ == RequestForm::kChat ? "chat.completion.chunk" : "text_completion");
  writer.Key("created");
  writer.Int(identity.created);
  writer.Key("model");
  writer.String(identity.model);
  writer.Key("system_fingerprint");
  writer.String(identity.fingerprint);
}

std::string SseWriter::Event(std::string_view choices, std::string_view usage) const {
  std::string json = head_;
  json += ",\"choices\":[";
  json += choices;
  json += "]";
  if (!usage.empty()) {
    json += ",\"usage\":";
    json += usage;
  }
  json += "}";
  return Framed(json);
}

std::string SseWriter::Chunk(std::string_view choice, const Usage& usage) const {
  switch (usage_) {
    case ChunkUsage::kNone:
      return Event(choice, {});
    case ChunkUsage::kNull:
      return Event(choice, "null");
    case ChunkUsage::kSoFar:
      return Event(choice, UsageJson(usage));
  }
  return {};
}

std::string SseWriter::First(size_t index, Opens opens, const Usage& usage,
                             const std::optional<std::vector<int32_t>>& prompt_ids) const {
  const auto fill = [&](JsonWriter* writer) {
    writer->Key("delta");
    writer->BeginObject();
    writer->Key("role");
    writer->String("assistant");
    writer->Key("content");
    opens == Opens::kReasoning ? writer->Null() : writer->String("");
    writer->EndObject();
  };
  return Chunk(ChoiceJson(index, fill, {.prompt_ids = prompt_ids}, nullptr), usage);
}

std::string SseWriter::Delta(size_t index, const ChoicePiece& piece, const Usage& usage) const {
  const OutputText& text = piece.text;
  const auto fill = [&](JsonWriter* writer) {
    if (form_ == RequestForm::kCompletion) {
      writer->Key("text");
      writer->String(text.content);
      return;
    }
    writer->Key("delta");
    writer->BeginObject();
    if (!text.reasoning.empty()) {
      WriteReasoning(text.reasoning, names_reasoning_, writer);
    }
    if (!text.content.empty() || (text.reasoning.empty() && text.calls.empty())) {
      writer->Key("content");
      writer->String(text.content);
    }
    WriteCalls(text.calls, writer);
    writer->EndObject();
  };
  return Chunk(ChoiceJson(index, fill, piece, nullptr), usage);
}

std::string SseWriter::Last(size_t index, const ChoiceEnd& end, const Usage& usage) const {
  const auto fill = [&](JsonWriter* writer) {
    if (form_ == RequestForm::kCompletion) {
      writer->Key("text");
      writer->String("");
      return;
    }
    writer->Key("delta");
    writer->BeginObject();
    writer->EndObject();
  };
  return Chunk(ChoiceJson(index, fill, {}, &end), usage);
}

std::string SseWriter::UsageChunk(const Usage& usage) const { return Event({}, UsageJson(usage)); }

std::string SseWriter::Done() { return Framed("[DONE]"); }

std::string SseWriter::Error(const ApiError& error, const Usage& usage) {
  return Framed(ErrorBody(error, ErrorPlace::kInStream, UsageJson(usage)));
}

}  // namespace skein::coordinator
