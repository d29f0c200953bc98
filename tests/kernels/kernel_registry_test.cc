// Registration refuses duplicates and gaps; a manifest is resolved with every defect in one list.
#include "kernels/kernel_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/ops/gemm.h"
#include "kernels/ops/moe.h"
#include "kernels/ops/norm_rope.h"

namespace skein::kernels {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Status SupportsSmallK(const Linear::Problem& problem) {
  if (problem.k <= 64) return absl::OkStatus();
  return absl::UnimplementedError("k is " + std::to_string(problem.k) + "; supported up to 64");
}

template <typename Op>
KernelVariant<Op> Variant(std::string_view backend) {
  KernelVariant<Op> variant;
  variant.backend = backend;
  variant.supports = [](const typename Op::Problem&) { return absl::OkStatus(); };
  variant.workspace_bytes = [](const typename Op::Problem&) { return size_t{7}; };
  variant.run = [](const typename Op::Problem&, const typename Op::Args&, Workspace, DeviceStream) {
    return absl::OkStatus();
  };
  return variant;
}

TEST(KernelRegistry, FindsWhatWasRegistered) {
  KernelRegistry registry;
  ASSERT_TRUE(registry.Register(Variant<Linear>("one")).ok());
  ASSERT_TRUE(registry.Register(Variant<Linear>("two")).ok());
  ASSERT_TRUE(registry.Register(Variant<RmsNorm>("two")).ok());
  ASSERT_NE(registry.Find<Linear>("one"), nullptr);
  EXPECT_EQ(registry.Find<Linear>("one")->workspace_bytes({}), 7u);
  EXPECT_EQ(registry.Find<RmsNorm>("one"), nullptr);
  EXPECT_THAT(registry.Backends(), ElementsAre("one", "two"));
  EXPECT_THAT(registry.Operators("two"), ElementsAre(OpId::kLinear, OpId::kRmsNorm));
}

TEST(KernelRegistry, RefusesADuplicate) {
  KernelRegistry registry;
  ASSERT_TRUE(registry.Register(Variant<Linear>("cpu")).ok());
  const absl::Status status = registry.Register(Variant<Linear>("cpu"));
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("operator linear is registered twice for backend cpu"));
}

TEST(KernelRegistry, RefusesAVariantWithoutAFunction) {
  KernelRegistry registry;
  KernelVariant<Linear> variant = Variant<Linear>("cpu");
  variant.workspace_bytes = nullptr;
  const absl::Status status = registry.Register(variant);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("operator linear of backend cpu lacks one of supports, workspace_bytes, run"));
  EXPECT_EQ(registry.Find<Linear>("cpu"), nullptr);
}

TEST(KernelRegistry, ListsEveryDefectOfAManifestAtOnce) {
  KernelRegistry registry;
  KernelVariant<Linear> linear = Variant<Linear>("cpu");
  linear.supports = &SupportsSmallK;
  ASSERT_TRUE(registry.Register(linear).ok());
  ASSERT_TRUE(registry.Register(Variant<RmsNorm>("reference")).ok());
  KernelManifest manifest = KernelManifest::Uniform("cpu");
  manifest.Erase(OpId::kMoeGate);

  std::vector<std::string> defects;
  Need<Linear> linears;
  linears.problems.resize(3);
  linears.problems[0].k = 64;
  linears.problems[1].k = 65;
  linears.problems[2].k = 128;
  EXPECT_EQ(registry.Resolve(manifest, linears, defects), nullptr);
  EXPECT_EQ(registry.Resolve(manifest, Need<RmsNorm>(), defects), nullptr);
  EXPECT_EQ(registry.Resolve(manifest, Need<MoeGate>(), defects), nullptr);
  EXPECT_THAT(
      defects,
      ElementsAre("operator linear of backend cpu cannot serve this model: k is 65; supported up "
                  "to 64",
                  "operator linear of backend cpu cannot serve this model: k is 128; supported up "
                  "to 64",
                  "operator rms_norm is not implemented by backend cpu; backends that have it: "
                  "reference",
                  "operator moe_gate has no backend in the manifest; name one of: none"));

  defects.clear();
  linears.problems.resize(1);
  EXPECT_NE(registry.Resolve(manifest, linears, defects), nullptr);
  EXPECT_TRUE(defects.empty());
}

TEST(KernelManifest, ParsesOverridesAndListsUnknownOperators) {
  const absl::StatusOr<KernelManifest> good =
      ParseManifest("cpu", {{"top_k", "reference"}, {"linear", "sm90"}});
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(good->backend(OpId::kTopK), "reference");
  EXPECT_EQ(good->backend(OpId::kLinear), "sm90");
  EXPECT_EQ(good->backend(OpId::kRope), "cpu");

  const absl::StatusOr<KernelManifest> bad =
      ParseManifest("", {{"flash", "cpu"}, {"top_k", "cpu"}, {"Linear", "cpu"}});
  ASSERT_FALSE(bad.ok());
  EXPECT_THAT(std::string(bad.status().message()),
              HasSubstr("unknown operators in the kernel manifest: flash, Linear; operators are: "
                        "per_token_cast, "));
  EXPECT_EQ(ParseManifest("", {})->backend(OpId::kRope), "");
}

TEST(OpNames, AreDistinctAndParseBack) {
  for (int index = 0; index < kNumOps; ++index) {
    OpId op = OpId::kCount;
    ASSERT_TRUE(ParseOpName(OpName(static_cast<OpId>(index)), op));
    EXPECT_EQ(static_cast<int>(op), index);
  }
  OpId op = OpId::kRope;
  EXPECT_FALSE(ParseOpName("", op));
  EXPECT_EQ(OpName(OpId::kCount), "unknown_operator");
  EXPECT_EQ(OpName(OpId::kSampleTokens), "sample_tokens");
}

TEST(Device, DescribesTheHost) {
  const DeviceProperties host = HostProperties();
  EXPECT_FALSE(host.name.empty());
  EXPECT_GE(host.num_cores, 1);
}

}  // namespace
}  // namespace skein::kernels
