// What is checked before a worker registers: sizes against the model, memory, the manifest.
#include "worker/preflight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cpu/register.h"
#include "kernels/reference/register.h"
#include "tests/worker/split_device.h"

namespace skein::worker {
namespace {

using ::testing::HasSubstr;

class PreflightTest : public ::testing::Test {
 protected:
  PreflightTest() {
    config_.model.path = "deploy/models/tiny-v41";
    config_.worker.backend = "cpu";
    config_.model.max_model_len = 1000;
    config_.scheduler.max_num_seqs = 8;
    config_.scheduler.max_num_batched_tokens = 32;
    config_.worker.num_blocks = 40;
    EXPECT_TRUE(kernels::RegisterReferenceKernels(registry_).ok());
    EXPECT_TRUE(kernels::RegisterCpuKernels(registry_, kernels::CpuIsa::kAuto).ok());
  }

  protocol::Config config_;
  const ModelSpec spec_ = *ModelSpec::Load("deploy/models/tiny-v41");
  const kernels::DeviceProperties host_ = kernels::HostProperties();
  kernels::KernelRegistry registry_;
};

TEST_F(PreflightTest, SizesComeFromTheConfiguration) {
  const auto options = PlanLoad(config_, spec_, host_);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->model_dir, "deploy/models/tiny-v41");
  EXPECT_EQ(options->limits.max_rows, 32);
  EXPECT_EQ(options->limits.max_samples, 32) << "8 sequences of 6 rows, 32 rows at most";
  EXPECT_EQ(options->max_draft_requests, 6) << "blocks of 5 rows for each";
  EXPECT_EQ(options->limits.max_model_len, 1000);
  EXPECT_EQ(options->limits.max_top, 20);
  EXPECT_EQ(options->block_tokens, 64);
  EXPECT_EQ(options->num_blocks, 40);
  EXPECT_EQ(options->num_slots, 8);
  EXPECT_EQ(options->numerics.wide, kernels::DType::kF32);
  EXPECT_EQ(Geometry(*options),
            (protocol::CacheGeometry{64, 40, 8, 32, 1000, 5, true, 16, 708, true, true}));
  config_.scheduler.enable_prefix_caching = 0;
  EXPECT_EQ(Geometry(*PlanLoad(config_, spec_, host_)),
            (protocol::CacheGeometry{64, 40, 8, 32, 1000, 5, true, 0, 0, true, true}));
  config_.worker.backend = "reference";
  EXPECT_EQ(PlanLoad(config_, spec_, host_)->numerics.wide, kernels::DType::kF64);
}

TEST_F(PreflightTest, RandomWeightsAreAskedForByNameAndKeptApart) {
  EXPECT_EQ(PlanLoad(config_, spec_, host_)->make_tensor, nullptr);
  EXPECT_EQ(NumericsId(config_), "cpu");
  config_.model.load_format = "dummy";
  EXPECT_NE(PlanLoad(config_, spec_, host_)->make_tensor, nullptr);
  EXPECT_EQ(NumericsId(config_), "cpu+dummy");
}

TEST_F(PreflightTest, SpeculationIsAskedForByName) {
  config_.speculation.method = "none";
  const auto without = PlanLoad(config_, spec_, host_);
  ASSERT_TRUE(without.ok());
  EXPECT_EQ(without->max_draft_requests, 0);
  EXPECT_EQ(without->limits.max_samples, 8);
  EXPECT_EQ(Geometry(*without).max_draft_tokens, 0u);
  config_.speculation.method = "dspark";
  config_.speculation.num_speculative_tokens = 0;
  EXPECT_EQ(PlanLoad(config_, spec_, host_)->max_draft_requests, 0);
  ModelSpec no_head = spec_;
  no_head.dspark.stages = 0;
  EXPECT_EQ(
      PlanLoad(config_, no_head, host_).status().message(),
      "speculation.method is dspark, the checkpoint has no draft head (its config.json has no "
      "DSpark stages); set speculation.method to none");
  config_.speculation.method = "auto";
  EXPECT_TRUE(PlanLoad(config_, no_head, host_).ok());
}

TEST_F(PreflightTest, TheTapSideReachesTheLoad) {
  EXPECT_EQ(PlanLoad(config_, spec_, host_)->tap_side, TapSide::kEntering);
  config_.speculation.tap_side = "leaving";
  EXPECT_EQ(PlanLoad(config_, spec_, host_)->tap_side, TapSide::kLeaving);
}

TEST_F(PreflightTest, SaysWhyNothingIsDrafted) {
  const auto why = [&](const ModelSpec& spec) {
    return WhyNoDrafts(config_, spec, PlanLoad(config_, spec, host_).value());
  };
  EXPECT_EQ(why(spec_), "");
  ModelSpec no_head = spec_;
  no_head.dspark.stages = 0;
  EXPECT_EQ(why(no_head),
            "speculation.method is auto and the checkpoint has no draft head (its config.json has "
            "no DSpark stages); set it to none to say so");
  config_.scheduler.max_num_batched_tokens = 4;
  EXPECT_EQ(why(spec_),
            "scheduler.max_num_batched_tokens is 4, the draft head needs 5 rows for a sequence; "
            "raise it");
  config_.speculation.num_speculative_tokens = 0;
  EXPECT_EQ(why(spec_), "speculation.num_speculative_tokens is 0");
  config_.speculation.method = "none";
  EXPECT_EQ(why(spec_), "speculation.method is none");
}

TEST_F(PreflightTest, FewerRowsThanSequencesBoundTheSamples) {
  config_.scheduler.max_num_batched_tokens = 3;
  EXPECT_EQ(PlanLoad(config_, spec_, host_)->limits.max_samples, 3);
}

TEST_F(PreflightTest, BlocksForEverySequenceWhenNotGiven) {
  config_.worker.num_blocks = 0;
  const auto options = PlanLoad(config_, spec_, host_);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->num_blocks, 16 * 8) << "1000 tokens need 16 blocks of 64";
}

TEST_F(PreflightTest, RefusesWhatTheModelCannotDo) {
  config_.scheduler.block_size = 63;
  EXPECT_EQ(PlanLoad(config_, spec_, host_).status().message(),
            "scheduler.block_size is 63, must be a multiple of 2, the compression ratios of the "
            "model");
  config_.scheduler.block_size = 64;
  config_.model.max_model_len = 1048577;
  EXPECT_EQ(PlanLoad(config_, spec_, host_).status().message(),
            "model.max_model_len is 1048577, the model's config.json allows 1048576");
}

TEST_F(PreflightTest, RefusesBlocksThatHoldNoWholeSequence) {
  config_.worker.num_blocks = 15;
  const absl::Status status = PlanLoad(config_, spec_, host_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "worker.num_blocks is 15, one sequence of max_model_len 1000 tokens needs 16");
}

TEST_F(PreflightTest, RefusesCachesBeyondTheFreeMemory) {
  config_.scheduler.block_size = 1 << 16;
  config_.worker.num_blocks = 1 << 24;
  const absl::Status status = PlanLoad(config_, spec_, host_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("lower model.max_model_len, scheduler.max_num_seqs or worker.num_blocks"));
}

// A device with memory of its own holds the weights too.
TEST_F(PreflightTest, RefusesWeightsBeyondTheMemoryOfADevice) {
  kernels::DeviceProperties gpu{.name = "GPU", .features = "", .num_cores = 1};
  gpu.memory_bytes = uint64_t{8} << 30;
  gpu.free_bytes = uint64_t{1} << 20;
  const absl::Status status = PlanLoad(config_, spec_, gpu).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the GPU has 1 of 8192 MiB free"));
  gpu.free_bytes = gpu.memory_bytes;
  EXPECT_TRUE(PlanLoad(config_, spec_, gpu).ok());
}

// A rank has its part of the weights, so more ranks are a remedy.
TEST_F(PreflightTest, ARankNeedsRoomForItsPartOfTheWeightsAlone) {
  const uint64_t left_out = LeftOutBytes({1, 4}, spec_);
  EXPECT_GT(left_out, uint64_t{1} << 20);
  EXPECT_EQ(LeftOutBytes({}, spec_), 0u);
  kernels::DeviceProperties gpu{.name = "GPU", .features = "", .num_cores = 1};
  gpu.memory_bytes = uint64_t{8} << 30;
  config_.worker.num_blocks = 1;
  config_.scheduler.max_num_seqs = 1;
  config_.model.max_model_len = config_.scheduler.block_size;
  // The least free memory that will do, whole and as one rank of four.
  const auto least = [&](const Shard& shard) {
    uint64_t low = 0, high = gpu.memory_bytes;
    while (low + 1 < high) {
      gpu.free_bytes = (low + high) / 2;
      (PlanLoad(config_, spec_, gpu, shard).ok() ? high : low) = gpu.free_bytes;
    }
    return high;
  };
  const uint64_t whole = least({});
  const uint64_t group = GroupBytes(spec_, BackendNumerics("cpu"), {1, 4}, 32);
  EXPECT_EQ(least({1, 4}), whole - left_out + group);
  gpu.free_bytes = whole - left_out;
  EXPECT_THAT(std::string(PlanLoad(config_, spec_, gpu).status().message()),
              HasSubstr("give more ranks (scheduler.expert_parallel_size)"));
}

// The buffers of a group are counted as they are made, and NCCL's with an allowance.
TEST_F(PreflightTest, ARankOfAGroupNeedsRoomForTheRowsOfAllRanks) {
  const Numerics numerics = BackendNumerics("cpu");
  EXPECT_EQ(GroupBytes(spec_, numerics, {}, 32), 0u);
  for (const int rows : {32, 96}) {
    const auto device = std::make_shared<tests::SplitDevice>(size_t{1} << 30);
    RankExchange exchange({1, 4}, 0, *device, nullptr);
    Arena alone(device), grouped(device);
    const MoeScratch without(spec_, numerics, rows, alone, nullptr);
    const MoeScratch with(spec_, numerics, rows, grouped, &exchange);
    const uint64_t nccl = uint64_t{4} * 256 << 20;
    const uint64_t made = grouped.total_bytes() - alone.total_bytes();
    EXPECT_GT(made, uint64_t{2} * 4 * static_cast<uint64_t>(rows) * 2 *
                        static_cast<uint64_t>(spec_.hidden) * 2)
        << "products of two experts a row, for all ranks and from them";
    // What each layer keeps of its choices is its own.
    const uint64_t choices = static_cast<uint64_t>(spec_.num_layers + spec_.dspark.stages) *
                             static_cast<uint64_t>(with.index.size()) * 4;
    // Arrays begin at multiples of 256 bytes.
    EXPECT_NEAR(static_cast<double>(GroupBytes(spec_, numerics, {1, 4}, rows) - nccl - choices),
                static_cast<double>(made), 7 * 256);
  }
  kernels::DeviceProperties gpu{.name = "GPU", .features = "", .num_cores = 1};
  gpu.memory_bytes = gpu.free_bytes = uint64_t{1} << 30;
  EXPECT_TRUE(PlanLoad(config_, spec_, gpu).ok());
  const absl::Status status = PlanLoad(config_, spec_, gpu, {1, 4}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(status.message()),
      ::testing::MatchesRegex(
          "scheduler.expert_parallel_size is 4: exchanging the rows of all ranks needs 10.. "
          "MiB beside the weights, .* MiB are left of the GPU; lower "
          "scheduler.max_num_batched_tokens, which is 32, or raise .*"));
}

// The rest of a device is for others, whether they use it now or not.
TEST_F(PreflightTest, AShareOfADeviceIsNotExceeded) {
  kernels::DeviceProperties gpu{.name = "GPU", .features = "", .num_cores = 1};
  gpu.memory_bytes = gpu.free_bytes = uint64_t{256} << 20;
  config_.worker.num_blocks = 0;
  config_.scheduler.max_num_seqs = 16;
  config_.model.max_model_len = 200000;
  const auto whole = PlanLoad(config_, spec_, gpu);
  ASSERT_TRUE(whole.ok()) << whole.status();
  config_.worker.gpu_memory_utilization = 0.5;
  const auto half = PlanLoad(config_, spec_, gpu);
  ASSERT_TRUE(half.ok()) << half.status();
  EXPECT_LT(half->num_blocks, whole->num_blocks / 2) << "weights take their part of both";
  EXPECT_GT(half->num_blocks, whole->num_blocks / 3);
  // What others hold counts only where it leaves less than the share.
  gpu.free_bytes = uint64_t{192} << 20;
  EXPECT_EQ(PlanLoad(config_, spec_, gpu)->num_blocks, half->num_blocks);
  gpu.memory_bytes = gpu.free_bytes = uint64_t{64} << 20;
  config_.worker.gpu_memory_utilization = 0.01;
  const absl::Status status = PlanLoad(config_, spec_, gpu).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("worker.gpu_memory_utilization is 0.01, 0 MiB of the GPU"));
}

TEST_F(PreflightTest, TheManifestIsTheBackendWithOverrides) {
  config_.worker.kernels = "linear=reference,top_k=reference";
  const auto manifest = PlanManifest(config_, registry_);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->backend(kernels::OpId::kLinear), "reference");
  EXPECT_EQ(manifest->backend(kernels::OpId::kTopK), "reference");
  EXPECT_EQ(manifest->backend(kernels::OpId::kRmsNorm), "cpu");
}

TEST_F(PreflightTest, RefusesUnknownBackendsAndOperators) {
  auto error = [&](std::string backend, std::string kernels) {
    config_.worker.backend = std::move(backend);
    config_.worker.kernels = std::move(kernels);
    return std::string(PlanManifest(config_, registry_).status().message());
  };
  EXPECT_EQ(error("gpu", ""),
            "worker.backend: no backend \"gpu\" for this device; it has cpu, reference, "
            "reference-float");
  EXPECT_THAT(error("cpu", "linear=gpu"),
              HasSubstr("worker.kernels: linear: no backend \"gpu\" for this device"));
  EXPECT_EQ(error("cpu", "linear"), "worker.kernels: \"linear\" must be operator=backend");
  EXPECT_EQ(error("cpu", "a=b=c"), "worker.kernels: \"a=b=c\" must be operator=backend");
  const std::string unknown = error("cpu", "linaer=reference,wibble=cpu");
  EXPECT_THAT(unknown, HasSubstr("worker.kernels: "));
  EXPECT_THAT(unknown, HasSubstr("linaer"));
  EXPECT_THAT(unknown, HasSubstr("wibble"));
}

TEST(Preflight, ThisProcessMayUseAProcessor) {
  EXPECT_GE(UsableProcessors(), 1);
  EXPECT_LE(UsableProcessors(), 1 << 12);
}

}  // namespace
}  // namespace skein::worker
