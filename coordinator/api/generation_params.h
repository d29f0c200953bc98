// What chat and completion requests have in common: sampling, limits, stops, streaming.
// Owns: nothing; plain values and their parsing.
// Thread: any.
// Must never: narrow a number before its range was checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/api/field_reader.h"
#include "coordinator/text/detokenizer.h"
#include "protocol/messages/sampling_params.h"

namespace skein::coordinator {

// Bounds of the server that requests are checked against.
struct RequestLimits {
  int32_t max_model_len = 4096;
  int32_t vocab_size = 0;
  int32_t max_logprobs = 20;
  bool processed_logprobs = false;  // logprobs are of the distribution that is sampled
};

// Bounds of stop strings.
inline constexpr size_t kStopStringsMax = 4;
inline constexpr size_t kStopBytesMax = 256;

struct GenerationParams {
  std::string model;                  // empty: the default name
  std::optional<int32_t> max_tokens;  // absent: what fits
  protocol::SamplingParams sampling;
  protocol::LogitEdits edits;          // bad_words apart
  std::vector<std::string> bad_words;  // texts, to be tokenised at submission
  protocol::StopConditions stop;       // max_tokens and EOS are set at submission
  StopStrings stop_strings;
  protocol::SpeculationParams speculation;
  // Alternatives listed beside the logprob of each prompt token; absent: no such list.
  std::optional<int32_t> prompt_logprobs;
  uint32_t repetition_ngram = 0;    // longest circle of tokens that ends a choice; 0: none does
  bool echo_logprobs = false;       // the logprobs of a completion begin with those of its prompt
  std::optional<int32_t> priority;  // smaller runs earlier; nothing: as the key has it
  std::string cache_salt;           // empty: none
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool per_token = false;
  uint32_t n = 1;              // choices of each prompt
  bool return_ids = false;     // the answer has the ids of prompt and text
  bool tokens_as_ids = false;  // tokens of logprobs are named "token_id:N"
};

// Which request form the fields belong to.
enum class RequestForm { kChat, kCompletion, kMessages };
// Penalties have no effect while thinking is on.
enum class Penalties { kWithoutEffect, kApply };

// Reads every common field of `reader`'s object.
GenerationParams ReadGenerationParams(FieldReader* reader, const RequestLimits& limits,
                                      RequestForm form);
// Seconds that the header x-request-timeout gives; nothing when it is empty.
ApiOr<std::optional<double>> ReadTimeout(std::string_view header);
// Reads the penalties. False if one is set that has no effect.
bool ReadPenalties(FieldReader* reader, Penalties penalties, protocol::LogitEdits* edits);

}  // namespace skein::coordinator
