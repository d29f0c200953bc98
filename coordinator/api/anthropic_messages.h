// The body of POST /v1/messages, the Anthropic form, to a chat request.
// Owns: nothing; plain values.
// Thread: any.
// Must never: show the text of a message in an error.
#pragma once

#include <string>
#include <string_view>

#include "coordinator/api/api_error.h"
#include "coordinator/api/chat_request.h"
#include "coordinator/api/generation_params.h"
#include "protocol/json/json.h"

namespace skein::coordinator {

// Whether max_tokens must be there: it is for an answer, not for counting.
enum class MessagesUse { kAnswer, kCount };

// Errors name the field as a path. Every known field is checked, also those without effect. Marks
// of cache_control change nothing.
ApiOr<ChatRequest> ParseMessagesRequest(const protocol::JsonValue& body,
                                        const RequestLimits& limits, MessagesUse use);

// The text without its lines that begin with x-anthropic-billing-header: they differ from request
// to request, so each turn would be computed anew.
std::string WithoutBillingLines(std::string_view system);

}  // namespace skein::coordinator
