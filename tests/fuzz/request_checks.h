// What every target of a request body asks of its parser.
// Thread: one.
// Must never: depend on anything but its arguments.
#pragma once

#include <string_view>

#include "coordinator/api/api_error.h"
#include "coordinator/api/generation_params.h"
#include "coordinator/text/chat_template.h"
#include "protocol/json/json.h"

namespace skein::tests {

// Of the small vocabulary.
inline constexpr coordinator::RequestLimits kRequestLimits = {4096, 309, 20};

// A refusal has a status below 500, names a field after NameField(route), and is JSON.
void CheckError(coordinator::ApiError error, std::string_view route);
// `body` with other words in the place of each text that goes into a prompt, and that a refusal of
// such a body does not show them.
protocol::JsonValue WithSecrets(const protocol::JsonValue& body);
// `text`: the body before, in which those words may stand where they may be shown.
void CheckHidesSecrets(const coordinator::ApiError& error, std::string_view text);
// Every number is within the range of its field.
void CheckParams(const coordinator::GenerationParams& params);
// Whatever the texts of a conversation say, the special ids of its prompt are the same.
void CheckConversation(const coordinator::ChatConversation& conversation);

}  // namespace skein::tests
