#include "tests/process/mock_runner.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "protocol/base/status_macros.h"
#include "tests/process/mock_model.h"

namespace skein::tests {

using protocol::SequenceStep;
using protocol::StepPlan;
using protocol::StepResult;

MockMemory::MockMemory(const protocol::CacheGeometry& geometry)
    : geometry_(geometry),
      cells_(size_t{geometry.num_blocks} * geometry.block_tokens, -1),
      slots_(geometry.num_slots) {}

void MockMemory::Forget() {
  std::fill(cells_.begin(), cells_.end(), -1);
  for (Slot& slot : slots_) slot.table.clear();
}

absl::Status MockMemory::Place(const SequenceStep& step) {
  if (step.slot.value() >= slots_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("there is no slot ", step.slot.value()));
  }
  Slot& slot = slots_[step.slot.value()];
  if (step.fresh_slot) slot.table.clear();
  if (slot.table.size() != step.table_size_before) {
    return absl::InvalidArgumentError(absl::StrCat("slot ", step.slot.value(), " has ",
                                                   slot.table.size(), " blocks, the plan says ",
                                                   step.table_size_before));
  }
  for (const protocol::BlockId block : step.new_blocks) {
    if (block.value() >= geometry_.num_blocks) {
      return absl::InvalidArgumentError(absl::StrCat("there is no block ", block.value()));
    }
    slot.table.push_back(block);
  }
  if (step.first_position + step.tokens.size() > slot.table.size() * geometry_.block_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("the blocks of slot ", step.slot.value(), " end before the step does"));
  }
  for (size_t i = 0; i < step.tokens.size(); ++i) {
    const size_t at = step.first_position + i;
    const size_t block = slot.table[at / geometry_.block_tokens].value();
    cells_[block * geometry_.block_tokens + at % geometry_.block_tokens] = step.tokens[i];
  }
  return absl::OkStatus();
}

protocol::RowSummary MockMemory::Sample(const SequenceStep& step) const {
  const size_t size = step.first_position + step.tokens.size();
  uint64_t prefix = kEmptyPrefix;
  size_t left = size;
  for (const protocol::BlockId block : slots_[step.slot.value()].table) {
    const int32_t* cells = cells_.data() + size_t{block.value()} * geometry_.block_tokens;
    const size_t count = std::min<size_t>(left, geometry_.block_tokens);
    for (size_t i = 0; i < count; ++i) prefix = Extend(prefix, cells[i]);
    left -= count;
  }
  protocol::RowSummary row;
  row.position = static_cast<uint32_t>(size);
  row.plain_token = row.argmax_token = TokenOf(CharacterAfter(prefix));
  row.plain_logprob = row.argmax_logprob = -1;
  return row;
}

StepResult MockMemory::Run(const StepPlan& plan) {
  StepResult result;
  result.group = plan.group;
  result.rank = plan.rank;
  result.epoch = plan.epoch;
  result.step = plan.step;
  result.lane = plan.lane;
  for (const SequenceStep& step : plan.sequences) {
    if (const absl::Status placed = Place(step); !placed.ok()) {
      result.status = protocol::StepStatus::kRefused;
      result.message = std::string(placed.message());
      result.sequences.clear();
      return result;
    }
    protocol::VerificationSummary summary;
    summary.sequence = step.sequence;
    if (step.sample) summary.rows.push_back(Sample(step));
    result.sequences.push_back(std::move(summary));
  }
  return result;
}

MockRunner::MockRunner(const protocol::CacheGeometry& geometry, const MockSpeed& speed,
                       protocol::Waker& actor)
    : speed_(speed), actor_(actor), memory_(geometry), thread_([this] { Loop(); }) {}

MockRunner::~MockRunner() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

absl::Status MockRunner::Submit(StepPlan plan) {
  const std::lock_guard lock(mutex_);
  jobs_.emplace_back(std::move(plan));
  changed_.notify_all();
  return absl::OkStatus();
}

absl::Status MockRunner::Reset() {
  const std::lock_guard lock(mutex_);
  jobs_.emplace_back(std::nullopt);
  changed_.notify_all();
  return absl::OkStatus();
}

std::vector<StepResult> MockRunner::TakeResults() {
  const std::lock_guard lock(mutex_);
  return std::exchange(results_, {});
}

bool MockRunner::Next(std::optional<StepPlan>& job) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ending_ || !jobs_.empty(); });
  if (ending_) return false;
  job = std::move(jobs_.front());
  jobs_.pop_front();
  return true;
}

bool MockRunner::Spend(absl::Duration duration) {
  std::unique_lock lock(mutex_);
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(duration);
  while (!ending_ && std::chrono::steady_clock::now() < end) changed_.wait_until(lock, end);
  return !ending_;
}

void MockRunner::Loop() {
  for (std::optional<StepPlan> plan; Next(plan);) {
    if (!plan) {
      memory_.Forget();
      continue;
    }
    size_t rows = 0;
    for (const SequenceStep& step : plan->sequences) rows += step.tokens.size();
    const absl::Duration took = speed_.step + static_cast<int64_t>(rows) * speed_.row;
    StepResult result = memory_.Run(*plan);
    result.device_time_us = static_cast<uint64_t>(absl::ToInt64Microseconds(took));
    if (!Spend(took)) return;
    {
      const std::lock_guard lock(mutex_);
      results_.push_back(std::move(result));
    }
    actor_.Wake();
  }
}

}  // namespace skein::tests
