// Messages, thinking mode and the chat-only fields.
// Thread: any.
// Must never: show the text of a message in an error.
#include "coordinator/api/chat_request.h"

#include <utility>

#include "protocol/base/strings.h"
#include "protocol/json/json_writer.h"

namespace skein::coordinator {
namespace {

using protocol::Concat;
using protocol::JsonValue;

constexpr size_t kMessagesMax = 4096;
constexpr size_t kToolsMax = 128;
constexpr size_t kCallsMax = 128;
constexpr size_t kNameBytesMax = 64;
constexpr std::string_view kNotYet = "is not supported by this server; leave it out";

// A schema without properties names its parameters in other ways, or takes all names.
bool NamesElsewhere(const JsonValue& schema) {
  for (std::string_view name :
       {"$ref", "allOf", "anyOf", "oneOf", "patternProperties", "propertyNames"}) {
    if (schema.Find(name) != nullptr) return true;
  }
  const JsonValue* more = schema.Find("additionalProperties");
  return more != nullptr && more->AsBool("additionalProperties").value_or(true);
}

// Text parts of a content list, joined by a blank line.
void ReadContentParts(FieldReader* reader, const JsonValue& content, std::string* text) {
  for (size_t i = 0; i < content.elements().size(); ++i) {
    const JsonValue& part = content.elements()[i];
    const std::string name = Concat("content[", i, "]");
    if (!part.IsObject()) return reader->WrongKind(name, part, "an object");
    FieldReader fields(part, reader->Path(name) + ".");
    const auto type = fields.String("type");
    if (!type.has_value()) {
      fields.Invalid("type", "is missing; expected text");
    } else if (*type != "text") {
      fields.Unsupported("type", Concat("is ", JsonValue(std::string(*type)).Describe(),
                                        "; only text is supported"));
    } else if (const auto value = fields.String("text")) {
      if (i > 0) *text += "\n\n";
      *text += *value;
    } else {
      fields.Invalid("text", "is missing; expected a string");
    }
    if (fields.error().has_value()) return reader->Keep(*fields.error());
  }
}

// True when the content is there.
bool ReadContent(FieldReader* reader, std::string* text) {
  const JsonValue* content = reader->Find("content");
  if (content == nullptr) return false;
  if (content->IsString()) {
    *text = std::string(content->string());
  } else if (content->IsArray()) {
    ReadContentParts(reader, *content, text);
  } else {
    reader->WrongKind("content", *content, "a string or an array of parts");
  }
  return true;
}

void ReadToolCall(FieldReader* fields, ChatToolCall* call) {
  if (const auto id = fields->String("id"); id.has_value() && !id->empty()) {
    call->id = std::string(*id);
  } else {
    fields->Invalid("id", "is missing; expected the id of the call");
  }
  fields->Choice("type", {"function"});
  const JsonValue* function = fields->Find("function");
  if (function == nullptr || !function->IsObject()) {
    return fields->Invalid("function", "must be an object with name and arguments");
  }
  FieldReader inner(*function, fields->Path("function."));
  const auto name = inner.String("name");
  if (!name.has_value() || !IsFunctionName(*name)) {
    inner.Invalid("name", "must have 1 to 64 characters of A-Z a-z 0-9 _ . -");
  } else {
    call->name = std::string(*name);
  }
  call->arguments = std::string(inner.String("arguments").value_or("{}"));
  if (!call->arguments.empty()) {
    const auto members = protocol::ParseRawMembers(call->arguments);
    if (!members.ok()) inner.Invalid("arguments", "is not the text of a JSON object");
  }
  if (inner.error().has_value()) fields->Keep(*inner.error());
}

void ReadToolCalls(FieldReader* reader, ChatMessage* message) {
  const JsonValue* calls = reader->Find("tool_calls");
  if (calls == nullptr) return;
  if (!calls->IsArray()) return reader->WrongKind("tool_calls", *calls, "an array");
  if (calls->elements().size() > kCallsMax) {
    return reader->Invalid("tool_calls", Concat("has ", calls->elements().size(),
                                                " calls; at most ", kCallsMax, " are accepted"));
  }
  for (size_t i = 0; i < calls->elements().size(); ++i) {
    const JsonValue& value = calls->elements()[i];
    const std::string name = Concat("tool_calls[", i, "]");
    if (!value.IsObject()) return reader->WrongKind(name, value, "an object");
    FieldReader fields(value, reader->Path(name) + ".");
    ChatToolCall call;
    ReadToolCall(&fields, &call);
    if (fields.error().has_value()) return reader->Keep(*fields.error());
    message->tool_calls.push_back(std::move(call));
  }
}

void ReadAssistant(FieldReader* reader, ChatMessage* message) {
  const bool has_content = ReadContent(reader, &message->content);
  for (std::string_view name : {"reasoning_content", "reasoning"}) {
    const auto reasoning = reader->String(name);
    if (reasoning.has_value() && message->reasoning_content.empty()) {
      message->reasoning_content = std::string(*reasoning);
    }
  }
  ReadToolCalls(reader, message);
  if (!has_content && message->tool_calls.empty()) {
    reader->Invalid("content", "is missing; an assistant message needs content or tool_calls");
  }
  if (reader->Bool("prefix").value_or(false)) reader->Unsupported("prefix", kNotYet);
  if (reader->Find("function_call") != nullptr) {
    reader->Unsupported("function_call", "is not supported; use tool_calls");
  }
}

void ReadToolResult(FieldReader* reader, const std::vector<ChatMessage>& before,
                    ChatMessage* message) {
  if (!ReadContent(reader, &message->content)) {
    reader->Invalid("content", "is missing; a tool message needs content");
  }
  const auto id = reader->String("tool_call_id");
  if (!id.has_value()) {
    reader->Invalid("tool_call_id", "is missing; a tool message names the call it answers");
  } else if (!IsKnownCall(before, *id)) {
    reader->Invalid("tool_call_id", "names no call of the assistant message before");
  }
  message->tool_call_id = std::string(id.value_or(""));
}

void ReadMessage(FieldReader* reader, const std::vector<ChatMessage>& before,
                 ChatMessage* message) {
  if (reader->Find("role") == nullptr) return reader->Invalid("role", "is missing");
  const auto role = reader->Choice(
      "role", {"system", "developer", "user", "assistant", "tool", "latest_reminder"});
  if (!role.has_value()) return;
  static constexpr ChatRole kRoles[] = {ChatRole::kSystem, ChatRole::kSystem,
                                        ChatRole::kUser,   ChatRole::kAssistant,
                                        ChatRole::kTool,   ChatRole::kLatestReminder};
  message->role = kRoles[*role];
  reader->String("name");
  if (message->role == ChatRole::kAssistant) return ReadAssistant(reader, message);
  if (message->role == ChatRole::kTool) return ReadToolResult(reader, before, message);
  if (!ReadContent(reader, &message->content)) {
    reader->Invalid("content", "is missing; expected a string or an array of text parts");
  }
}

void ReadThinking(FieldReader* reader, ChatConversation* conversation) {
  std::optional<bool> thinking;
  if (const JsonValue* value = reader->Find("thinking")) {
    if (!value->IsObject()) return reader->WrongKind("thinking", *value, "an object");
    FieldReader fields(*value, "thinking.");
    const auto type = fields.Choice("type", {"enabled", "disabled"});
    if (!type.has_value()) fields.Invalid("type", "is missing; accepted: enabled, disabled");
    if (fields.error().has_value()) return reader->Keep(*fields.error());
    thinking = *type == 0;
  }
  if (const JsonValue* value = reader->Find("chat_template_kwargs")) {
    if (!value->IsObject()) return reader->WrongKind("chat_template_kwargs", *value, "an object");
    FieldReader fields(*value, "chat_template_kwargs.");
    for (std::string_view name : {"thinking", "enable_thinking"}) {
      const auto flag = fields.Bool(name);
      if (!flag.has_value()) continue;
      if (thinking.has_value() && *thinking != *flag) fields.Invalid(name, "contradicts thinking");
      thinking = flag;
    }
    for (const std::string& name : fields.UnknownNames()) {
      fields.Unsupported(name,
                         "is not in the list of template arguments: thinking, "
                         "enable_thinking");
    }
    if (fields.error().has_value()) return reader->Keep(*fields.error());
  }
  if (const JsonValue* value = reader->Find("reasoning_effort")) {
    if (value->IsInteger()) {
      const auto effort = reader->Int("reasoning_effort", 1, 100);
      if (!effort.has_value()) return;
      conversation->reasoning_effort = static_cast<int32_t>(*effort);
    } else {
      const auto level = reader->Choice(
          "reasoning_effort", {"none", "minimal", "low", "medium", "high", "xhigh", "max"});
      if (!level.has_value()) return;
      static constexpr int32_t kEffort[] = {75, 50, 50, 75, 75, 75, 100};
      conversation->reasoning_effort = kEffort[*level];
      if (*level == 0 && thinking.value_or(false)) {
        return reader->Invalid("reasoning_effort", "is none but thinking is enabled");
      }
      if (*level == 0) thinking = false;
    }
  }
  conversation->thinking =
      thinking.value_or(true) ? ThinkingMode::kEnabled : ThinkingMode::kDisabled;
}

void ReadFunction(FieldReader* function, DeclaredTool* tool) {
  const auto name = function->String("name");
  if (!name.has_value() || !IsFunctionName(*name)) {
    return function->Invalid("name", "must have 1 to 64 characters of A-Z a-z 0-9 _ . -");
  }
  tool->name = std::string(*name);
  function->String("description");
  if (function->Bool("strict").value_or(false)) function->Unsupported("strict", kNotYet);
  ReadParameters(function, "parameters", tool);
}

void ReadTool(FieldReader* fields, ChatRequest* request) {
  if (!fields->Choice("type", {"function"}).has_value()) {
    fields->Invalid("type", "is missing; accepted: function");
  }
  const JsonValue* function = fields->Find("function");
  if (function == nullptr || !function->IsObject()) {
    return fields->Invalid("function", "must be an object with name and parameters");
  }
  FieldReader inner(*function, fields->Path("function."));
  DeclaredTool tool;
  ReadFunction(&inner, &tool);
  if (inner.error().has_value()) return fields->Keep(*inner.error());
  for (const DeclaredTool& other : request->tools) {
    if (other.name == tool.name) {
      return fields->Invalid("function.name", "names a function that an earlier tool names");
    }
  }
  request->tools.push_back(std::move(tool));
  request->conversation.tool_schemas.push_back(
      protocol::WriteJson(*function, protocol::JsonStyle::kSpaced));
}

void ReadToolList(FieldReader* reader, ChatRequest* request) {
  const JsonValue* tools = reader->Find("tools");
  if (tools == nullptr) return;
  if (!tools->IsArray()) return reader->WrongKind("tools", *tools, "an array");
  if (tools->elements().size() > kToolsMax) {
    return reader->Invalid("tools", Concat("has ", tools->elements().size(), " tools; at most ",
                                           kToolsMax, " are accepted"));
  }
  for (size_t i = 0; i < tools->elements().size(); ++i) {
    const JsonValue& value = tools->elements()[i];
    const std::string name = Concat("tools[", i, "]");
    if (!value.IsObject()) return reader->WrongKind(name, value, "an object");
    FieldReader fields(value, name + ".");
    ReadTool(&fields, request);
    if (fields.error().has_value()) return reader->Keep(*fields.error());
  }
}

// tool_choice of one function: the only one that may be called, and it must be.
void ReadNamedFunction(FieldReader* reader, const JsonValue& choice, ChatRequest* request) {
  FieldReader fields(choice, "tool_choice.");
  if (!fields.Choice("type", {"function"}).has_value()) {
    fields.Invalid("type", "is missing; accepted: function");
  }
  const JsonValue* function = fields.Find("function");
  if (function == nullptr || !function->IsObject()) {
    fields.Invalid("function", "must be an object with name");
  }
  if (fields.error().has_value()) return reader->Keep(*fields.error());
  FieldReader inner(*function, "tool_choice.function.");
  const auto name = inner.String("name");
  const auto is_other = [&](const DeclaredTool& tool) { return tool.name != name; };
  std::erase_if(request->tools, is_other);
  if (!name.has_value()) {
    inner.Invalid("name", "is missing; expected the name of a tool");
  } else if (request->tools.empty()) {
    inner.Invalid("name", "names no function of tools");
  }
  if (inner.error().has_value()) return reader->Keep(*inner.error());
  request->demands_calls = true;
}

void ReadTools(FieldReader* reader, ChatRequest* request) {
  ReadToolList(reader, request);
  if (const JsonValue* choice = reader->Find("tool_choice")) {
    if (choice->IsObject()) {
      ReadNamedFunction(reader, *choice, request);
    } else if (const auto name = reader->Choice("tool_choice", {"none", "auto", "required"})) {
      if (*name == 0) request->tools.clear();
      if (*name == 2 && request->tools.empty()) {
        reader->Invalid("tool_choice", "is required but there are no tools");
      }
      request->demands_calls = *name == 2;
    }
  }
  request->one_call = !reader->Bool("parallel_tool_calls").value_or(true);
  for (std::string_view name : {"functions", "function_call"}) {
    if (reader->Find(name) != nullptr) reader->Unsupported(name, "is not supported; use tools");
  }
}

void ReadResponseFormat(FieldReader* reader) {
  const JsonValue* format = reader->Find("response_format");
  if (format == nullptr) return;
  if (!format->IsObject()) return reader->WrongKind("response_format", *format, "an object");
  FieldReader fields(*format, "response_format.");
  const auto type = fields.Choice("type", {"text", "json_object", "json_schema"});
  if (!type.has_value()) fields.Invalid("type", "is missing; accepted: text");
  if (fields.error().has_value()) return reader->Keep(*fields.error());
  if (*type != 0) {
    reader->Keep(UnsupportedParameter("response_format",
                                      "response_format.type other than text is not supported by "
                                      "this server"));
  }
}

}  // namespace

bool IsFunctionName(std::string_view name) {
  return !name.empty() && name.size() <= kNameBytesMax &&
         name.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") ==
             std::string_view::npos;
}

bool IsKnownCall(const std::vector<ChatMessage>& messages, std::string_view id) {
  for (size_t i = messages.size(); i > 0; --i) {
    const ChatMessage& message = messages[i - 1];
    if (message.role != ChatRole::kAssistant) continue;
    for (const ChatToolCall& call : message.tool_calls) {
      if (call.id == id) return true;
    }
    return false;
  }
  return false;
}

void ReadParameters(FieldReader* function, std::string_view name, DeclaredTool* tool) {
  const JsonValue* parameters = function->Find(name);
  if (parameters == nullptr) return;
  if (!parameters->IsObject()) {
    return function->WrongKind(name, *parameters, "an object");
  }
  FieldReader schema(*parameters, function->Path(name) + ".");
  if (const JsonValue* properties = schema.Find("properties")) {
    if (!properties->IsObject()) schema.WrongKind("properties", *properties, "an object");
    for (const protocol::JsonMember& member : properties->members()) {
      tool->parameters.push_back(member.key);
    }
  } else {
    tool->any_parameters = NamesElsewhere(*parameters);
  }
  if (const JsonValue* required = schema.Find("required")) {
    if (!required->IsArray()) schema.WrongKind("required", *required, "an array");
    for (size_t i = 0; i < required->elements().size(); ++i) {
      const JsonValue& one = required->elements()[i];
      if (!one.IsString()) schema.WrongKind(Concat("required[", i, "]"), one, "a string");
      tool->required.emplace_back(one.string());
    }
  }
  if (schema.error().has_value()) function->Keep(*schema.error());
}

void ReadMessages(FieldReader* reader, std::vector<ChatMessage>* messages) {
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
    ChatMessage message;
    ReadMessage(&fields, *messages, &message);
    if (fields.error().has_value()) return reader->Keep(*fields.error());
    messages->push_back(std::move(message));
  }
  if (messages->back().role == ChatRole::kAssistant) {
    reader->Invalid(Concat("messages[", count - 1, "]"),
                    "is an assistant message; the last one must be what the assistant answers");
  }
}

size_t TextBytes(const ChatConversation& conversation) {
  size_t bytes = conversation.response_schema.size();
  for (const std::string& schema : conversation.tool_schemas) bytes += schema.size();
  for (const ChatMessage& message : conversation.messages) {
    bytes += message.content.size() + message.reasoning_content.size();
    for (const ChatToolCall& call : message.tool_calls) {
      bytes += call.name.size() + call.arguments.size();
    }
  }
  return bytes;
}

ApiOr<ChatRequest> ParseChatRequest(const JsonValue& body, const RequestLimits& limits) {
  if (!body.IsObject()) return InvalidJson("the body must be a JSON object");
  FieldReader reader(body);
  ChatRequest request;
  ReadMessages(&reader, &request.conversation.messages);
  request.params = ReadGenerationParams(&reader, limits, RequestForm::kChat);
  ReadThinking(&reader, &request.conversation);
  const bool thinks = request.conversation.thinking == ThinkingMode::kEnabled;
  request.has_idle_penalties = !ReadPenalties(
      &reader, thinks ? Penalties::kWithoutEffect : Penalties::kApply, &request.params.edits);
  ReadTools(&reader, &request);
  ReadResponseFormat(&reader);
  if (!reader.Bool("add_generation_prompt").value_or(true)) {
    reader.Unsupported("add_generation_prompt", kNotYet);
  }
  if (reader.Bool("continue_final_message").value_or(false)) {
    reader.Unsupported("continue_final_message", kNotYet);
  }
  if (reader.error().has_value()) return *reader.error();
  request.unknown_fields = reader.UnknownNames();
  return request;
}

}  // namespace skein::coordinator
