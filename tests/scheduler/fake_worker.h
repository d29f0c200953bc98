// A complete small worker for scheduler tests: a cache that is a map from (block, offset) to the
// token written there, and a model whose next token is a hash of the prefix that it reads back.
// Owns its slots and cache. Thread: the test's.
// Must never: answer a plan that contradicts what it holds; it names the contradiction instead.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "protocol/messages/sampling_params.h"
#include "protocol/messages/step.h"

namespace skein::tests {

// The token that sequential decoding chooses after `prefix`: 0 to 49.
inline int32_t NextToken(std::span<const int32_t> prefix) {
  uint64_t hash = 1469598103934665603ULL;
  for (int32_t token : prefix) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 1099511628211ULL;
    hash ^= hash >> 29;
  }
  return static_cast<int32_t>(hash % 50);
}

class FakeWorker {
 public:
  // Forgets everything: a new epoch.
  void Restart(const protocol::CacheGeometry& geometry) {
    geometry_ = geometry;
    slots_.clear();
    cache_.clear();
  }

  // The result of a plan. `defect()` says what was wrong with it, if anything was.
  protocol::StepResult Run(const protocol::StepPlan& plan) {
    protocol::StepResult result;
    result.group = plan.group;
    result.rank = plan.rank;
    result.epoch = plan.epoch;
    result.step = plan.step;
    result.lane = plan.lane;
    size_t rows = 0;
    for (const protocol::SequenceStep& step : plan.sequences) {
      rows += step.tokens.size();
      result.sequences.push_back(RunSequence(step));
    }
    if (rows > geometry_.max_rows) Note("the plan has too many rows");
    if (rows == 0) Note("the plan is empty");
    return result;
  }

  // The first contradiction found in any plan; empty if there was none.
  const std::string& defect() const { return defect_; }

 private:
  struct Slot {
    protocol::SequenceId sequence;
    uint32_t length = 0;
    std::vector<uint32_t> blocks;
  };
  struct Cell {
    uint64_t sequence = 0;
    int32_t token = -1;
  };

  void Note(std::string text) {
    if (defect_.empty()) defect_ = std::move(text);
  }

  protocol::VerificationSummary RunSequence(const protocol::SequenceStep& step) {
    if (step.slot.value() >= geometry_.num_slots) Note("a slot is out of range");
    if (step.fresh_slot) slots_[step.slot.value()] = Slot{step.sequence, 0, {}};
    Slot& slot = slots_[step.slot.value()];
    if (slot.sequence != step.sequence) Note("a slot holds another sequence");
    if (slot.length != step.first_position) Note("a position is skipped or repeated");
    if (slot.blocks.size() != step.table_size_before) Note("the block tables differ");
    if (step.tokens.empty()) Note("a sequence has no tokens");
    for (protocol::BlockId block : step.new_blocks) {
      if (block.value() >= geometry_.num_blocks) Note("a block is out of range");
      slot.blocks.push_back(block.value());
    }
    for (int32_t token : step.tokens) Write(slot, token);
    protocol::VerificationSummary summary;
    summary.sequence = step.sequence;
    if (step.sample) summary.rows.push_back(Sample(slot));
    return summary;
  }

  void Write(Slot& slot, int32_t token) {
    const uint32_t index = slot.length / geometry_.block_tokens;
    if (index >= slot.blocks.size() || slot.length >= geometry_.max_model_len) {
      return Note("the blocks do not hold the tokens");
    }
    cache_[{slot.blocks[index], slot.length++ % geometry_.block_tokens}] = {slot.sequence.value(),
                                                                            token};
  }

  protocol::RowSummary Sample(const Slot& slot) {
    std::vector<int32_t> prefix;
    for (uint32_t at = 0; at < slot.length; ++at) {
      const Cell cell =
          cache_[{slot.blocks[at / geometry_.block_tokens], at % geometry_.block_tokens}];
      if (cell.sequence != slot.sequence.value()) Note("a block was overwritten");
      prefix.push_back(cell.token);
    }
    protocol::RowSummary row;
    row.position = slot.length;
    row.plain_token = row.argmax_token = NextToken(prefix);
    row.plain_logprob = row.argmax_logprob = -0.5F;
    return row;
  }

  protocol::CacheGeometry geometry_;
  std::map<uint32_t, Slot> slots_;
  std::map<std::pair<uint32_t, uint32_t>, Cell> cache_;
  std::string defect_;
};

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
                                        uint32_t max_model_len) {
  std::vector<int32_t> out;
  while (true) {
    const int32_t token = NextToken(prompt);
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
