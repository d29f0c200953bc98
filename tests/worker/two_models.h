// Two copies of the demo model with checkpoints, as of two groups, for tests that move cache blocks
// from one to the other. Owns registry and models. Thread: the test's.
// Must never: share anything but the weights between the two.
#pragma once

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "protocol/messages/move.h"
#include "tests/worker/tiny_model.h"
#include "worker/step_executor.h"

namespace skein::tests {

class TwoModels {
 public:
  static constexpr uint32_t kBlock = 32;
  static constexpr int kSlots = 4;
  static constexpr int kBlocks = 24;

  TwoModels() {
    EXPECT_TRUE(kernels::RegisterCpuKernels(registry_, kernels::CpuIsa::kAuto).ok());
    for (std::unique_ptr<worker::LoadedModel>& model : models_) {
      worker::LoadOptions options = TinyOptions({.max_rows = 256,
                                                 .max_samples = 8,
                                                 .max_model_len = 512,
                                                 .num_blocks = kBlocks,
                                                 .num_slots = kSlots,
                                                 .max_draft_requests = kSlots});
      options.num_checkpoints = 4;
      options.device =
          std::make_shared<kernels::HostDevice>(kernels::DeviceStream{&threads_});
      auto loaded = worker::LoadedModel::Load(registry_, kernels::KernelManifest::Uniform("cpu"),
                                              options);
      EXPECT_TRUE(loaded.ok()) << loaded.status();
      model = *std::move(loaded);
    }
  }
  worker::LoadedModel& operator[](size_t i) { return *models_[i]; }

  // Runs tokens of `prompt` from `from` to `to` in slot 1 of a model, whose table then begins with
  // these blocks. What the step of the last one says.
  protocol::StepResult Run(size_t model, const std::vector<int32_t>& prompt, uint32_t from,
                           uint32_t to, const std::vector<uint32_t>& blocks,
                           std::optional<uint32_t> restore = std::nullopt,
                           std::optional<uint32_t> save = std::nullopt) {
    protocol::StepPlan plan;
    plan.step = protocol::StepId(++steps_);
    protocol::SequenceStep& step = plan.sequences.emplace_back();
    step.sequence = protocol::SequenceId(7);
    step.slot = protocol::SlotId(1);
    step.fresh_slot = from == 0 || restore;
    step.first_position = from;
    step.tokens.assign(prompt.begin() + from, prompt.begin() + to);
    if (restore) step.shared_length = from;
    if (!step.fresh_slot) step.table_size_before = (from + kBlock - 1) / kBlock;
    for (size_t i = step.table_size_before; i < (to + kBlock - 1) / kBlock; ++i) {
      step.new_blocks.emplace_back(blocks[i]);
    }
    if (restore) step.restore_from = protocol::SlotId(*restore);
    if (save) step.save_to = protocol::SlotId(*save);
    step.sample = to == prompt.size();
    step.sampling = {.temperature = 0, .num_top_logprobs = 5};
    step.feed_drafter = true;
    return worker::RunPlan(*models_[model], plan);
  }

 private:
  kernels::KernelRegistry registry_;
  kernels::cpu::ThreadPool threads_{1};
  std::array<std::unique_ptr<worker::LoadedModel>, 2> models_;
  uint64_t steps_ = 0;
};

inline std::vector<int32_t> PromptOf(size_t length) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < length; ++i) tokens.push_back(static_cast<int32_t>(300 + i * 37 % 3000));
  return tokens;
}

// An order that names these blocks and this checkpoint.
inline protocol::MoveBlocks OrderOf(uint64_t transfer, protocol::MoveSide side,
                                    const std::vector<uint32_t>& blocks, uint32_t checkpoint) {
  protocol::MoveBlocks move;
  move.transfer = protocol::TransferId(transfer);
  move.group = protocol::GroupId(1);
  move.epoch = protocol::Epoch(3);
  move.side = side;
  for (const uint32_t block : blocks) move.blocks.emplace_back(block);
  move.checkpoint = protocol::SlotId(checkpoint);
  move.position = static_cast<uint32_t>(blocks.size()) * TwoModels::kBlock;
  move.timeout_ms = 10'000;
  return move;
}

}  // namespace skein::tests
