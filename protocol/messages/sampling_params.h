// What a request asks of sampling and of its end. Value types; validated once, where the request
// enters. Never holds text: stop strings are the detokenizer's business.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"

namespace skein::protocol {

// Below this temperature a request is greedy (catalogue 6.1).
inline constexpr float kGreedyTemperature = 1e-5F;

// An addition to the logit of a token; -infinity: the token is never chosen.
struct TokenBias {
  int32_t token = -1;
  float bias = 0;
  friend bool operator==(const TokenBias&, const TokenBias&) = default;
};

// What a request asks to be done to its logits before a token is drawn, in the order mask,
// penalties, bias (catalogue 6.1). The same for its whole life.
struct LogitEdits {
  float presence_penalty = 0;                        // -2..2, of tokens in the output
  float frequency_penalty = 0;                       // -2..2, for each time in the output
  float repetition_penalty = 1;                      // (0, 2], of tokens in prompt or output
  std::vector<TokenBias> bias = {};                  // at most one per token
  std::vector<int32_t> allowed_tokens = {};          // empty: all
  std::vector<std::vector<int32_t>> bad_words = {};  // sequences that the output never completes
  friend bool operator==(const LogitEdits&, const LogitEdits&) = default;
};

// How a drawn token is decided. Greedy whenever the temperature is below kGreedyTemperature.
struct SamplingParams {
  float temperature = 1.0F;         // 0..2
  float top_p = 1.0F;               // (0, 1]
  float min_p = 0.0F;               // 0..1
  int32_t top_k = 0;                // >= 1; 0: off
  uint64_t seed = 0;                // every number is a function of (seed, position, purpose)
  bool has_seed = false;            // the client gave it: same tokens again is promised
  int32_t num_top_logprobs = 0;     // 0..20, most likely alternatives wanted per token
  bool logprobs = false;            // logprob of each emitted token wanted
  bool processed_logprobs = false;  // of the distribution it was drawn from; else raw
  // Alternatives wanted per prompt token beside its own raw logprob, 0..20; -1: no such logprobs.
  int32_t num_prompt_logprobs = -1;
  std::shared_ptr<const LogitEdits> edits = nullptr;  // null: none
};

// When a generation ends.
struct StopConditions {
  int32_t max_tokens = 0;  // most generated tokens, >= 1
  int32_t min_tokens = 0;  // stop tokens are not honoured before
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;  // EOS among them unless ignore_eos
};

// OK, or InvalidArgument naming field, value and range.
absl::Status ValidateSamplingParams(const SamplingParams& params);

// How drafts are accepted. kGreedy: a draft must be the argmax. kRejection: the output has the
// target's distribution. kCoupled: a draft must be the token that the same noise draws from the
// target, so the output is bitwise that of decoding without drafts.
enum class VerificationMode : uint8_t { kGreedy = 0, kRejection = 1, kCoupled = 2 };

// What a request asks of speculation; the server's bounds win.
struct SpeculationParams {
  bool enabled = true;
  uint32_t max_draft_tokens = ~0u;  // per step; 0 is honoured exactly
  VerificationMode mode = VerificationMode::kCoupled;
  friend bool operator==(const SpeculationParams&, const SpeculationParams&) = default;
};

}  // namespace skein::protocol
