// Bad words to token sequences.
// Thread: any.
// Must never: show a bad word in an error.
#include "coordinator/api/logit_edits.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "protocol/base/strings.h"

namespace skein::coordinator {
namespace {

// The token sequences that spell a word, as in vLLM: as it stands, and after a space where that
// begins with another token and takes as many.
absl::StatusOr<std::vector<std::vector<int32_t>>> BadWordIds(const Tokenizer& tokenizer,
                                                             const std::string& word) {
  std::vector<std::vector<int32_t>> out;
  const size_t letters = std::min(word.find_first_not_of(' '), word.size());
  for (const char* prefix : {"", " "}) {
    auto ids = tokenizer.Encode(prefix + word.substr(letters), SpecialTokens::kPlain);
    if (!ids.ok()) return ids.status();
    if (ids->empty()) continue;
    const bool other =
        out.empty() || (ids->front() != out[0].front() && ids->size() == out[0].size());
    if (other) out.push_back(*std::move(ids));
  }
  return out;
}

}  // namespace

void MaskToken(int32_t token, protocol::LogitEdits* edits) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (protocol::TokenBias& bias : edits->bias) {
    if (bias.token != token) continue;
    bias.bias = kNever;
    return;
  }
  edits->bias.push_back({token, kNever});
}

std::optional<ApiError> SetEdits(const Tokenizer& tokenizer, GenerationParams* params) {
  for (const std::string& word : params->bad_words) {
    absl::StatusOr<std::vector<std::vector<int32_t>>> ids = BadWordIds(tokenizer, word);
    if (!ids.ok()) {
      return InvalidValue("bad_words", std::string(protocol::StatusText(ids.status())));
    }
    for (std::vector<int32_t>& sequence : *ids) {
      params->edits.bad_words.push_back(std::move(sequence));
    }
  }
  if (params->edits == protocol::LogitEdits()) return std::nullopt;
  params->sampling.edits = std::make_shared<const protocol::LogitEdits>(params->edits);
  return std::nullopt;
}

}  // namespace skein::coordinator
