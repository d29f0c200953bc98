// What a request asks to be done to its logits, made ready for the control loop.
// Owns: nothing; a function of plain values.
// Thread: any.
// Must never: show a bad word in an error.
#pragma once

#include <cstdint>
#include <optional>

#include "coordinator/api/api_error.h"
#include "coordinator/api/generation_params.h"
#include "coordinator/text/tokenizer.h"

namespace skein::coordinator {

// Sets params->sampling.edits from the edits and bad words of the request; null where nothing is
// edited.
std::optional<ApiError> SetEdits(const Tokenizer& tokenizer, GenerationParams* params);

// The token is never chosen, whatever else the request asks for it.
void MaskToken(int32_t token, protocol::LogitEdits* edits);

}  // namespace skein::coordinator
