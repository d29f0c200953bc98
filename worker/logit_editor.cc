#include "worker/logit_editor.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "protocol/base/status_macros.h"

namespace skein::worker {

using kernels::DType;
using kernels::LogitEdit;
using kernels::TokenEdit;
using protocol::SequenceEdits;
using protocol::SequenceStep;

namespace {

// Biases of one sequence at most.
constexpr int64_t kBiasMax = 4096;

bool Counts(const protocol::LogitEdits& edits) {
  return edits.presence_penalty != 0 || edits.frequency_penalty != 0 ||
         edits.repetition_penalty != 1;
}

// Whether the next token would complete the word after these tokens of the output.
bool Completes(const std::vector<int32_t>& word, std::span<const int32_t> output) {
  const size_t before = word.size() - 1;
  return output.size() >= before &&
         std::equal(word.begin(), word.end() - 1, output.end() - static_cast<ptrdiff_t>(before));
}

}  // namespace

LogitEditor::LogitEditor(int vocab, const ModelLimits& limits, int num_slots, Arena& arena)
    : vocab_(vocab),
      entries_max_(
          std::min<int64_t>(vocab, int64_t{limits.max_model_len} + limits.max_drafts + kBiasMax) *
          num_slots),
      drafts_max_(int64_t{limits.max_drafts} * num_slots),
      slots_(static_cast<size_t>(num_slots)),
      entry_of_(static_cast<size_t>(vocab), -1) {
  Staging counted;
  Lay(limits.max_samples, counted);
  staging_ = Staging(arena, counted.used());
}

// Entries stand last: their room is for the worst case, and only those of the step are copied.
LogitEditor::Layout LogitEditor::Lay(int samples, Staging& staging) const {
  staging.Restart();
  Layout layout;
  layout.edits = staging.Next(DType::kU8, {samples, int64_t{sizeof(LogitEdit)}});
  layout.drafts = staging.Next(DType::kI32, {drafts_max_});
  layout.mask = staging.Next(DType::kI32, {samples, kernels::MaskWords(vocab_)});
  layout.entries = staging.Next(DType::kU8, {entries_max_, int64_t{sizeof(TokenEdit)}});
  return layout;
}

const LogitEditor::Slot& LogitEditor::SlotOf(const SequenceStep& step) const {
  return slots_[step.slot.value()];
}

bool LogitEditor::Edits(const SequenceStep& step) const {
  if (!step.masks.empty()) return true;
  return step.fresh_slot ? step.edits.value != nullptr : SlotOf(step).edits != nullptr;
}

absl::Status LogitEditor::CheckTokens(const SequenceEdits& edits) const {
  const auto exists = [this](int32_t token) { return token >= 0 && token < vocab_; };
  const auto check = [&](std::string_view field, std::span<const int32_t> tokens) {
    const auto wrong = std::find_if_not(tokens.begin(), tokens.end(), exists);
    return wrong == tokens.end()
               ? absl::OkStatus()
               : absl::InvalidArgumentError(absl::StrCat(std::string(field), " has token ", *wrong,
                                                         ", the vocabulary has ", vocab_));
  };
  SKEIN_RETURN_IF_ERROR(check("edits.allowed_tokens", edits.edits.allowed_tokens));
  SKEIN_RETURN_IF_ERROR(check("edits.history", edits.history));
  for (const std::vector<int32_t>& word : edits.edits.bad_words) {
    if (word.empty()) return absl::InvalidArgumentError("edits.bad_words has an empty word");
    SKEIN_RETURN_IF_ERROR(check("edits.bad_words", word));
  }
  std::vector<int32_t> biased;
  for (const protocol::TokenBias& bias : edits.edits.bias) biased.push_back(bias.token);
  SKEIN_RETURN_IF_ERROR(check("edits.bias", biased));
  std::sort(biased.begin(), biased.end());
  if (std::adjacent_find(biased.begin(), biased.end()) != biased.end() ||
      biased.size() > static_cast<size_t>(kBiasMax)) {
    return absl::InvalidArgumentError(absl::StrCat("edits.bias has a token twice or more than ",
                                                   kBiasMax, " entries: ", biased.size()));
  }
  return absl::OkStatus();
}

absl::Status LogitEditor::Check(const SequenceStep& step) const {
  const auto refuse = [&](std::string text) {
    return absl::InvalidArgumentError(absl::StrCat("sequence ", step.sequence.value(), ": ", text));
  };
  if (step.edits.value != nullptr) {
    const SequenceEdits& edits = *step.edits.value;
    if (!step.fresh_slot) return refuse("has edits without a fresh slot");
    if (edits.history_begin + edits.history.size() != step.first_position &&
        !(edits.history.empty() && edits.history_begin >= step.first_position)) {
      return refuse(absl::StrCat("edits.history ends at ",
                                 edits.history_begin + edits.history.size(),
                                 ", the step begins at ", step.first_position));
    }
    const absl::Status tokens = CheckTokens(edits);
    if (!tokens.ok()) return refuse(std::string(tokens.message()));
  }
  if (step.masks.empty()) return absl::OkStatus();
  if (!step.sample || step.draft_depth > 0 ||
      step.masks.size() != 1 + step.provided_drafts.size()) {
    return refuse(absl::StrCat(step.masks.size(), " masks for ", step.sample ? 1 : 0, " + ",
                               step.provided_drafts.size(), " rows and a draft depth of ",
                               step.draft_depth, "; each sampled row needs one, and depth is 0"));
  }
  const auto words = static_cast<size_t>(kernels::MaskWords(vocab_));
  for (const std::vector<uint32_t>& mask : step.masks) {
    if (mask.size() > words) {
      return refuse(
          absl::StrCat("a mask has ", mask.size(), " words, the vocabulary needs ", words));
    }
  }
  return absl::OkStatus();
}

void LogitEditor::Take(const SequenceStep& step) {
  Slot& slot = slots_[step.slot.value()];
  if (step.fresh_slot) {
    slot = Slot{};
    slot.edits = step.edits.value;
    if (slot.edits != nullptr) slot.tokens = slot.edits->history;
  }
  if (slot.edits == nullptr) return;
  const uint32_t begin = slot.edits->history_begin;
  for (size_t i = 0; i < step.tokens.size(); ++i) {
    const uint64_t position = step.first_position + i;
    if (position < begin) continue;
    // What lies behind was a refused draft.
    slot.tokens.resize(position - begin);
    slot.tokens.push_back(step.tokens[i]);
  }
}

void LogitEditor::Begin(int samples) {
  full_ = Lay(samples, staging_);
  std::fill_n(full_.edits.as<LogitEdit>(), samples, LogitEdit{});
  num_entries_ = num_drafts_ = num_masks_ = 0;
}

TokenEdit& LogitEditor::EntryOf(int32_t token) {
  int32_t& at = entry_of_[static_cast<size_t>(token)];
  auto* entries = full_.entries.as<TokenEdit>();
  if (at < 0) {
    at = num_entries_++;
    entries[at] = {};
    entries[at].token = token;
  }
  return entries[at];
}

void LogitEditor::AddEntries(const Slot& slot, std::span<const int32_t> drafts) {
  const int32_t first = num_entries_;
  const protocol::LogitEdits& edits = slot.edits->edits;
  if (Counts(edits)) {
    const bool repeats = edits.repetition_penalty != 1;
    for (size_t i = 0; i < slot.tokens.size(); ++i) {
      const bool prompt = slot.edits->history_begin + i < slot.edits->prompt_length;
      if (prompt && !repeats) continue;
      TokenEdit& entry = EntryOf(slot.tokens[i]);
      if (prompt) {
        entry.in_prompt = 1;
      } else {
        ++entry.output_count;
      }
    }
    for (const int32_t token : drafts) EntryOf(token);
  }
  for (const protocol::TokenBias& bias : edits.bias) EntryOf(bias.token).bias = bias.bias;
  const auto* entries = full_.entries.as<TokenEdit>();
  for (int32_t i = first; i < num_entries_; ++i) {
    entry_of_[static_cast<size_t>(entries[i].token)] = -1;
  }
}

int32_t LogitEditor::AddMask(const SequenceStep& step, const Slot& slot, size_t row,
                             std::span<const int32_t> tokens) {
  const auto words = static_cast<size_t>(kernels::MaskWords(vocab_));
  uint32_t* mask = full_.mask.as<uint32_t>() + static_cast<size_t>(num_masks_) * words;
  std::fill_n(mask, words, ~0u);
  bool any = false;
  const auto bit = [](int32_t token) { return 1u << (token % 32); };
  const auto word = [mask](int32_t token) -> uint32_t& { return mask[token / 32]; };
  if (slot.edits != nullptr && !slot.edits->edits.allowed_tokens.empty()) {
    any = true;
    std::fill_n(mask, words, 0u);
    for (const int32_t token : slot.edits->edits.allowed_tokens) word(token) |= bit(token);
  }
  if (!step.masks.empty()) {
    any = true;
    const std::vector<uint32_t>& allowed = step.masks[row];
    for (size_t i = 0; i < words; ++i) mask[i] &= i < allowed.size() ? allowed[i] : 0;
  }
  if (slot.edits != nullptr) {
    const size_t prompt =
        slot.edits->prompt_length - std::min(slot.edits->prompt_length, slot.edits->history_begin);
    const std::span<const int32_t> output = tokens.subspan(std::min(prompt, tokens.size()));
    for (const std::vector<int32_t>& bad : slot.edits->edits.bad_words) {
      if (!Completes(bad, output)) continue;
      any = true;
      word(bad.back()) &= ~bit(bad.back());
    }
  }
  return any ? num_masks_++ : -1;
}

void LogitEditor::Edit(const SequenceStep& step, std::span<const int32_t> drafts,
                       int first_sample) {
  if (!Edits(step)) return;
  Slot& slot = slots_[step.slot.value()];
  LogitEdit edit;
  edit.first_entry = num_entries_;
  edit.first_draft = num_drafts_;
  if (slot.edits != nullptr) {
    AddEntries(slot, drafts);
    const protocol::LogitEdits& edits = slot.edits->edits;
    edit.presence = edits.presence_penalty;
    edit.frequency = edits.frequency_penalty;
    edit.repetition = edits.repetition_penalty;
    std::copy(drafts.begin(), drafts.end(), full_.drafts.as<int32_t>() + num_drafts_);
    num_drafts_ += static_cast<int32_t>(drafts.size());
  }
  edit.num_entries = num_entries_ - edit.first_entry;
  const size_t decided = slot.tokens.size();
  if (slot.edits != nullptr) slot.tokens.insert(slot.tokens.end(), drafts.begin(), drafts.end());
  for (size_t j = 0; j <= drafts.size(); ++j) {
    edit.num_drafts = edit.num_entries > 0 ? static_cast<int32_t>(j) : 0;
    const size_t known = slot.edits != nullptr ? decided + j : 0;
    edit.mask_row = AddMask(step, slot, j, std::span<const int32_t>(slot.tokens).first(known));
    full_.edits.as<LogitEdit>()[first_sample + static_cast<int>(j)] = edit;
  }
}

EditBatch LogitEditor::Finish() {
  full_.entries = Rows(full_.entries, num_entries_);
  staging_.EndWith(full_.entries);
  EditBatch batch;
  batch.edits = staging_.OnDevice(full_.edits);
  if (num_entries_ > 0) batch.entries = staging_.OnDevice(full_.entries);
  if (num_drafts_ > 0) batch.drafts = staging_.OnDevice(full_.drafts);
  if (num_masks_ > 0) batch.mask = staging_.OnDevice(full_.mask);
  return batch;
}

void LogitEditor::Reset() {
  for (Slot& slot : slots_) slot = Slot{};
}

}  // namespace skein::worker
