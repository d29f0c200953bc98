// Thread: one object is used by one thread.
// Must never: open a block inside another.
#include "coordinator/api/messages_writer.h"

#include <utility>

#include "protocol/json/json_writer.h"

namespace skein::coordinator {
namespace {

using protocol::JsonWriter;

constexpr int kOverloaded = 529;

std::string Event(std::string_view name, std::string_view json) {
  std::string event = "event: ";
  event += name;
  event += "\ndata: ";
  event += json;
  event += "\n\n";
  return event;
}

std::string_view TypeOf(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 408:
      return "timeout_error";
    case 413:
    case 431:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
    case kOverloaded:
      return "overloaded_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

std::string_view StopReason(const ChoiceEnd& end) {
  if (end.finish_reason == "length") return "max_tokens";
  if (end.finish_reason == "tool_calls") return "tool_use";
  return end.by_stop_string ? "stop_sequence" : "end_turn";
}

void WriteEnd(const ChoiceEnd& end, JsonWriter* writer) {
  writer->Key("stop_reason");
  writer->String(StopReason(end));
  writer->Key("stop_sequence");
  end.by_stop_string ? writer->Raw(end.stop_reason) : writer->Null();
}

// input_tokens are those that were not cached.
void WriteUsage(const Usage& usage, JsonWriter* writer) {
  writer->Key("usage");
  writer->BeginObject();
  writer->Key("input_tokens");
  writer->Int(usage.prompt_tokens - usage.cached_tokens);
  writer->Key("cache_read_input_tokens");
  writer->Int(usage.cached_tokens);
  writer->Key("cache_creation_input_tokens");
  writer->Int(0);
  writer->Key("output_tokens");
  writer->Int(usage.completion_tokens);
  writer->EndObject();
}

void WriteHead(const AnswerIdentity& identity, JsonWriter* writer) {
  writer->Key("id");
  writer->String(identity.id);
  writer->Key("type");
  writer->String("message");
  writer->Key("role");
  writer->String("assistant");
  writer->Key("model");
  writer->String(identity.model);
}

// A content block with its type and one member of text.
std::string BlockJson(std::string_view type, std::string_view text) {
  std::string json;
  JsonWriter writer(&json);
  writer.BeginObject();
  writer.Key("type");
  writer.String(type);
  writer.Key(type);
  writer.String(text);
  writer.EndObject();
  return json;
}

std::string ThinkingJson(std::string_view text, std::string_view signature) {
  std::string json = BlockJson("thinking", text);
  json.pop_back();
  std::string quoted;
  protocol::AppendJsonString(signature, &quoted);
  return json + ",\"signature\":" + quoted + "}";
}

std::string ToolUseJson(std::string_view id, std::string_view name, std::string_view input) {
  std::string json;
  JsonWriter writer(&json);
  writer.BeginObject();
  writer.Key("type");
  writer.String("tool_use");
  writer.Key("id");
  writer.String(id);
  writer.Key("name");
  writer.String(name);
  writer.Key("input");
  writer.Raw(input);
  writer.EndObject();
  return json;
}

}  // namespace

// Not checked by anybody: reasoning comes back as text.
std::string MessagesWriter::Signature() const {
  return "skein-" + identity_.id.substr(identity_.id.find('_') + 1);
}

void MessagesWriter::Start(const Usage& usage, std::string* events) {
  if (std::exchange(has_started_, true)) return;
  std::string json;
  JsonWriter writer(&json);
  writer.BeginObject();
  writer.Key("type");
  writer.String("message_start");
  writer.Key("message");
  writer.BeginObject();
  WriteHead(identity_, &writer);
  writer.Key("content");
  writer.BeginArray();
  writer.EndArray();
  writer.Key("stop_reason");
  writer.Null();
  writer.Key("stop_sequence");
  writer.Null();
  Usage before = usage;
  before.completion_tokens = 0;
  WriteUsage(before, &writer);
  writer.EndObject();
  writer.EndObject();
  *events += Event("message_start", json) + Event("ping", "{\"type\":\"ping\"}");
}

void MessagesWriter::OpenBlock(Block block, std::string_view content, std::string* events) {
  CloseBlock(events);
  block_ = block;
  std::string json = "{\"type\":\"content_block_start\",\"index\":" + std::to_string(num_blocks_) +
                     ",\"content_block\":";
  json += content;
  *events += Event("content_block_start", json + "}");
}

void MessagesWriter::CloseBlock(std::string* events) {
  if (block_ == Block::kNone) return;
  if (block_ == Block::kThinking) DeltaOf("signature_delta", "signature", Signature(), events);
  block_ = Block::kNone;
  *events +=
      Event("content_block_stop",
            "{\"type\":\"content_block_stop\",\"index\":" + std::to_string(num_blocks_++) + "}");
}

void MessagesWriter::DeltaOf(std::string_view type, std::string_view member, std::string_view text,
                             std::string* events) const {
  std::string json;
  JsonWriter writer(&json);
  writer.BeginObject();
  writer.Key("type");
  writer.String("content_block_delta");
  writer.Key("index");
  writer.Uint(num_blocks_);
  writer.Key("delta");
  writer.BeginObject();
  writer.Key("type");
  writer.String(type);
  writer.Key(member);
  writer.String(text);
  writer.EndObject();
  writer.EndObject();
  *events += Event("content_block_delta", json);
}

std::string MessagesWriter::Delta(size_t, const ChoicePiece& piece, const Usage& usage) {
  std::string events;
  Start(usage, &events);
  if (!piece.text.reasoning.empty()) {
    if (block_ != Block::kThinking) OpenBlock(Block::kThinking, ThinkingJson("", ""), &events);
    DeltaOf("thinking_delta", "thinking", piece.text.reasoning, &events);
  }
  // What a call that broke off still had stands before the text.
  const std::vector<ToolCallDelta>& calls = piece.text.calls;
  size_t next = 0;
  for (; block_ == Block::kToolUse && next < calls.size() && calls[next].id.empty(); ++next) {
    DeltaOf("input_json_delta", "partial_json", calls[next].arguments, &events);
  }
  if (!piece.text.content.empty()) {
    if (block_ != Block::kText) OpenBlock(Block::kText, BlockJson("text", ""), &events);
    DeltaOf("text_delta", "text", piece.text.content, &events);
  }
  for (; next < calls.size(); ++next) {
    const ToolCallDelta& call = calls[next];
    if (!call.id.empty()) {
      OpenBlock(Block::kToolUse, ToolUseJson(call.id, call.name, "{}"), &events);
    }
    if (!call.arguments.empty()) {
      DeltaOf("input_json_delta", "partial_json", call.arguments, &events);
    }
  }
  return events;
}

std::string MessagesWriter::Last(size_t, const ChoiceEnd& end, const Usage& usage) {
  std::string events;
  Start(usage, &events);
  CloseBlock(&events);
  std::string json;
  JsonWriter writer(&json);
  writer.BeginObject();
  writer.Key("type");
  writer.String("message_delta");
  writer.Key("delta");
  writer.BeginObject();
  WriteEnd(end, &writer);
  writer.EndObject();
  WriteUsage(usage, &writer);
  writer.EndObject();
  return events + Event("message_delta", json);
}

std::string MessagesWriter::Done(const Usage&) {
  return Event("message_stop", "{\"type\":\"message_stop\"}");
}

std::string MessagesWriter::Error(const ApiError& error, const Usage&) {
  return Event("error", MessagesErrorBody(error));
}

std::string MessagesWriter::Whole(std::span<const ChoiceAnswer> choices, const Usage& usage) {
  const ChoiceAnswer& answer = choices.front();
  std::string json;
  JsonWriter writer(&json);
  writer.BeginObject();
  WriteHead(identity_, &writer);
  writer.Key("content");
  writer.BeginArray();
  if (!answer.text.reasoning.empty()) {
    writer.Raw(ThinkingJson(answer.text.reasoning, Signature()));
  }
  if (!answer.text.content.empty()) writer.Raw(BlockJson("text", answer.text.content));
  for (const ChatToolCall& call : answer.calls) {
    writer.Raw(ToolUseJson(call.id, call.name, call.arguments));
  }
  writer.EndArray();
  WriteEnd(answer.end, &writer);
  WriteUsage(usage, &writer);
  writer.EndObject();
  return json;
}

protocol::HttpResponse MessagesWriter::Refusal(const ApiError& error, int retry_after_s) {
  return MessagesErrorResponse(error, retry_after_s);
}

std::string MessagesErrorBody(const ApiError& error) {
  std::string json;
  JsonWriter writer(&json);
  writer.BeginObject();
  writer.Key("type");
  writer.String("error");
  writer.Key("error");
  writer.BeginObject();
  writer.Key("type");
  writer.String(TypeOf(error.status));
  writer.Key("message");
  writer.String(error.message);
  writer.EndObject();
  writer.EndObject();
  return json;
}

protocol::HttpResponse MessagesErrorResponse(const ApiError& error, int retry_after_s) {
  protocol::HttpResponse response = ErrorResponse(error, retry_after_s);
  if (error.status == 503) response.status = kOverloaded;
  response.body = MessagesErrorBody(error);
  return response;
}

}  // namespace skein::coordinator
