// The body of POST /v1/completions to typed values.
// Owns: nothing; plain values.
// Thread: any.
// Must never: show the text of a prompt in an error.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/api/api_error.h"
#include "coordinator/api/generation_params.h"
#include "protocol/json/json.h"

namespace skein::coordinator {

// A raw prompt: text to be tokenised, or token ids as they are.
struct RawPrompt {
  std::string text;
  std::vector<int32_t> ids;
  bool is_text = true;
  bool add_bos = true;  // of text
};

struct CompletionRequest {
  GenerationParams params;
  std::vector<RawPrompt> prompts;  // at least one
  bool echo = false;               // the text begins with the prompt
  std::vector<std::string> unknown_fields;
};

// Errors name the field as a path. Every known field is checked, also those without effect.
ApiOr<CompletionRequest> ParseCompletionRequest(const protocol::JsonValue& body,
                                                const RequestLimits& limits);

// The prompts of a body: at least one, unless the reader has an error.
void ReadRawPrompts(FieldReader* reader, const RequestLimits& limits,
                    std::vector<RawPrompt>* prompts);
// Token ids below the vocabulary size, at most max_model_len of them.
void ReadTokenIds(FieldReader* reader, std::string_view name, const protocol::JsonValue& list,
                  const RequestLimits& limits, std::vector<int32_t>* ids);

}  // namespace skein::coordinator
