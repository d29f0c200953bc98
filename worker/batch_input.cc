#include "worker/batch_input.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "kernels/ops/sampling.h"
#include "protocol/base/status_macros.h"
#include "worker/prompt_scorer.h"

namespace skein::worker {

using kernels::DType;
using kernels::TensorView;
using protocol::SequenceStep;
using protocol::StepPlan;

BatchInput::BatchInput(const ModelSpec& spec, const ModelLimits& limits, const KvCache& cache,
                       StateSlots& slots, std::span<const int32_t> token_map, Arena& arena)
    : spec_(spec),
      limits_(limits),
      block_tokens_(cache.block_tokens()),
      num_blocks_(cache.num_blocks()),
      max_blocks_((limits.max_model_len + block_tokens_ - 1) / block_tokens_),
      slots_(slots),
      token_map_(token_map),
      plain_(spec.rope, spec.rope_dim, false),
      compress_(spec.rope, spec.rope_dim, true),
      table_(static_cast<size_t>(slots.num_slots())),
      saved_(static_cast<size_t>(slots.num_checkpoints())),
      editor_(spec.vocab, limits, slots.num_slots(), arena) {
  std::set<int> ratios;
  for (const LayerSpec& layer : spec.layers) {
    if (layer.ratio > 0) ratios.insert(layer.ratio);
  }
  ratios_.assign(ratios.begin(), ratios.end());
  std::vector<int64_t> identity(static_cast<size_t>(limits.max_rows));
  std::iota(identity.begin(), identity.end(), 0);
  ring_source_ =
      arena.Constant<int64_t>(DType::kI64, {limits.max_rows}, std::span<const int64_t>(identity));
  if (!token_map.empty()) {
    device_token_map_ =
        arena.Constant<int32_t>(DType::kI32, {static_cast<int64_t>(token_map.size())}, token_map);
  }
  Staging counted;
  Layout({limits.max_rows, slots.num_slots(), limits.max_samples}, counted);
  staging_ = Staging(arena, counted.used());
}

ModelBatch BatchInput::Layout(const Shape& shape, Staging& staging) const {
  const int rows = shape.rows;
  const int sequences = shape.sequences;
  staging.Restart();
  ModelBatch batch;
  batch.num_sequences = sequences;
  batch.rows.position = staging.Next(DType::kI32, {rows});
  batch.rows.sequence = staging.Next(DType::kI32, {rows});
  batch.rows.first_row = staging.Next(DType::kI32, {sequences});
  batch.rows.first_position = staging.Next(DType::kI32, {sequences});
  batch.rows.slot = staging.Next(DType::kI32, {sequences});
  batch.rows.block_table = staging.Next(DType::kI32, {sequences, max_blocks_});
  batch.rows.block_tokens = block_tokens_;
  batch.ids = staging.Next(DType::kI32, {rows});
  batch.window_begin = staging.Next(DType::kI32, {rows});
  batch.window_end = staging.Next(DType::kI32, {rows});
  batch.rope_plain = staging.Next(DType::kF32, {rows, spec_.rope_dim});
  batch.rope_compress = staging.Next(DType::kF32, {rows, spec_.rope_dim});
  batch.ring_target = staging.Next(DType::kI64, {rows});
  if (spec_.engram.ngram > 0) batch.ngram = staging.Next(DType::kI32, {rows, spec_.engram.ngram});
  batch.draft_count = staging.Next(DType::kI32, {sequences});
  batch.sample_row = staging.Next(DType::kI32, {shape.samples});
  batch.sample_params =
      staging.Next(DType::kU8, {shape.samples, int64_t{sizeof(kernels::SampleParams)}});
  batch.verify_params =
      staging.Next(DType::kU8, {shape.samples, int64_t{sizeof(kernels::VerifyParams)}});
  for (const int ratio : ratios_) {
    CompletedGroups groups;
    groups.ratio = ratio;
    groups.row = staging.Next(DType::kI32, {rows});
    groups.target = staging.Next(DType::kI64, {rows});
    groups.cos_sin = staging.Next(DType::kF32, {rows, spec_.rope_dim});
    if (ratio > 1) groups.ring_target = staging.Next(DType::kI64, {rows});
    batch.groups.push_back(groups);
  }
  return batch;
}

void BatchInput::Reset() {
  for (Slot& slot : table_) slot = Slot{};
  for (SavedSlot& slot : saved_) slot = SavedSlot{};
  editor_.Reset();
}

bool BatchInput::Edits(const StepPlan& plan) const {
  return std::any_of(plan.sequences.begin(), plan.sequences.end(),
                     [this](const SequenceStep& step) { return editor_.Edits(step); });
}

absl::Status BatchInput::Upload() const {
  SKEIN_RETURN_IF_ERROR(staging_.CopyIn());
  return batch_.edits.edits.absent() ? absl::OkStatus() : editor_.Upload();
}

namespace {

// Rows of the step at most: with all drafts that the head may propose.
uint64_t RowsMax(const SequenceStep& step) {
  return step.tokens.size() + step.draft_depth + step.provided_drafts.size();
}

}  // namespace

absl::Status BatchInput::CheckDrafts(const SequenceStep& step) const {
  auto refuse = [&](std::string text) {
    return absl::InvalidArgumentError(absl::StrCat("sequence ", step.sequence.value(), ": ", text));
  };
  const uint64_t drafts = step.draft_depth + step.provided_drafts.size();
  if (drafts > 0 && !step.sample) return refuse("has drafts but is not sampled");
  if (step.draft_depth > 0 && !step.provided_drafts.empty()) {
    return refuse("has provided drafts and a draft depth");
  }
  if (drafts > static_cast<uint64_t>(limits_.max_drafts)) {
    return refuse(absl::StrCat("verifies ", drafts, " drafts, at most ", limits_.max_drafts));
  }
  if (step.draft_depth > 0 && (step.tokens.size() != 1 || step.first_position == 0)) {
    return refuse(absl::StrCat("drafts after ", step.tokens.size(), " tokens from position ",
                               step.first_position, "; a draft follows one decided token"));
  }
  if (step.mode == protocol::VerificationMode::kRejection && step.sampling.temperature < 1e-5F) {
    return refuse("temperature 0 is verified greedily");
  }
  for (const int32_t token : step.provided_drafts) {
    if (token < 0 || token >= spec_.vocab) {
      return refuse(absl::StrCat("draft ", token, ", the vocabulary has ", spec_.vocab));
    }
  }
  return absl::OkStatus();
}

absl::Status BatchInput::CheckSequence(const SequenceStep& step) const {
  auto refuse = [&](std::string text) {
    return absl::InvalidArgumentError(absl::StrCat("sequence ", step.sequence.value(), ": ", text));
  };
  if (step.slot.value() >= table_.size()) {
    return refuse(absl::StrCat("slot ", step.slot.value(), " does not exist; the worker has ",
                               table_.size(), ", numbered from 0"));
  }
  const Slot& slot = table_[step.slot.value()];
  const bool holds = slot.used && slot.sequence == step.sequence && !step.fresh_slot;
  const int64_t length = holds ? slot.length : 0;
  const size_t table_size = holds ? slot.blocks.size() : 0;
  if (!holds && !step.fresh_slot) {
    return refuse(absl::StrCat("slot ", step.slot.value(), " does not hold it"));
  }
  SKEIN_RETURN_IF_ERROR(CheckState(step, holds));
  if (holds && step.first_position > length) {
    return refuse(absl::StrCat("first_position ", step.first_position, " leaves a gap after ",
                               length, " computed tokens"));
  }
  // At least the decided token of the last step stays; further back the rings are overwritten.
  const int64_t back = (holds ? std::max(length, slot.written) : 0) - int64_t{step.first_position};
  if (holds && back > spec_.dspark.block) {
    return refuse(absl::StrCat("first_position ", step.first_position, " goes back ", back,
                               " tokens, at most ", spec_.dspark.block,
                               ", the largest draft; start it again in a fresh slot"));
  }
  if (step.tokens.empty()) return refuse("has no tokens");
  const uint64_t end = uint64_t{step.first_position} + RowsMax(step);
  if (end > static_cast<uint64_t>(limits_.max_model_len)) {
    return refuse(
        absl::StrCat("ends at position ", end, ", max_model_len is ", limits_.max_model_len));
  }
  if (step.table_size_before != table_size) {
    return refuse(absl::StrCat("table_size_before is ", step.table_size_before, ", the worker has ",
                               table_size, " blocks"));
  }
  if ((table_size + step.new_blocks.size()) * static_cast<size_t>(block_tokens_) < end) {
    return refuse(absl::StrCat(table_size + step.new_blocks.size(), " blocks of ", block_tokens_,
                               " tokens do not hold ", end, " tokens"));
  }
  if (table_size + step.new_blocks.size() > static_cast<size_t>(max_blocks_)) {
    return refuse(absl::StrCat("has ", table_size + step.new_blocks.size(), " blocks, at most ",
                               max_blocks_));
  }
  if (step.sampling.num_top_logprobs < 0 || step.sampling.num_top_logprobs > limits_.max_top) {
    return refuse(absl::StrCat("num_top_logprobs is ", step.sampling.num_top_logprobs, ", at most ",
                               limits_.max_top));
  }
  SKEIN_RETURN_IF_ERROR(CheckIds(step));
  SKEIN_RETURN_IF_ERROR(editor_.Check(step));
  SKEIN_RETURN_IF_ERROR(PromptScorer::Check(step, limits_, spec_.vocab));
  return CheckDrafts(step);
}

// Checkpoints and shared blocks of a sequence, whose slot holds it or is fresh.
absl::Status BatchInput::CheckState(const SequenceStep& step, bool holds) const {
  auto refuse = [&](std::string text) {
    return absl::InvalidArgumentError(absl::StrCat("sequence ", step.sequence.value(), ": ", text));
  };
  for (const std::optional<protocol::SlotId>& id : {step.restore_from, step.save_to}) {
    if (!id || (id->value() >= table_.size() && id->value() - table_.size() < saved_.size())) {
      continue;
    }
    return refuse(absl::StrCat("checkpoint ", id->value(), " does not exist; the worker has ",
                               saved_.size(), ", numbered from ", table_.size()));
  }
  if (!holds) {
    if (step.save_to) return refuse("saves the state of a fresh slot");
    return CheckFresh(step);
  }
  if (step.restore_from || step.shared_length > 0) {
    return refuse("has a checkpoint or shared blocks for a slot that is not fresh");
  }
  return absl::OkStatus();
}

// Where a fresh slot has its state from.
absl::Status BatchInput::CheckFresh(const SequenceStep& step) const {
  auto refuse = [&](std::string text) {
    return absl::InvalidArgumentError(absl::StrCat("sequence ", step.sequence.value(), ": ", text));
  };
  const uint64_t in_blocks = step.new_blocks.size() * static_cast<uint64_t>(block_tokens_);
  if (step.shared_length % static_cast<uint32_t>(block_tokens_) != 0 ||
      step.shared_length > in_blocks) {
    return refuse(absl::StrCat("shares ", step.shared_length, " tokens, must be whole blocks of ",
                               block_tokens_, " and at most ", in_blocks));
  }
  if (step.first_position == 0) {
    return step.restore_from ? refuse("restores a checkpoint at position 0") : absl::OkStatus();
  }
  if (step.first_position > step.shared_length) {
    return refuse(absl::StrCat("first_position ", step.first_position, " leaves a gap after ",
                               step.shared_length, " shared tokens"));
  }
  if (step.restore_from) {
    const SavedSlot& saved = saved_[step.restore_from->value() - table_.size()];
    const int64_t back = std::max(saved.length, saved.written) - int64_t{step.first_position};
    if (!saved.used || step.first_position > saved.length || back > spec_.dspark.block) {
      return refuse(absl::StrCat("checkpoint ", step.restore_from->value(), " has ", saved.length,
                                 " tokens, which are not the state at position ",
                                 step.first_position));
    }
    return absl::OkStatus();
  }
  if (step.first_position % static_cast<uint32_t>(block_tokens_) != 0 ||
      int64_t{step.shared_length} - step.first_position < spec_.recompute_tokens()) {
    return refuse(absl::StrCat("resumes at position ", step.first_position, " before ",
                               step.shared_length, " shared tokens without a checkpoint; it takes ",
                               spec_.recompute_tokens(), " tokens from the beginning of a block"));
  }
  return absl::OkStatus();
}

absl::Status BatchInput::MoveState(const StepPlan& plan) {
  for (const SequenceStep& step : plan.sequences) {
    if (!step.restore_from) continue;
    const uint32_t id = step.restore_from->value() - static_cast<uint32_t>(table_.size());
    SKEIN_RETURN_IF_ERROR(
        slots_.Restore(static_cast<int>(id), static_cast<int>(step.slot.value())));
    Slot& slot = table_[step.slot.value()] = Slot{};
    static_cast<SavedSlot&>(slot) = saved_[id];
  }
  for (const SequenceStep& step : plan.sequences) {
    if (!step.save_to) continue;
    const uint32_t id = step.save_to->value() - static_cast<uint32_t>(table_.size());
    SKEIN_RETURN_IF_ERROR(slots_.Save(static_cast<int>(step.slot.value()), static_cast<int>(id)));
    saved_[id] = table_[step.slot.value()];
  }
  return absl::OkStatus();
}

// Blocks and tokens that the worker has.
absl::Status BatchInput::CheckIds(const SequenceStep& step) const {
  auto refuse = [&](std::string text) {
    return absl::InvalidArgumentError(absl::StrCat("sequence ", step.sequence.value(), ": ", text));
  };
  for (protocol::BlockId block : step.new_blocks) {
    if (block.value() >= static_cast<uint32_t>(num_blocks_)) {
      return refuse(absl::StrCat("block ", block.value(), " does not exist; the worker has ",
                                 num_blocks_, ", numbered from 0"));
    }
  }
  for (int32_t token : step.tokens) {
    if (token < 0 || token >= spec_.vocab) {
      return refuse(absl::StrCat("token ", token, ", the vocabulary has ", spec_.vocab));
    }
  }
  return absl::OkStatus();
}

absl::Status BatchInput::Check(const StepPlan& plan) const {
  size_t rows = 0;
  size_t samples = 0;
  uint64_t drafted = 0;
  std::set<uint32_t> slots;
  for (const SequenceStep& step : plan.sequences) {
    SKEIN_RETURN_IF_ERROR(CheckSequence(step));
    rows += RowsMax(step);
    samples += step.sample ? 1 + RowsMax(step) - step.tokens.size() : 0;
    drafted += step.draft_depth > 0 ? 1 : 0;
    if (!slots.insert(step.slot.value()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("slot ", step.slot.value(), " is in the plan twice"));
    }
  }
  if (drafted * static_cast<uint64_t>(limits_.max_drafts) >
      static_cast<uint64_t>(limits_.max_rows)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan drafts for ", drafted, " sequences, at most ",
                     limits_.max_rows / limits_.max_drafts, " fit ", limits_.max_rows, " rows"));
  }
  if (rows > static_cast<size_t>(limits_.max_rows)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan has ", rows, " tokens, at most ", limits_.max_rows));
  }
  if (samples > static_cast<size_t>(limits_.max_samples)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan samples ", samples, " rows, at most ", limits_.max_samples));
  }
  return absl::OkStatus();
}

void BatchInput::FillNgram(const SequenceStep& step, size_t offset, int row) {
  if (token_map_.empty()) return;
  const int slot = static_cast<int>(step.slot.value());
  const int64_t position = step.first_position + static_cast<int64_t>(offset);
  if (step.tokens[offset] < 0) return;  // PlaceDrafts knows it
  slots_.set_ngram_id(slot, position, token_map_[static_cast<size_t>(step.tokens[offset])]);
  const int64_t begin = table_[step.slot.value()].begin;
  int32_t* out = full_.ngram.as<int32_t>() + int64_t{row} * spec_.engram.ngram;
  for (int s = 0; s < spec_.engram.ngram; ++s) {
    out[s] = position - s < begin ? token_map_[static_cast<size_t>(spec_.engram.pad_token)]
                                  : slots_.ngram_id(slot, position - s);
  }
}

void BatchInput::FillGroups(const SequenceStep& step, size_t offset, int row) {
  const int64_t position = step.first_position + static_cast<int64_t>(offset);
  const int64_t last = step.first_position + static_cast<int64_t>(step.tokens.size()) - 1;
  const Slot& slot = table_[step.slot.value()];
  for (CompletedGroups& groups : batch_.groups) {
    const int ratio = groups.ratio;
    if (ratio > 1) {
      const int64_t ring = slots_.open_rows(ratio);
      groups.ring_target.as<int64_t>()[row] =
          position > last - ring ? int64_t{step.slot.value()} * ring + position % ring : -1;
    }
    if ((position + 1) % ratio != 0) continue;
    const int64_t group = position / ratio;
    const int64_t per_block = block_tokens_ / ratio;
    const int64_t block = slot.blocks[static_cast<size_t>(group / per_block)];
    // Padding has its place among the rows, so in a decode step a group has the place of its row.
    const int at = batch_.draft_count.absent() ? groups.count++ : row;
    groups.row.as<int32_t>()[at] = row;
    groups.target.as<int64_t>()[at] =
        position < slot.shared ? -1 : block * per_block + group % per_block;
    compress_.FillRow(group * ratio, groups.cos_sin.as<float>() + int64_t{at} * spec_.rope_dim);
    groups.max_columns = std::max(groups.max_columns, static_cast<int>(group) + 1);
  }
}

void BatchInput::FillRow(const SequenceStep& step, int index, size_t offset, int row) {
  const auto position = static_cast<int32_t>(step.first_position + offset);
  const int64_t last = step.first_position + static_cast<int64_t>(step.tokens.size()) - 1;
  const int64_t ring = slots_.ring_rows();
  full_.rows.position.as<int32_t>()[row] = position;
  full_.rows.sequence.as<int32_t>()[row] = index;
  full_.ids.as<int32_t>()[row] = step.tokens[offset];
  const auto begin = static_cast<int32_t>(table_[step.slot.value()].begin);
  full_.window_begin.as<int32_t>()[row] = std::max(begin, position + 1 - spec_.window);
  full_.window_end.as<int32_t>()[row] = position + 1;
  plain_.FillRow(position, full_.rope_plain.as<float>() + int64_t{row} * spec_.rope_dim);
  compress_.FillRow(position, full_.rope_compress.as<float>() + int64_t{row} * spec_.rope_dim);
  full_.ring_target.as<int64_t>()[row] =
      position > last - ring ? int64_t{step.slot.value()} * ring + position % ring : -1;
  FillNgram(step, offset, row);
  FillGroups(step, offset, row);
}

// `row` is the last row of the sequence; `step` has the drafts among its tokens.
void BatchInput::FillSample(const SequenceStep& step, const SequenceDrafts& drafts, int row,
                            int sample) {
  const int num_drafts = static_cast<int>(drafts.tokens.size());
  for (int j = 0; j <= num_drafts; ++j) {
    const int at = sample + j;
    full_.sample_row.as<int32_t>()[at] = row - num_drafts + j;
    kernels::SampleParams params;
    params.seed = step.sampling.seed;
    params.position = step.first_position + static_cast<uint32_t>(step.tokens.size()) -
                      static_cast<uint32_t>(num_drafts - j);
    params.top_k = step.sampling.top_k;
    params.temperature =
        step.mode == protocol::VerificationMode::kGreedy ? 0.0F : step.sampling.temperature;
    params.top_p = step.sampling.top_p;
    params.min_p = step.sampling.min_p;
    params.num_top = step.sampling.num_top_logprobs;
    if (step.sampling.processed_logprobs) params.logprobs = kernels::LogprobForm::kProcessed;
    full_.sample_params.as<kernels::SampleParams>()[at] = params;
    kernels::VerifyParams verify;
    if (j < num_drafts && step.mode == protocol::VerificationMode::kRejection) {
      const bool provided = drafts.draft_row < 0;
      verify.sampling = params;
      verify.draft_token = drafts.tokens[static_cast<size_t>(j)];
      verify.form = provided ? kernels::DraftForm::kPoint : kernels::DraftForm::kLogits;
      verify.draft_row = provided ? 0 : drafts.draft_row + j;
      ++batch_.num_verified;
    }
    full_.verify_params.as<kernels::VerifyParams>()[at] = verify;
  }
}

int64_t BatchInput::FedFrom(const SequenceStep& step) const {
  const Slot& slot = table_[step.slot.value()];
  const int64_t first = step.first_position;
  const bool known = slot.used && slot.sequence == step.sequence && !step.fresh_slot;
  return known && slot.fed_to >= first ? std::min(slot.fed_from, first) : first;
}

// Positions [first, end) are computed; the draft head sees them or not.
void BatchInput::Feed(Slot& slot, int64_t first, int64_t end, bool feeds) {
  if (feeds) {
    slot.fed_from = first > slot.fed_to ? first : std::min(slot.fed_from, first);
    slot.fed_to = end;
  } else {
    slot.fed_to = std::min(slot.fed_to, first);
    slot.fed_from = std::min(slot.fed_from, slot.fed_to);
  }
}

void BatchInput::Settle(const SequenceStep& step, std::span<const int32_t> drafts, bool feeds) {
  Slot& slot = table_[step.slot.value()];
  slot.length = step.first_position + static_cast<int64_t>(step.tokens.size() + drafts.size());
  slot.written = std::max(slot.written, slot.length);
  Feed(slot, step.first_position, slot.length, feeds);
  if (token_map_.empty()) return;
  int64_t position = slot.length - static_cast<int64_t>(drafts.size());
  for (const int32_t token : drafts) {
    slots_.set_ngram_id(static_cast<int>(step.slot.value()), position++,
                        token_map_[static_cast<size_t>(token)]);
  }
}

// The slot of a sequence of the step, and what the step says of the sequence as a whole.
void BatchInput::OpenSlot(const SequenceStep& step, int index, int first_row) {
  Slot& slot = table_[step.slot.value()];
  if (step.fresh_slot) {
    // Otherwise MoveState filled it. Of state that is recomputed nothing is known before.
    if (!step.restore_from) {
      slot = Slot{};
      slot.begin = step.first_position;
    }
    slot.shared = step.shared_length;
  }
  slot.used = true;
  slot.sequence = step.sequence;
  slot.written = step.first_position + static_cast<int64_t>(step.tokens.size());
  for (protocol::BlockId block : step.new_blocks) {
    slot.blocks.push_back(static_cast<int32_t>(block.value()));
  }
  full_.rows.first_row.as<int32_t>()[index] = first_row;
  full_.rows.first_position.as<int32_t>()[index] = static_cast<int32_t>(step.first_position);
  full_.rows.slot.as<int32_t>()[index] = static_cast<int32_t>(step.slot.value());
  int32_t* table = full_.rows.block_table.as<int32_t>() + int64_t{index} * max_blocks_;
  std::fill_n(table, max_blocks_, -1);
  std::copy(slot.blocks.begin(), slot.blocks.end(), table);
}

void BatchInput::FillSequence(const SequenceStep& planned, const SequenceDrafts& drafts,
                              int index) {
  SequenceStep step = planned;
  step.tokens.insert(step.tokens.end(), drafts.tokens.begin(), drafts.tokens.end());
  OpenSlot(step, index, batch_.num_rows);
  Settle(step, {}, batch_.feeds_drafter);
  editor_.Take(planned);
  for (size_t offset = 0; offset < step.tokens.size(); ++offset) {
    FillRow(step, index, offset, batch_.num_rows++);
  }
  if (step.sample) {
    FillSample(step, drafts, batch_.num_rows - 1, batch_.num_samples);
    editor_.Edit(planned, drafts.tokens, batch_.num_samples);
    batch_.num_samples += 1 + static_cast<int>(drafts.tokens.size());
  }
  // Columns that the last row sees, also when the step completes no group.
  const int64_t length = table_[step.slot.value()].length;
  for (CompletedGroups& groups : batch_.groups) {
    groups.max_columns = std::max(groups.max_columns, static_cast<int>(length / groups.ratio));
  }
}

void BatchInput::FillDecode(const SequenceStep& planned, const DecodeShape& shape, int index) {
  SequenceStep step = planned;
  SequenceDrafts drafts;
  drafts.tokens.assign(planned.draft_depth, -1);
  drafts.draft_row = index * spec_.dspark.block;
  step.tokens.insert(step.tokens.end(), drafts.tokens.begin(), drafts.tokens.end());
  const int first_row = index * (1 + shape.depth);
  OpenSlot(step, index, first_row);
  editor_.Take(planned);
  full_.draft_count.as<int32_t>()[index] = static_cast<int32_t>(planned.draft_depth);
  for (size_t offset = 0; offset < step.tokens.size(); ++offset) {
    FillRow(step, index, offset, first_row + static_cast<int>(offset));
  }
  FillSample(step, drafts, first_row + static_cast<int>(planned.draft_depth), first_row);
}

// Every row of a decode step belongs to nobody until a sequence takes it.
void BatchInput::FillPadding() {
  staging_.Clear();
  const auto none = [](const TensorView& view) {
    if (view.dtype == DType::kI64) {
      std::fill_n(view.as<int64_t>(), view.size(), int64_t{-1});
    } else {
      std::fill_n(view.as<int32_t>(), view.size(), -1);
    }
  };
  none(full_.rows.sequence);
  none(full_.ids);
  none(full_.ring_target);
  for (const CompletedGroups& groups : full_.groups) {
    none(groups.row);
    none(groups.target);
    if (!groups.ring_target.absent()) none(groups.ring_target);
  }
}

const ModelBatch& BatchInput::BuildDecode(const StepPlan& plan, const DecodeShape& shape) {
  const int rows = shape.rows();
  full_ = Layout({rows, shape.sequences, rows}, staging_);
  FillPadding();
  batch_ = full_;
  batch_.feeds_drafter = shape.feeds_drafter;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    FillDecode(plan.sequences[i], shape, static_cast<int>(i));
  }
  batch_.num_rows = rows;
  batch_.num_samples = rows;
  batch_.num_verified = shape.depth > 0 ? rows : 0;
  for (CompletedGroups& groups : batch_.groups) {
    groups.count = rows;
    groups.max_columns = limits_.max_model_len / groups.ratio;
  }
  Narrow();
  MoveToDevice();
  return batch_;
}

void BatchInput::Narrow() {
  for (CompletedGroups& groups : batch_.groups) {
    groups.row = Rows(groups.row, groups.count);
    groups.target = Rows(groups.target, groups.count);
    groups.cos_sin = Rows(groups.cos_sin, groups.count);
  }
  batch_.ring_source = Rows(ring_source_, batch_.num_rows);
}

void BatchInput::MoveToDevice() {
  for (TensorView* view :
       {&batch_.rows.position, &batch_.rows.sequence, &batch_.rows.first_row,
        &batch_.rows.first_position, &batch_.rows.slot, &batch_.rows.block_table, &batch_.ids,
        &batch_.window_begin, &batch_.window_end, &batch_.rope_plain, &batch_.rope_compress,
        &batch_.ring_target, &batch_.ngram, &batch_.draft_count, &batch_.sample_row,
        &batch_.sample_params, &batch_.verify_params}) {
    *view = staging_.OnDevice(*view);
  }
  for (CompletedGroups& groups : batch_.groups) {
    for (TensorView* view : {&groups.row, &groups.target, &groups.cos_sin, &groups.ring_target}) {
      *view = staging_.OnDevice(*view);
    }
  }
}

const ModelBatch& BatchInput::Build(const StepPlan& plan, std::span<const SequenceDrafts> drafts) {
  Shape shape;
  shape.sequences = static_cast<int>(plan.sequences.size());
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const int num_drafts = static_cast<int>(drafts[i].tokens.size());
    shape.rows += static_cast<int>(plan.sequences[i].tokens.size()) + num_drafts;
    shape.samples += plan.sequences[i].sample ? 1 + num_drafts : 0;
  }
  full_ = Layout(shape, staging_);
  full_.draft_count = {};
  batch_ = full_;
  const bool edits = Edits(plan);
  if (edits) editor_.Begin(shape.samples);
  batch_.feeds_drafter = std::any_of(plan.sequences.begin(), plan.sequences.end(),
                                     [](const SequenceStep& step) { return step.feed_drafter; });
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    FillSequence(plan.sequences[i], drafts[i], static_cast<int>(i));
  }
  if (edits) batch_.edits = editor_.Finish();
  Narrow();
  MoveToDevice();
  return batch_;
}

}  // namespace skein::worker
