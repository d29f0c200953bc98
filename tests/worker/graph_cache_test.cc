// Recorded decode steps give what the same steps give call by call, bit for bit: tokens, logprobs,
// drafts and their numbers, whatever the batch, the depths and the padding.
#include "worker/graph_cache.h"

#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tests/worker/draft_stream.h"
#include "tests/worker/split_device.h"

namespace skein::tests {
namespace {

worker::LoadedModel& Model(bool record_steps) {
  static TinyModel* queued = new TinyModel(StreamSetup(false));
  static TinyModel* recorded = new TinyModel(StreamSetup(true));
  return (record_steps ? recorded : queued)->model();
}

// Streams of every kind beside each other: own depths, some cut, some without the head, of
// different lengths, so that the batch shrinks while it runs.
std::vector<Stream> MixedStreams(uint32_t seed, VerificationMode mode, float temperature) {
  std::vector<Stream> streams;
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    Drafting drafting{.mode = mode, .depth = (slot + seed) % 6};
    if (slot % 4 == 3) drafting.min_survival = 0.4F;
    drafting.period = 1 + slot % 3;
    streams.push_back(StartStream(seed * 50 + slot, slot, temperature, drafting));
    streams.back().wanted = 12 + 5 * slot;
  }
  return streams;
}

struct Mode {
  VerificationMode mode;
  float temperature;
};

class RecordedSteps : public ::testing::TestWithParam<Mode> {};

TEST_P(RecordedSteps, EqualQueuedOnes) {
  const auto [mode, temperature] = GetParam();
  uint64_t accepted = 0;
  for (uint32_t seed = 0; seed < 3; ++seed) {
    std::vector<Stream> queued = MixedStreams(seed, mode, temperature);
    std::vector<Stream> recorded = queued;
    RunStreams(Model(false), queued);
    RunStreams(Model(true), recorded);
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      EXPECT_EQ(recorded[slot].output, queued[slot].output) << "seed " << seed << " slot " << slot;
      EXPECT_EQ(recorded[slot].num_accepted, queued[slot].num_accepted) << slot;
      EXPECT_EQ(recorded[slot].num_steps, queued[slot].num_steps) << slot;
      accepted += recorded[slot].num_accepted;
    }
  }
  EXPECT_GT(accepted, 0u);
}

INSTANTIATE_TEST_SUITE_P(Modes, RecordedSteps,
                         ::testing::Values(Mode{VerificationMode::kGreedy, 0.0F},
                                           Mode{VerificationMode::kCoupled, 0.8F},
                                           Mode{VerificationMode::kRejection, 0.9F}),
                         [](const auto& test) {
                           return test.param.mode == VerificationMode::kGreedy    ? "greedy"
                                  : test.param.mode == VerificationMode::kCoupled ? "coupled"
                                                                                  : "rejection";
                         });

// Every number of a step's summary, not only what is accepted from it.
TEST(RecordedStep, SummariesAreEqual) {
  std::vector<Stream> streams = MixedStreams(9, VerificationMode::kRejection, 0.9F);
  Model(false).input().Reset();
  Model(true).input().Reset();
  for (int i = 0; i < 12; ++i) {
    protocol::StepPlan plan;
    for (Stream& stream : streams) plan.sequences.push_back(PlanStream(stream));
    const protocol::StepResult queued = worker::RunPlan(Model(false), plan);
    const protocol::StepResult recorded = worker::RunPlan(Model(true), plan);
    ASSERT_EQ(queued.status, protocol::StepStatus::kOk) << queued.message;
    ASSERT_EQ(recorded.status, protocol::StepStatus::kOk) << recorded.message;
    ASSERT_EQ(recorded.sequences, queued.sequences) << "step " << i;
    for (size_t s = 0; s < streams.size(); ++s) {
      CommitStream(streams[s], queued.sequences[s].rows);
    }
  }
}

// Whatever crosses between host and device does so by a copy that is queued.
TEST(DeviceMemory, StepsOnADeviceOfItsOwnMemoryAreEqual) {
  if (BackendOfTests().name != "cpu") GTEST_SKIP() << "the cpu backend's kernels alone run there";
  for (const bool record_steps : {false, true}) {
    TinySetup setup = StreamSetup(record_steps);
    setup.device = std::make_shared<SplitDevice>(size_t{1} << 30);
    TinyModel split(setup);
    ASSERT_TRUE(split.ok());
    for (const VerificationMode mode : {VerificationMode::kGreedy, VerificationMode::kRejection}) {
      const float temperature = mode == VerificationMode::kGreedy ? 0.0F : 0.9F;
      std::vector<Stream> there = MixedStreams(4, mode, temperature);
      std::vector<Stream> here = there;
      RunStreams(split.model(), there);
      RunStreams(Model(record_steps), here);
      for (uint32_t slot = 0; slot < kSlots; ++slot) {
        EXPECT_EQ(there[slot].output, here[slot].output) << slot << " recorded " << record_steps;
      }
    }
  }
}

TEST(DeviceMemory, WhatDoesNotFitIsRefused) {
  kernels::KernelRegistry registry;
  ASSERT_TRUE(kernels::RegisterCpuKernels(registry, kernels::CpuIsa::kAuto).ok());
  for (const size_t bytes : {size_t{1} << 20, size_t{24} << 20, size_t{34} << 20}) {
    worker::LoadOptions options = TinyOptions(StreamSetup(true));
    options.device = std::make_shared<SplitDevice>(bytes);
    const auto model =
        worker::LoadedModel::Load(registry, kernels::KernelManifest::Uniform("cpu"), options);
    ASSERT_EQ(model.status().code(), absl::StatusCode::kResourceExhausted) << bytes;
    EXPECT_EQ(model.status().message(), "the split device is full");
  }
}

// Rows of nobody are computed from what attention left there: a failed step must leave no NaN.
TEST(RecordedStep, AFailedStepLeavesNothingBehind) {
  if (BackendOfTests().name != "cpu") GTEST_SKIP() << "looks at the host's memory";
  worker::LoadedModel& model = Model(true);
  const kernels::TensorView attended = model.model().attention_scratch().attended;
  const auto bytes = static_cast<size_t>(attended.size()) * kernels::DTypeBytes(attended.dtype);
  std::fill_n(attended.as<uint8_t>(), bytes, uint8_t{0xFF});
  ASSERT_TRUE(model.model().Recover().ok());
  const auto* data = attended.as<uint8_t>();
  EXPECT_EQ(std::count(data, data + bytes, uint8_t{0}), static_cast<std::ptrdiff_t>(bytes));
}

TEST(RecordedStep, TheSmallestShapeThatHoldsThePlanIsTaken) {
  const worker::GraphCache& graphs = *Model(true).graphs();
  const auto plan_of = [](uint32_t sequences, uint32_t depth, bool feeds) {
    protocol::StepPlan plan;
    for (uint32_t i = 0; i < sequences; ++i) {
      protocol::SequenceStep& step = plan.sequences.emplace_back();
      step.tokens.push_back(5);
      step.sample = true;
      step.draft_depth = i == 0 ? depth : 0;
      step.feed_drafter = feeds;
    }
    return plan;
  };
  const auto fit = [&](const protocol::StepPlan& plan) {
    const std::optional<worker::DecodeShape> wanted = worker::DecodeShapeOf(plan);
    return wanted ? graphs.Fit(*wanted) : std::nullopt;
  };
  EXPECT_EQ(fit(plan_of(3, 0, false)), (worker::DecodeShape{4, 0, false}));
  EXPECT_EQ(fit(plan_of(1, 0, true)), (worker::DecodeShape{1, 0, true}));
  EXPECT_EQ(fit(plan_of(8, 5, true)), (worker::DecodeShape{8, 5, true}));
  EXPECT_EQ(fit(plan_of(5, 2, true)), (worker::DecodeShape{8, 2, true}));
  EXPECT_FALSE(fit(plan_of(9, 0, false)));
  EXPECT_FALSE(fit(plan_of(0, 0, false)));
  protocol::StepPlan prefill = plan_of(2, 0, false);
  prefill.sequences[1].tokens.push_back(6);
  EXPECT_FALSE(fit(prefill)) << "a chunk of a prompt";
}

// A thousand steps of random shapes: one launch each where the step was recorded, and no memory.
TEST(RecordedStep, AThousandStepsTakeNoMemory) {
  worker::LoadedModel& model = Model(true);
  kernels::Device& device = model.device();
  std::mt19937 source(3);
  const auto below = [&source](uint32_t most) { return static_cast<uint32_t>(source() % most); };
  const auto once = [&] {
    std::vector<Stream> streams;
    const uint32_t count = 1 + below(kSlots);
    for (uint32_t slot = 0; slot < count; ++slot) {
      const Drafting drafting{.mode = VerificationMode::kCoupled, .depth = below(6)};
      streams.push_back(StartStream(below(1000), slot, 0.7F, drafting));
      streams.back().wanted = 5 + below(30);
    }
    RunStreams(model, streams);
    uint64_t steps = 0;
    for (const Stream& stream : streams) steps = std::max(steps, stream.num_steps);
    return steps;
  };
  once();
  const uint64_t free_before = device.properties().free_bytes;
  uint64_t steps = 0;
  while (steps < (device.is_host() ? 60U : 1000U)) steps += once();
  if (!device.is_host()) {
    EXPECT_EQ(device.properties().free_bytes, free_before);
  }

  // The step after a prefill is one launch and nothing beside it.
  std::vector<Stream> streams = {StartStream(1, 0, 0.0F, {VerificationMode::kGreedy, 5})};
  model.input().Reset();
  for (int i = 0; i < 4; ++i) {
    protocol::StepPlan plan;
    plan.sequences.push_back(PlanStream(streams[0]));
    const uint64_t launches = device.num_launches();
    const protocol::StepResult result = worker::RunPlan(model, plan);
    if (i > 0) {
      EXPECT_TRUE(model.graphs()->Fit(*worker::DecodeShapeOf(plan))) << "step " << i;
      EXPECT_EQ(device.num_launches(), launches) << "step " << i;
    }
    ASSERT_EQ(result.status, protocol::StepStatus::kOk) << result.message;
    CommitStream(streams[0], result.sequences[0].rows);
  }
}

}  // namespace
}  // namespace skein::tests
