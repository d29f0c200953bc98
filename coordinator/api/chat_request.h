// The body of POST /v1/chat/completions to typed values.
// Owns: nothing; plain values.
// Thread: any.
// Must never: show the text of a message in an error.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/api/api_error.h"
#include "coordinator/api/generation_params.h"
#include "coordinator/text/chat_template.h"
#include "coordinator/text/tool_call_parser.h"
#include "protocol/json/json.h"

namespace skein::coordinator {

struct ChatRequest {
  GenerationParams params;
  ChatConversation conversation;
  std::vector<DeclaredTool> tools;  // that may be called; none with tool_choice none
  bool demands_calls = false;       // tool_choice required, or a function
  bool one_call = false;            // no parallel_tool_calls
  bool has_idle_penalties = false;  // set, and without effect since thinking is on
  std::vector<std::string> unknown_fields;
};

// Errors name the field as a path. Every known field is checked, also those without effect.
ApiOr<ChatRequest> ParseChatRequest(const protocol::JsonValue& body, const RequestLimits& limits);

// Bytes of everything of a conversation that is tokenised.
size_t TextBytes(const ChatConversation& conversation);

// A name that a function may have.
bool IsFunctionName(std::string_view name);
// The calls that a tool message may answer: those of the last assistant message.
bool IsKnownCall(const std::vector<ChatMessage>& messages, std::string_view id);
// The parameters that the schema of a function, its field `name`, declares and requires.
void ReadParameters(FieldReader* function, std::string_view name, DeclaredTool* tool);

// The messages of a body, as /tokenize takes them.
void ReadMessages(FieldReader* reader, std::vector<ChatMessage>* messages);

}  // namespace skein::coordinator
