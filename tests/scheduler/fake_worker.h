// A complete small worker for tests of the scheduler and for the simulation: a cache that is a map
// from (block, offset) to the token written there, and a model whose next token is a hash of the
// prefix that it reads back.
// Owns its slots and cache. Thread: the test's.
// Must never: answer a plan that contradicts what it holds; it names the contradiction instead.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "protocol/messages/sampling_params.h"
#include "protocol/messages/step.h"

namespace skein::tests {

// What the model knows of a prefix. `seed`: 0 when greedy.
inline uint64_t HashPrefix(std::span<const int32_t> prefix, uint64_t seed = 0) {
  uint64_t hash = 1469598103934665603ULL ^ seed;
  for (int32_t token : prefix) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 1099511628211ULL;
    hash ^= hash >> 29;
  }
  return hash;
}

// The token that sequential decoding chooses after `prefix`: 0 to 49.
inline int32_t NextToken(std::span<const int32_t> prefix, uint64_t seed = 0) {
  return static_cast<int32_t>(HashPrefix(prefix, seed) % 50);
}

// Its log-probability: -0.5 down to -1.5.
inline float LogprobOf(std::span<const int32_t> prefix, uint64_t seed = 0) {
  return -0.5F - static_cast<float>(HashPrefix(prefix, seed) >> 32 & 63) / 64;
}

// The token under a mask, empty for none: the next one above it, around the end, that the mask
// allows; -1 when it allows none.
inline int32_t NextToken(std::span<const int32_t> prefix, const std::vector<uint32_t>& mask,
                         uint64_t seed = 0) {
  const int32_t wanted = NextToken(prefix, seed);
  if (mask.empty()) return wanted;
  for (int32_t i = 0; i < 50; ++i) {
    const auto token = static_cast<uint32_t>((wanted + i) % 50);
    if ((mask[token / 32] >> (token % 32) & 1u) != 0) return static_cast<int32_t>(token);
  }
  return -1;
}

// What a worker says of `token` behind `prefix`.
inline float ScoreOf(std::span<const int32_t> prefix, int32_t token) {
  return -static_cast<float>((NextToken(prefix) + token) % 97) / 8;
}

class FakeWorker {
 public:
  // Forgets everything: a new epoch.
  void Restart(const protocol::CacheGeometry& geometry) {
    geometry_ = geometry;
    slots_.assign(size_t{geometry.num_slots} + geometry.num_checkpoints, Slot());
    cache_.assign(size_t{geometry.num_blocks} * geometry.block_tokens, Cell());
  }
  // Of `one_in` drafts one is wrong; 1: all are.
  void SetWrongDrafts(uint32_t one_in) { wrong_drafts_ = one_in; }

  // The result of a plan. `defect()` says what was wrong with it, if anything was.
  protocol::StepResult Run(const protocol::StepPlan& plan) {
    protocol::StepResult result;
    result.group = plan.group;
    result.rank = plan.rank;
    result.epoch = plan.epoch;
    result.step = plan.step;
    result.lane = plan.lane;
    size_t rows = 0;
    size_t drafted = 0;
    // As a real worker does it: copies begin slots, then slots leave copies, then rows are
    // computed.
    for (const protocol::SequenceStep& step : plan.sequences) {
      if (step.slot.value() >= geometry_.num_slots) Note("a slot is out of range");
      if (!defect_.empty()) return result;
      if (step.fresh_slot) Open(step, slots_[step.slot.value()]);
    }
    for (const protocol::SequenceStep& step : plan.sequences) {
      if (step.save_to) Save(slots_[step.slot.value()], *step.save_to);
    }
    for (const protocol::SequenceStep& step : plan.sequences) {
      rows += step.tokens.size() + step.draft_depth + step.provided_drafts.size();
      drafted += step.draft_depth > 0 ? 1 : 0;
      result.sequences.push_back(RunSequence(step));
    }
    // Times without a pattern, so that adaptive depths take every value.
    result.draft_time_us = drafted * (50 + clock_ * 37 % 400);
    result.device_time_us = result.draft_time_us + 100 + rows * (clock_++ * 29 % 90);
    if (drafted * geometry_.max_draft_tokens > geometry_.max_rows) Note("too many are drafted for");
    if (rows > geometry_.max_rows) Note("the plan has too many rows");
    // Only where other ranks have something to run.
    if (rows == 0 && plan.plan_hash == 0) Note("the plan is empty");
    if (std::exchange(scored_rows_, 0) > protocol::kStepScoresMax) Note("too many rows are scored");
    return result;
  }

  // Blocks and a checkpoint on their way to another worker.
  struct Parcel;
  Parcel Export(const std::vector<protocol::BlockId>& blocks, protocol::SlotId checkpoint) const;
  void Import(const Parcel& parcel, const std::vector<protocol::BlockId>& blocks,
              protocol::SlotId checkpoint);

  // The first contradiction found in any plan; empty if there was none.
  const std::string& defect() const { return defect_; }

 private:
  struct Slot {
    protocol::SequenceId sequence;
    uint32_t length = 0;
    uint32_t num_drafts = 0;  // the newest of them, which may be refused
    std::vector<uint32_t> blocks;
    uint32_t shared = 0;      // tokens in blocks of others
    uint32_t exact_from = 0;  // the state of the slot is whole from here on
    // The state of a real slot, as the tokens that led to it; unknown where computing was skipped.
    std::vector<int32_t> state = {};
  };
  struct Cell {
    uint64_t sequence = 0;
    int32_t token = -1;
  };

  void Note(std::string text) {
    if (defect_.empty()) defect_ = std::move(text);
  }

  protocol::VerificationSummary RunSequence(const protocol::SequenceStep& step) {
    Slot& slot = slots_[step.slot.value()];
    if (slot.sequence != step.sequence) Note("a slot holds another sequence");
    if (step.first_position > slot.length || step.first_position + slot.num_drafts < slot.length) {
      Note("a position is skipped or repeated");
    }
    slot.length = step.first_position;
    slot.state.resize(slot.length);
    if (slot.blocks.size() != step.table_size_before) Note("the block tables differ");
    if (step.tokens.empty()) Note("a sequence has no tokens");
    for (protocol::BlockId block : step.new_blocks) {
      if (block.value() >= geometry_.num_blocks) {
        Note("a block is out of range");
        return {};
      }
      slot.blocks.push_back(block.value());
    }
    protocol::VerificationSummary summary;
    summary.sequence = step.sequence;
    for (size_t i = 0; i < step.tokens.size(); ++i) {
      Write(slot, step.tokens[i]);
      if (i - step.scoring.from >= step.scoring.count) continue;
      const bool last = i + 1 == step.tokens.size();
      const int32_t next = last ? step.scoring.next_token : step.tokens[i + 1];
      if (next < 0) Note("no token is given to score");
      summary.scores.push_back({Score(slot, next), {}});
      scored_rows_ += 1;
    }
    if (step.scoring.from + step.scoring.count > step.tokens.size()) Note("no row to score");
    const size_t samples = step.sample ? 1 + step.provided_drafts.size() : 0;
    if (!step.masks.empty() && (step.masks.size() != samples || step.draft_depth > 0)) {
      Note("the masks are not those of the sampled rows");
    }
    if (step.sample) summary.rows.push_back(Sample(step, slot, MaskOf(step, 0)));
    slot.num_drafts = 0;
    if (step.draft_depth > 0) Draft(step, slot, summary);
    if (!step.provided_drafts.empty()) Verify(step, slot, summary);
    return summary;
  }

  static std::vector<uint32_t> MaskOf(const protocol::SequenceStep& step, size_t row) {
    return step.masks.empty() ? std::vector<uint32_t>() : step.masks[row];
  }

  void Verify(const protocol::SequenceStep& step, Slot& slot,
              protocol::VerificationSummary& summary) {
    if (step.draft_depth > 0 || step.provided_drafts.size() > geometry_.max_draft_tokens) {
      Note("provided drafts beside others, or too many");
    }
    for (size_t i = 0; i < step.provided_drafts.size(); ++i) {
      SetDraft(step.provided_drafts[i], summary.rows.back());
      Write(slot, step.provided_drafts[i]);
      summary.rows.push_back(Sample(step, slot, MaskOf(step, i + 1)));
    }
    slot.num_drafts = static_cast<uint32_t>(step.provided_drafts.size());
  }

  static void SetDraft(int32_t token, protocol::RowSummary& row) {
    row.draft_token = token;
    row.draft_logprob = row.plain_logprob;
    row.confidence = 0.5F;
    row.draft_probability = 1;
    row.target_probability = token == row.plain_token ? 1.0F : 0.0F;
    row.recovered_token = row.plain_token;
    row.recovered_logprob = row.plain_logprob;
  }

  // Drafts that are mostly right, and sometimes fewer than were asked for.
  void Draft(const protocol::SequenceStep& step, Slot& slot,
             protocol::VerificationSummary& summary) {
    if (!step.sample || step.tokens.size() != 1 || step.first_position == 0) {
      Note("a draft follows something else than one decided token");
    }
    if (step.draft_depth > geometry_.max_draft_tokens) Note("a draft is too deep");
    const uint32_t depth = clock_ * 13 % 7 == 0 ? step.draft_depth / 2 : step.draft_depth;
    for (uint32_t i = 0; i < depth; ++i) {
      protocol::RowSummary& row = summary.rows.back();
      const bool right = (clock_ + i * 5 + slot.length) % wrong_drafts_ != 0;
      SetDraft(right ? row.plain_token : (row.plain_token + 1) % 50, row);
      Write(slot, row.draft_token);
      summary.rows.push_back(Sample(step, slot, {}));
    }
    slot.num_drafts = depth;
  }

  void Save(const Slot& slot, protocol::SlotId to) {
    const uint32_t id = to.value();
    if (id < geometry_.num_slots || id >= geometry_.num_slots + geometry_.num_checkpoints) {
      return Note("a checkpoint is out of range");
    }
    if (slot.length < slot.exact_from) Note("a checkpoint of incomplete state is taken");
    slots_[id] = slot;
  }

  void Open(const protocol::SequenceStep& step, Slot& slot) {
    slot = Slot{step.sequence, step.first_position, 0, {}, step.shared_length};
    slot.state.assign(step.first_position, -1);
    if (step.shared_length % geometry_.block_tokens != 0) Note("a part of a block is shared");
    if (step.restore_from) {
      if (step.restore_from->value() >= slots_.size()) return Note("there is no such checkpoint");
      const Slot& saved = slots_[step.restore_from->value()];
      if (saved.length < step.first_position ||
          saved.length - step.first_position > geometry_.max_draft_tokens) {
        return Note("a checkpoint is of another position");
      }
      slot.state.assign(saved.state.begin(), saved.state.begin() + step.first_position);
    } else if (step.first_position > 0) {
      slot.exact_from = step.shared_length;
      if (geometry_.recompute_tokens == 0 ||
          step.first_position + geometry_.recompute_tokens > step.shared_length) {
        Note("too few tokens are recomputed");
      }
    }
  }

  void Write(Slot& slot, int32_t token) {
    const uint32_t index = slot.length / geometry_.block_tokens;
    if (index >= slot.blocks.size() || slot.length >= geometry_.max_model_len) {
      return Note("the blocks do not hold the tokens");
    }
    slot.state.push_back(token);
    if (slot.length < slot.shared) {
      const Cell& cell = At(slot, slot.length++);
      if (cell.token != token) Note("a shared block has other tokens");
      return;
    }
    At(slot, slot.length++) = {slot.sequence.value(), token};
  }

  Cell& At(const Slot& slot, uint32_t position) {
    const size_t block = slot.blocks[position / geometry_.block_tokens];
    return cache_[block * geometry_.block_tokens + position % geometry_.block_tokens];
  }

  float Score(const Slot& slot, int32_t token) {
    ReadBack(slot);
    return ScoreOf(prefix_, token);
  }

  protocol::RowSummary Sample(const protocol::SequenceStep& step, const Slot& slot,
                              const std::vector<uint32_t>& mask) {
    ReadBack(slot);
    const std::vector<int32_t>& prefix = prefix_;
    protocol::RowSummary row;
    row.position = slot.length;
    const bool greedy = step.sampling.temperature < protocol::kGreedyTemperature;
    const uint64_t seed = greedy ? 0 : step.sampling.seed;
    row.argmax_token = NextToken(prefix, mask);
    row.argmax_logprob = LogprobOf(prefix);
    row.plain_token = NextToken(prefix, mask, seed);
    row.plain_logprob = LogprobOf(prefix, seed);
    if (row.plain_token < 0) row.flags = protocol::kRowAllMasked;
    return row;
  }

  // What the newest row reads, into prefix_.
  void ReadBack(const Slot& slot) {
    std::vector<int32_t>& prefix = prefix_;
    prefix.clear();
    for (uint32_t at = 0; at < slot.length; ++at) {
      if (at / geometry_.block_tokens >= slot.blocks.size()) break;  // noted by Write
      const Cell& cell = At(slot, at);
      if (at >= slot.shared && cell.sequence != slot.sequence.value()) {
        Note("a block was overwritten");
      }
      if (slot.state[at] >= 0 && slot.state[at] != cell.token) Note("a slot has other state");
      if (slot.state[at] < 0 && at + geometry_.recompute_tokens >= slot.length) {
        Note("a slot has no state");
      }
      prefix.push_back(cell.token);
    }
    if (slot.length < slot.exact_from) Note("a row with incomplete state is sampled");
  }

  protocol::CacheGeometry geometry_;
  std::vector<Slot> slots_;  // and checkpoints
  std::vector<Cell> cache_;  // by block and offset
  std::vector<int32_t> prefix_;
  uint32_t wrong_drafts_ = 4;
  std::string defect_;
  uint64_t clock_ = 0;        // plans run
  uint32_t scored_rows_ = 0;  // of the plan
};

struct FakeWorker::Parcel {
  std::vector<Cell> cells;
  Slot slot;
};

inline FakeWorker::Parcel FakeWorker::Export(const std::vector<protocol::BlockId>& blocks,
                                             protocol::SlotId checkpoint) const {
  Parcel parcel;
  for (const protocol::BlockId block : blocks) {
    const auto begin = cache_.begin() + int64_t{block.value()} * geometry_.block_tokens;
    parcel.cells.insert(parcel.cells.end(), begin, begin + geometry_.block_tokens);
  }
  parcel.slot = slots_[checkpoint.value()];
  return parcel;
}

inline void FakeWorker::Import(const Parcel& parcel, const std::vector<protocol::BlockId>& blocks,
                               protocol::SlotId checkpoint) {
  auto from = parcel.cells.begin();
  for (const protocol::BlockId block : blocks) {
    std::copy_n(from, geometry_.block_tokens,
                cache_.begin() + int64_t{block.value()} * geometry_.block_tokens);
    from += geometry_.block_tokens;
  }
  slots_[checkpoint.value()] = parcel.slot;
}

inline protocol::StopConditions StopAt(int32_t max_tokens, int32_t min_tokens = 0,
                                       std::vector<int32_t> stop_token_ids = {}) {
  protocol::StopConditions stop;
  stop.max_tokens = max_tokens;
  stop.min_tokens = min_tokens;
  stop.stop_token_ids = std::move(stop_token_ids);
  return stop;
}

// What sequential decoding of one sequence generates.
inline std::vector<int32_t> DecodeAlone(std::vector<int32_t> prompt,
                                        const protocol::StopConditions& stop,
                                        uint32_t max_model_len, uint64_t seed = 0) {
  std::vector<int32_t> out;
  while (true) {
    const int32_t token = NextToken(prompt, seed);
    prompt.push_back(token);
    out.push_back(token);
    const auto count = static_cast<int32_t>(out.size());
    bool stops = false;
    for (int32_t id : stop.stop_token_ids) stops = stops || id == token;
    if ((stops && count >= stop.min_tokens) || count >= stop.max_tokens ||
        prompt.size() >= max_model_len) {
      return out;
    }
  }
}

}  // namespace skein::tests
