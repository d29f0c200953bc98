// Operators are resolved once; everything that cannot be served is listed in one error.
#include "worker/model/kernel_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/ops/gemm.h"
#include "kernels/ops/moe.h"
#include "kernels/ops/norm_rope.h"
#include "kernels/ops/sampling.h"

namespace skein::worker {
namespace {

using kernels::KernelManifest;
using kernels::KernelRegistry;
using kernels::KernelVariant;
using kernels::Linear;
using kernels::OpId;
using kernels::RmsNorm;
using ::testing::HasSubstr;

constexpr size_t kNormBytes = 100;
constexpr size_t kLinearBytes = 700;

// What a run was given.
struct Seen {
  kernels::Workspace workspace;
  void* stream = nullptr;
};
Seen& LastRun() {
  static Seen seen;
  return seen;
}

template <typename Op>
KernelVariant<Op> Variant(std::string_view backend) {
  KernelVariant<Op> variant;
  variant.backend = backend;
  variant.supports = [](const typename Op::Problem&) { return absl::OkStatus(); };
  variant.workspace_bytes = [](const typename Op::Problem&) { return kNormBytes; };
  variant.run = [](const typename Op::Problem&, const typename Op::Args&,
                   kernels::Workspace workspace, kernels::DeviceStream stream) {
    LastRun() = {workspace, stream.handle};
    return absl::InternalError("ran");
  };
  return variant;
}

KernelRegistry TestRegistry() {
  KernelRegistry registry;
  KernelVariant<Linear> linear = Variant<Linear>("cpu");
  linear.supports = [](const Linear::Problem& problem) {
    return problem.k <= 64 ? absl::OkStatus()
                           : absl::UnimplementedError("k is " + std::to_string(problem.k));
  };
  linear.workspace_bytes = [](const Linear::Problem&) { return kLinearBytes; };
  EXPECT_TRUE(registry.Register(linear).ok());
  EXPECT_TRUE(registry.Register(Variant<RmsNorm>("cpu")).ok());
  return registry;
}

TEST(KernelSet, RunsWithOneSharedWorkspaceOfTheLargestNeed) {
  const KernelRegistry registry = TestRegistry();
  const KernelManifest manifest = KernelManifest::Uniform("cpu");
  int stream = 0;
  Arena arena;
  KernelSet set(registry, manifest, {&stream});
  Linear::Problem problem;
  problem.k = 32;
  const Kernel<RmsNorm> norm = set.Add<RmsNorm>({});
  const Kernel<Linear> linear = set.Add<Linear>(problem);
  EXPECT_EQ(linear.problem().k, 32);
  ASSERT_TRUE(set.Finish(arena).ok());
  EXPECT_EQ(set.workspace_bytes(), kLinearBytes);
  EXPECT_EQ(norm({}).message(), "ran");
  EXPECT_EQ(LastRun().workspace.bytes, kLinearBytes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(LastRun().workspace.data) % 64, 0U);
  EXPECT_EQ(LastRun().stream, &stream);
  void* const first = LastRun().workspace.data;
  EXPECT_FALSE(linear({}).ok());
  EXPECT_EQ(LastRun().workspace.data, first);
}

TEST(KernelSet, ListsEveryDefectOnceAndInOrder) {
  const KernelRegistry registry = TestRegistry();
  KernelManifest manifest = KernelManifest::Uniform("cpu");
  manifest.Erase(OpId::kMoeGate);
  manifest.Set(OpId::kSampleTokens, "gpu");
  Arena arena;
  KernelSet set(registry, manifest, {});
  Linear::Problem problem;
  problem.k = 128;
  set.Add<Linear>(problem);
  set.Add<Linear>(problem);
  problem.k = 256;
  set.Add<Linear>(problem);
  set.Add<kernels::MoeGate>({});
  set.Add<kernels::SampleTokens>({});
  set.Add<kernels::Rope>({});
  set.Add<RmsNorm>({});
  const absl::Status status = set.Finish(arena);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  const std::string text(status.message());
  EXPECT_THAT(text, HasSubstr("these operators cannot be served; choose another backend"));
  EXPECT_THAT(text, HasSubstr("operator linear of backend cpu cannot serve this model: k is 128"));
  EXPECT_THAT(text, HasSubstr("k is 256"));
  EXPECT_THAT(text, HasSubstr("operator moe_gate"));
  EXPECT_THAT(text, HasSubstr("operator sample_tokens"));
  EXPECT_THAT(text, HasSubstr("gpu"));
  EXPECT_THAT(text, HasSubstr("operator rope"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 5) << text;
}

TEST(KernelSet, AnEmptySetIsFine) {
  const KernelRegistry registry;
  const KernelManifest manifest;
  Arena arena;
  KernelSet set(registry, manifest, {});
  EXPECT_TRUE(set.Finish(arena).ok());
  EXPECT_EQ(set.workspace_bytes(), 0U);
}

}  // namespace
}  // namespace skein::worker
