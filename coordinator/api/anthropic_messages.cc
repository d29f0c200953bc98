// Thread: any.
// Must never: show the text of a message in an error.
#include "coordinator/api/anthropic_messages.h"

#include <optional>
#include <utility>
#include <vector>

#include "protocol/base/strings.h"
#include "protocol/json/json_writer.h"

namespace skein::coordinator {
namespace {

using protocol::Concat;
using protocol::JsonMember;
using protocol::JsonValue;

constexpr size_t kMessagesMax = 4096;
constexpr size_t kToolsMax = 128;
constexpr std::string_view kBillingLine = "x-anthropic-billing-header";

// Calls `read(type, fields)` for each block of a content list; a string is one text block.
template <typename Read>
void ForBlocks(FieldReader* reader, std::string_view name, const JsonValue& content, Read read) {
  if (!content.IsArray()) {
    return reader->WrongKind(name, content, "a string or an array of blocks");
  }
  for (size_t i = 0; i < content.elements().size(); ++i) {
    const JsonValue& block = content.elements()[i];
    const std::string path = Concat(name, "[", i, "]");
    if (!block.IsObject()) return reader->WrongKind(path, block, "an object");
    FieldReader fields(block, reader->Path(path) + ".");
    fields.Find("cache_control");
    const auto type = fields.String("type");
    if (type.has_value()) {
      read(*type, &fields);
    } else {
      fields.Invalid("type", "is missing");
    }
    if (fields.error().has_value()) return reader->Keep(*fields.error());
  }
}

void RefuseBlock(std::string_view type, FieldReader* fields) {
  fields->Unsupported(
      "type", Concat("is ", JsonValue(std::string(type)).Describe(), ", which is not supported"));
}

std::string ReadText(FieldReader* fields) {
  const auto text = fields->String("text");
  if (!text.has_value()) fields->Invalid("text", "is missing; expected a string");
  return std::string(text.value_or(""));
}

// A string, or text blocks joined by a blank line.
std::string ReadTexts(FieldReader* reader, std::string_view name, const JsonValue& content) {
  if (content.IsString()) return std::string(content.string());
  std::string joined;
  bool is_first = true;
  ForBlocks(reader, name, content, [&](std::string_view type, FieldReader* fields) {
    if (type != "text") return RefuseBlock(type, fields);
    if (!std::exchange(is_first, false)) joined += "\n\n";
    joined += ReadText(fields);
  });
  return joined;
}

void ReadToolUse(FieldReader* fields, ChatMessage* message) {
  ChatToolCall call;
  call.id = std::string(fields->String("id").value_or(""));
  if (call.id.empty()) fields->Invalid("id", "is missing; expected the id of the call");
  call.name = std::string(fields->String("name").value_or(""));
  if (!IsFunctionName(call.name)) {
    fields->Invalid("name", "must have 1 to 64 characters of A-Z a-z 0-9 _ . -");
  }
  const JsonValue* input = fields->Find("input");
  if (input == nullptr || !input->IsObject()) {
    fields->Invalid("input", "must be an object");
  } else {
    call.arguments = protocol::WriteJson(*input);
  }
  message->tool_calls.push_back(std::move(call));
}

void ReadAssistant(FieldReader* reader, const JsonValue& content, ChatMessage* message) {
  if (content.IsString()) {
    message->content = std::string(content.string());
    return;
  }
  ForBlocks(reader, "content", content, [&](std::string_view type, FieldReader* fields) {
    if (type == "text") {
      message->content += ReadText(fields);
    } else if (type == "thinking") {
      message->reasoning_content += fields->String("thinking").value_or("");
      fields->String("signature");
    } else if (type == "redacted_thinking") {
      fields->String("data");
    } else if (type == "tool_use") {
      ReadToolUse(fields, message);
    } else {
      RefuseBlock(type, fields);
    }
  });
}

void ReadToolResult(FieldReader* fields, const std::vector<ChatMessage>& before,
                    ChatMessage* message) {
  message->role = ChatRole::kTool;
  const auto id = fields->String("tool_use_id");
  if (!id.has_value()) {
    fields->Invalid("tool_use_id", "is missing; a result names the call it answers");
  } else if (!IsKnownCall(before, *id)) {
    fields->Invalid("tool_use_id", "names no call of the assistant message before");
  }
  message->tool_call_id = std::string(id.value_or(""));
  fields->Bool("is_error");
  if (const JsonValue* content = fields->Find("content")) {
    message->content = ReadTexts(fields, "content", *content);
  }
}

// The results of tools and the texts of a user's turn, in their order; texts in a row are one
// message.
void ReadUser(FieldReader* reader, const JsonValue& content, std::vector<ChatMessage>* messages) {
  if (content.IsString()) {
    messages->push_back({ChatRole::kUser, std::string(content.string()), {}, {}, {}});
    return;
  }
  bool is_text = false;
  ForBlocks(reader, "content", content, [&](std::string_view type, FieldReader* fields) {
    if (type == "text") {
      std::string text = ReadText(fields);
      if (std::exchange(is_text, true)) {
        messages->back().content += "\n\n" + text;
      } else {
        messages->push_back({ChatRole::kUser, std::move(text), {}, {}, {}});
      }
    } else if (type == "tool_result") {
      is_text = false;
      ChatMessage message;
      ReadToolResult(fields, *messages, &message);
      messages->push_back(std::move(message));
    } else {
      RefuseBlock(type, fields);
    }
  });
}

void ReadTurn(FieldReader* fields, std::vector<ChatMessage>* messages) {
  const auto role = fields->Choice("role", {"user", "assistant"});
  const JsonValue* content = fields->Find("content");
  if (!role.has_value()) return fields->Invalid("role", "is missing; accepted: user, assistant");
  if (content == nullptr) return fields->Invalid("content", "is missing");
  if (*role == 0) return ReadUser(fields, *content, messages);
  ChatMessage message;
  message.role = ChatRole::kAssistant;
  ReadAssistant(fields, *content, &message);
  messages->push_back(std::move(message));
}

void ReadTurns(FieldReader* reader, std::vector<ChatMessage>* messages) {
  const JsonValue* list = reader->Find("messages");
  if (list == nullptr) return reader->Invalid("messages", "is missing; expected an array");
  if (!list->IsArray()) return reader->WrongKind("messages", *list, "an array");
  const size_t count = list->elements().size();
  if (count == 0 || count > kMessagesMax) {
    return reader->Invalid("messages",
                           Concat("has ", count, " messages; accepted: 1 to ", kMessagesMax));
  }
  for (size_t i = 0; i < count; ++i) {
    const JsonValue& value = list->elements()[i];
    const std::string name = Concat("messages[", i, "]");
    if (!value.IsObject()) return reader->WrongKind(name, value, "an object");
    FieldReader fields(value, name + ".");
    ReadTurn(&fields, messages);
    if (fields.error().has_value()) return reader->Keep(*fields.error());
  }
  if (messages->empty() || messages->back().role == ChatRole::kAssistant) {
    reader->Invalid(Concat("messages[", count - 1, "]"),
                    "is an assistant message; the last one must be what the assistant answers");
  }
}

void ReadSystem(FieldReader* reader, std::vector<ChatMessage>* messages) {
  const JsonValue* system = reader->Find("system");
  if (system == nullptr) return;
  std::string text = WithoutBillingLines(ReadTexts(reader, "system", *system));
  if (!text.empty()) messages->push_back({ChatRole::kSystem, std::move(text), {}, {}, {}});
}

void ReadThinking(FieldReader* reader, ChatConversation* conversation) {
  if (const JsonValue* value = reader->Find("thinking")) {
    if (!value->IsObject()) return reader->WrongKind("thinking", *value, "an object");
    FieldReader fields(*value, "thinking.");
    const auto type = fields.Choice("type", {"enabled", "disabled", "adaptive"});
    if (!type.has_value()) {
      fields.Invalid("type", "is missing; accepted: enabled, disabled, adaptive");
    }
    fields.Int("budget_tokens", 1, INT32_MAX);
    if (fields.error().has_value()) return reader->Keep(*fields.error());
    if (*type == 1) conversation->thinking = ThinkingMode::kDisabled;
  }
  if (const JsonValue* value = reader->Find("output_config")) {
    if (!value->IsObject()) return reader->WrongKind("output_config", *value, "an object");
    FieldReader fields(*value, "output_config.");
    static constexpr int32_t kEffort[] = {50, 75, 75, 100};
    if (const auto level = fields.Choice("effort", {"low", "medium", "high", "max"})) {
      conversation->reasoning_effort = kEffort[*level];
    }
    if (fields.Find("format") != nullptr) {
      fields.Unsupported("format", "is not supported by this server; leave it out");
    }
    if (fields.error().has_value()) return reader->Keep(*fields.error());
  }
}

void ReadTool(FieldReader* fields, ChatRequest* request) {
  fields->Find("cache_control");
  if (const auto type = fields->String("type"); type.has_value() && *type != "custom") {
    return RefuseBlock(*type, fields);
  }
  DeclaredTool tool;
  tool.name = std::string(fields->String("name").value_or(""));
  if (!IsFunctionName(tool.name)) {
    return fields->Invalid("name", "must have 1 to 64 characters of A-Z a-z 0-9 _ . -");
  }
  if (fields->Bool("strict").value_or(false)) {
    return fields->Unsupported("strict", "is not supported by this server; leave it out");
  }
  std::vector<JsonMember> function = {{"name", JsonValue(tool.name)}};
  if (const auto description = fields->String("description")) {
    function.push_back({"description", JsonValue(std::string(*description))});
  }
  ReadParameters(fields, "input_schema", &tool);
  if (const JsonValue* schema = fields->Find("input_schema")) {
    function.push_back({"parameters", *schema});
  }
  for (const DeclaredTool& other : request->tools) {
    if (other.name == tool.name) {
      return fields->Invalid("name", "names a function that an earlier tool names");
    }
  }
  request->tools.push_back(std::move(tool));
  request->conversation.tool_schemas.push_back(
      protocol::WriteJson(JsonValue(std::move(function)), protocol::JsonStyle::kSpaced));
}

void ReadTools(FieldReader* reader, ChatRequest* request) {
  const JsonValue* tools = reader->Find("tools");
  if (tools == nullptr) return;
  if (!tools->IsArray()) return reader->WrongKind("tools", *tools, "an array");
  if (tools->elements().size() > kToolsMax) {
    return reader->Invalid("tools", Concat("has ", tools->elements().size(), " tools; at most ",
                                           kToolsMax, " are accepted"));
  }
  for (size_t i = 0; i < tools->elements().size(); ++i) {
    const std::string name = Concat("tools[", i, "]");
    const JsonValue& value = tools->elements()[i];
    if (!value.IsObject()) return reader->WrongKind(name, value, "an object");
    FieldReader fields(value, name + ".");
    ReadTool(&fields, request);
    if (fields.error().has_value()) return reader->Keep(*fields.error());
  }
}

void ReadToolChoice(FieldReader* reader, ChatRequest* request) {
  const JsonValue* value = reader->Find("tool_choice");
  if (value == nullptr) return;
  if (!value->IsObject()) return reader->WrongKind("tool_choice", *value, "an object");
  FieldReader fields(*value, "tool_choice.");
  const auto type = fields.Choice("type", {"auto", "any", "tool", "none"});
  if (!type.has_value()) fields.Invalid("type", "is missing; accepted: auto, any, tool, none");
  request->one_call = fields.Bool("disable_parallel_tool_use").value_or(false);
  const auto name = fields.String("name");
  if (fields.error().has_value()) return reader->Keep(*fields.error());
  if (*type == 3) request->tools.clear();
  if (*type == 2) {
    std::erase_if(request->tools, [&](const DeclaredTool& tool) { return tool.name != name; });
    if (request->tools.empty()) fields.Invalid("name", "names no tool of tools");
  }
  if (*type == 1 && request->tools.empty()) fields.Invalid("type", "is any but there are no tools");
  request->demands_calls = *type == 1 || *type == 2;
  if (fields.error().has_value()) reader->Keep(*fields.error());
}

void ReadStops(FieldReader* reader, StopStrings* stops) {
  const JsonValue* list = reader->Find("stop_sequences");
  if (list == nullptr) return;
  if (!list->IsArray()) return reader->WrongKind("stop_sequences", *list, "an array");
  if (list->elements().size() > kStopStringsMax) {
    return reader->Invalid("stop_sequences",
                           Concat("has ", list->elements().size(), " strings; at most ",
                                  kStopStringsMax, " are accepted"));
  }
  for (size_t i = 0; i < list->elements().size(); ++i) {
    const JsonValue& stop = list->elements()[i];
    const std::string name = Concat("stop_sequences[", i, "]");
    if (!stop.IsString()) return reader->WrongKind(name, stop, "a string");
    if (stop.string().empty() || stop.string().size() > kStopBytesMax) {
      return reader->Invalid(
          name, Concat("has ", stop.string().size(), " bytes; accepted: 1 to ", kStopBytesMax));
    }
    stops->strings.emplace_back(stop.string());
  }
}

}  // namespace

std::string WithoutBillingLines(std::string_view system) {
  std::string kept;
  while (!system.empty()) {
    const size_t end = std::min(system.find('\n'), system.size() - 1) + 1;
    if (!system.starts_with(kBillingLine)) kept += system.substr(0, end);
    system.remove_prefix(end);
  }
  return kept;
}

ApiOr<ChatRequest> ParseMessagesRequest(const JsonValue& body, const RequestLimits& limits,
                                        MessagesUse use) {
  if (!body.IsObject()) return InvalidJson("the body must be a JSON object");
  FieldReader reader(body);
  ChatRequest request;
  ReadSystem(&reader, &request.conversation.messages);
  ReadTurns(&reader, &request.conversation.messages);
  request.params = ReadGenerationParams(&reader, limits, RequestForm::kMessages);
  if (use == MessagesUse::kAnswer && !request.params.max_tokens.has_value()) {
    reader.Invalid("max_tokens", "is missing; expected the most tokens of the answer");
  }
  if (request.params.n > 1) reader.Unsupported("n", "is above 1; a message has one answer");
  if (request.params.prompt_logprobs.has_value()) {
    reader.Unsupported("prompt_logprobs", "is set; a message has none of it");
  }
  for (const auto& [name, is_set] : {std::pair("logprobs", request.params.sampling.logprobs),
                                     std::pair("return_token_ids", request.params.return_ids)}) {
    if (is_set) reader.Unsupported(name, "is true; a message has none of it");
  }
  ReadStops(&reader, &request.params.stop_strings);
  ReadThinking(&reader, &request.conversation);
  ReadTools(&reader, &request);
  ReadToolChoice(&reader, &request);
  if (reader.error().has_value()) return *reader.error();
  request.unknown_fields = reader.UnknownNames();
  return request;
}

}  // namespace skein::coordinator
