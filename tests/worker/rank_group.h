// Ranks of one group in one process, a thread each, and beside each rank the same model whole: what
// a rank answers must be what the whole model answers to the same plans, bit for bit. Thread: the
// test's; the ranks' threads live for a step.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu/register.h"
#include "kernels/reference/register.h"
#include "protocol/tensor/host_group.h"
#include "tests/worker/rank_meeting.h"
#include "tests/worker/split_device.h"
#include "worker/gpu_backend.h"
#include "worker/step_executor.h"

namespace skein::tests {

// On which backend the tests of a program run: "sm90", on one GPU, where its main() says so.
inline std::string& BackendOfRanks() {
  static std::string backend = "cpu";
  return backend;
}

struct RankSetup {
  int ranks = 2;
  std::string model_dir = "deploy/models/tiny-v41";
  std::string backend = BackendOfRanks();
  int max_rows = 256;
  int num_slots = 4;
  int num_blocks = 48;
  int num_checkpoints = 2;
  int max_model_len = 384;
  int max_drafts = 5;   // 0: no draft head
  bool split = false;   // ranks have devices with memory of their own, which exchange like GPUs
  bool record = false;  // decode steps are recorded
  std::shared_ptr<kernels::Device> device;  // of a rank that has a special one
};

inline std::unique_ptr<worker::LoadedModel> LoadPart(const RankSetup& setup,
                                                     const worker::Shard& shard) {
  static const kernels::KernelRegistry* registry = [] {
    auto* made = new kernels::KernelRegistry();
    EXPECT_TRUE(kernels::RegisterReferenceKernels(*made).ok());
    EXPECT_TRUE(kernels::RegisterCpuKernels(*made, kernels::CpuIsa::kAuto).ok());
    EXPECT_TRUE(worker::RegisterGpuKernels(*made).ok());
    return made;
  }();
  worker::LoadOptions options;
  options.model_dir = setup.model_dir;
  options.numerics = worker::BackendNumerics(setup.backend);
  options.limits.max_rows = setup.max_rows;
  options.limits.max_samples = setup.num_slots * 6;
  options.limits.max_model_len = setup.max_model_len;
  options.limits.max_drafts = setup.max_drafts;
  options.block_tokens = 32;
  options.num_blocks = setup.num_blocks;
  options.num_slots = setup.num_slots;
  options.num_checkpoints = setup.num_checkpoints;
  options.max_draft_requests = setup.max_drafts > 0 ? setup.num_slots : 0;
  options.shard = shard;
  options.record_steps = setup.record;
  if (setup.split) options.device = std::make_shared<SplitDevice>(size_t{1} << 32);
  if (setup.device != nullptr) options.device = setup.device;
  if (worker::IsGpuBackend(setup.backend)) {
    auto device = worker::OpenGpu(setup.backend, 0);
    EXPECT_TRUE(device.ok()) << device.status();
    options.device = *std::move(device);
  }
  if (options.device != nullptr) {
    auto nccl = protocol::NcclLibrary::Open(SKEIN_FAKE_NCCL);
    EXPECT_TRUE(nccl.ok()) << nccl.status();
    options.nccl = *std::move(nccl);
  }
  auto loaded = worker::LoadedModel::Load(*registry,
                                          kernels::KernelManifest::Uniform(setup.backend), options);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return loaded.ok() ? *std::move(loaded) : nullptr;
}

class RankGroup {
 public:
  explicit RankGroup(const RankSetup& setup) : setup_(setup) {
    for (int rank = 0; rank < setup.ranks; ++rank) {
      parts_.push_back(LoadPart(setup, {rank, setup.ranks}));
      RankSetup whole = setup;
      whole.split = whole.record = false;
      wholes_.push_back(LoadPart(whole, {}));
    }
    Meet();
  }

  int size() const { return setup_.ranks; }
  worker::LoadedModel& part(int rank) { return *parts_[static_cast<size_t>(rank)]; }
  protocol::HostGroup& group(int rank) { return *groups_[static_cast<size_t>(rank)]; }

  // A new epoch: caches are empty. `placement`: of the experts of all ranks.
  void Meet(const protocol::ExpertPlacement& placement = {}) {
    std::vector<worker::LoadedModel*> parts;
    for (const auto& part : parts_) {
      if (part->ranks() != nullptr) {
        part->LeaveGroup();
        const absl::Status placed = part->PlaceExperts(placement, [] { return absl::OkStatus(); });
        EXPECT_TRUE(placed.ok()) << placed;
      }
      parts.push_back(part.get());
    }
    groups_.clear();
    groups_ = MeetRanks(parts);
    for (size_t rank = 0; rank < parts_.size(); ++rank) {
      parts_[rank]->input().Reset();
      wholes_[rank]->input().Reset();
    }
  }

  // What the ranks answer.
  std::vector<protocol::StepResult> RunParts(const std::vector<protocol::StepPlan>& plans) {
    std::vector<protocol::StepResult> results(plans.size());
    ForEachRank(parts_.size(),
                [&](size_t rank) { results[rank] = worker::RunPlan(*parts_[rank], plans[rank]); });
    return results;
  }

  // The same, compared with the whole model.
  std::vector<protocol::StepResult> Run(std::vector<protocol::StepPlan> plans) {
    ++step_;
    for (protocol::StepPlan& plan : plans) {
      plan.step = protocol::StepId(step_);
      plan.plan_hash = 1000 + step_;
    }
    std::vector<protocol::StepResult> results = RunParts(plans);
    for (size_t rank = 0; rank < plans.size(); ++rank) {
      const protocol::StepResult whole = worker::RunPlan(*wholes_[rank], plans[rank]);
      EXPECT_EQ(whole.status, protocol::StepStatus::kOk) << whole.message;
      EXPECT_EQ(results[rank].status, protocol::StepStatus::kOk) << results[rank].message;
      EXPECT_EQ(results[rank].sequences, whole.sequences) << "step " << step_ << " rank " << rank;
      const int rows = RowsOf(plans[rank]);
      EXPECT_EQ(Stream(*parts_[rank], rows), Stream(*wholes_[rank], rows))
          << "step " << step_ << " rank " << rank << ": the residual stream differs";
    }
    return results;
  }

 private:
  // Rows of a plan without drafts.
  static int RowsOf(const protocol::StepPlan& plan) {
    size_t rows = 0;
    for (const protocol::SequenceStep& step : plan.sequences) rows += step.tokens.size();
    return static_cast<int>(rows);
  }
  // The bytes of the first rows of the residual stream after the last layer.
  static std::string Stream(worker::LoadedModel& model, int rows) {
    const kernels::TensorView view = model.model().stream(rows);
    std::string bytes(static_cast<size_t>(view.size()) * DTypeBytes(view.dtype), ' ');
    EXPECT_TRUE(model.device().CopyOut(bytes.data(), view.data, bytes.size()).ok());
    EXPECT_TRUE(model.device().Wait().ok());
    return bytes;
  }

  const RankSetup setup_;
  std::vector<std::unique_ptr<worker::LoadedModel>> parts_, wholes_;
  std::vector<std::unique_ptr<protocol::HostGroup>> groups_;
  uint64_t step_ = 0;
};

}  // namespace skein::tests
