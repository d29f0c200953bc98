// Prompts without a chat form: what is checked before they are tokens, and the routes that show
// these. Owns: nothing; functions of plain values. Thread: any. Must never: show the text of a
// prompt in an error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/api/api_error.h"
#include "coordinator/api/completion_request.h"
#include "coordinator/api/generation_params.h"
#include "coordinator/text/chat_template.h"
#include "coordinator/text/tokenizer.h"
#include "protocol/json/json.h"

namespace skein::coordinator {

// A text of n bytes has at least n / longest token tokens: one that cannot fit is refused before it
// is tokenised.
std::optional<ApiError> CheckTextSize(size_t text_bytes, const Tokenizer& tokenizer,
                                      int32_t max_model_len);

// 403 when a prompt of ids has a special one.
std::optional<ApiError> RefuseSpecialIds(const RawPrompt& prompt, const Tokenizer& tokenizer);

// The bodies of POST /tokenize and /detokenize, answered.
ApiOr<std::string> Tokenized(const protocol::JsonValue& body, const RequestLimits& limits,
                             const Tokenizer& tokenizer, const ChatTemplate& chat);
ApiOr<std::string> Detokenized(const protocol::JsonValue& body, const RequestLimits& limits,
                               const Tokenizer& tokenizer);

}  // namespace skein::coordinator
