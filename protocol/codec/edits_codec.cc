#include "protocol/codec/edits_codec.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "protocol/base/status_macros.h"
#include "protocol/codec/codec.h"
#include "protocol/codec/list_limits.h"

namespace skein::protocol {
namespace {

absl::Status CheckEdits(const SequenceEdits& in) {
  const LogitEdits& edits = in.edits;
  size_t longest = std::max(
      {edits.bias.size(), edits.allowed_tokens.size(), in.history.size(), edits.bad_words.size()});
  for (const std::vector<int32_t>& word : edits.bad_words) {
    longest = std::max(longest, word.size());
  }
  return longest > kEditTokensMax ? TooLarge("SequenceStep.edits", longest, kEditTokensMax)
                                  : absl::OkStatus();
}

template <typename Builder, typename Values>
void WriteNumbers(Builder out, const Values& values) {
  for (uint32_t i = 0; i < out.size(); ++i) out.set(i, values[i]);
}

absl::Status WriteSequenceEdits(const SequenceEdits& in, wire::SequenceEdits::Builder out) {
  SKEIN_RETURN_IF_ERROR(CheckEdits(in));
  const auto size = [](const auto& list) { return static_cast<uint32_t>(list.size()); };
  out.setPresencePenalty(in.edits.presence_penalty);
  out.setFrequencyPenalty(in.edits.frequency_penalty);
  out.setRepetitionPenalty(in.edits.repetition_penalty);
  auto bias = out.initBias(size(in.edits.bias));
  for (uint32_t i = 0; i < bias.size(); ++i) {
    bias[i].setToken(in.edits.bias[i].token);
    bias[i].setBias(in.edits.bias[i].bias);
  }
  WriteNumbers(out.initAllowedTokens(size(in.edits.allowed_tokens)), in.edits.allowed_tokens);
  auto words = out.initBadWords(size(in.edits.bad_words));
  for (uint32_t i = 0; i < words.size(); ++i) {
    WriteNumbers(words.init(i, size(in.edits.bad_words[i])), in.edits.bad_words[i]);
  }
  out.setPromptLength(in.prompt_length);
  out.setHistoryBegin(in.history_begin);
  WriteNumbers(out.initHistory(size(in.history)), in.history);
  return absl::OkStatus();
}

absl::Status WriteMasks(const SequenceStep& in, wire::SequenceStep::Builder out) {
  if (in.masks.size() > kSummaryRowsMax) {
    return TooLarge("SequenceStep.masks", in.masks.size(), kSummaryRowsMax);
  }
  auto masks = out.initMasks(static_cast<uint32_t>(in.masks.size()));
  for (uint32_t i = 0; i < masks.size(); ++i) {
    if (in.masks[i].size() > kMaskWordsMax) {
      return TooLarge("SequenceStep.masks words", in.masks[i].size(), kMaskWordsMax);
    }
    WriteNumbers(masks.init(i, static_cast<uint32_t>(in.masks[i].size())), in.masks[i]);
  }
  return absl::OkStatus();
}

template <typename List, typename Number>
absl::Status ReadNumbers(const List& in, std::string_view field, size_t limit,
                         std::vector<Number>& out) {
  SKEIN_RETURN_IF_ERROR(CheckSize(in, field, limit));
  out.reserve(in.size());
  for (const Number value : in) out.push_back(value);
  return absl::OkStatus();
}

absl::Status ReadSequenceEdits(wire::SequenceEdits::Reader in, SharedEdits& shared) {
  SequenceEdits out;
  LogitEdits& edits = out.edits;
  edits.presence_penalty = in.getPresencePenalty();
  edits.frequency_penalty = in.getFrequencyPenalty();
  edits.repetition_penalty = in.getRepetitionPenalty();
  if (!std::isfinite(edits.presence_penalty) || !std::isfinite(edits.frequency_penalty) ||
      !std::isfinite(edits.repetition_penalty) || !(edits.repetition_penalty > 0)) {
    return Malformed("SequenceEdits", "a penalty is not finite, or repetition is not above 0");
  }
  SKEIN_RETURN_IF_ERROR(CheckSize(in.getBias(), "SequenceEdits.bias", kEditTokensMax));
  for (const auto entry : in.getBias()) {
    const float bias = entry.getBias();
    if (std::isnan(bias) || bias == std::numeric_limits<float>::infinity()) {
      return Malformed("SequenceEdits.bias", "a value is not a number below infinity");
    }
    edits.bias.push_back({entry.getToken(), bias});
  }
  SKEIN_RETURN_IF_ERROR(ReadNumbers(in.getAllowedTokens(), "SequenceEdits.allowed_tokens",
                                    kEditTokensMax, edits.allowed_tokens));
  SKEIN_RETURN_IF_ERROR(CheckSize(in.getBadWords(), "SequenceEdits.bad_words", kEditTokensMax));
  for (const auto word : in.getBadWords()) {
    SKEIN_RETURN_IF_ERROR(ReadNumbers(word, "SequenceEdits.bad_words", kEditTokensMax,
                                      edits.bad_words.emplace_back()));
  }
  out.prompt_length = in.getPromptLength();
  out.history_begin = in.getHistoryBegin();
  SKEIN_RETURN_IF_ERROR(
      ReadNumbers(in.getHistory(), "SequenceEdits.history", kEditTokensMax, out.history));
  shared.value = std::make_shared<const SequenceEdits>(std::move(out));
  return absl::OkStatus();
}

absl::Status ReadMasks(wire::SequenceStep::Reader in, SequenceStep& out) {
  SKEIN_RETURN_IF_ERROR(CheckSize(in.getMasks(), "SequenceStep.masks", kSummaryRowsMax));
  for (const auto mask : in.getMasks()) {
    SKEIN_RETURN_IF_ERROR(
        ReadNumbers(mask, "SequenceStep.masks", kMaskWordsMax, out.masks.emplace_back()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteEdits(const SequenceStep& in, wire::SequenceStep::Builder out) {
  if (in.edits.value != nullptr) {
    SKEIN_RETURN_IF_ERROR(WriteSequenceEdits(*in.edits.value, out.initEdits()));
  }
  return in.masks.empty() ? absl::OkStatus() : WriteMasks(in, out);
}

absl::Status ReadEdits(wire::SequenceStep::Reader in, SequenceStep& out) {
  if (in.hasEdits()) SKEIN_RETURN_IF_ERROR(ReadSequenceEdits(in.getEdits(), out.edits));
  return ReadMasks(in, out);
}

}  // namespace skein::protocol
