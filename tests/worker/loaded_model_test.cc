// A model is assembled whole or not at all; what is wrong is named.
#include "worker/loaded_model.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/scratch_dir.h"
#include "tests/worker/tiny_model.h"
#include "worker/model/dummy_weights.h"

namespace skein::tests {
namespace {

using kernels::KernelManifest;
using ::testing::HasSubstr;

class LoadedModelTest : public ::testing::Test {
 protected:
  LoadedModelTest() {
    EXPECT_TRUE(kernels::RegisterCpuKernels(registry_, kernels::CpuIsa::kAuto).ok());
  }
  std::string Error(const worker::LoadOptions& options,
                    const KernelManifest& manifest = KernelManifest::Uniform("cpu")) {
    const auto loaded = worker::LoadedModel::Load(registry_, manifest, options);
    EXPECT_FALSE(loaded.ok());
    return std::string(loaded.status().message());
  }
  kernels::KernelRegistry registry_;
};

TEST_F(LoadedModelTest, TheDemoModelLoads) {
  TinyModel tiny({});
  ASSERT_TRUE(tiny.ok());
  EXPECT_EQ(tiny.model().spec().vocab, 4096);
  EXPECT_GT(tiny.model().weights().bytes, 0U);
  EXPECT_GT(tiny.model().arena_bytes(), 0U);
  EXPECT_EQ(tiny.model().draft(), nullptr) << "no draft head was asked for";
}

// A directory with the configuration alone is enough to measure a model.
TEST_F(LoadedModelTest, RandomWeightsNeedNoTensors) {
  const ScratchDir dir;
  for (const char* name : {"config.json", "engram_token_map.bin"}) {
    std::filesystem::copy(std::filesystem::path("deploy/models/tiny-v41") / name, dir / name);
  }
  worker::LoadOptions options = TinyOptions({});
  options.model_dir = dir.path();
  EXPECT_THAT(Error(options), HasSubstr("safetensors"));
  const auto spec = worker::ModelSpec::Load(dir.path());
  ASSERT_TRUE(spec.ok()) << spec.status();
  std::vector<std::string> heads;
  for (int i = 0; i < 2; ++i) {
    options.make_tensor = worker::dummy::MakerOf(*spec);
    const auto loaded =
        worker::LoadedModel::Load(registry_, KernelManifest::Uniform("cpu"), options);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ((*loaded)->weights().bytes, worker::dummy::TotalBytes(*spec));
    const kernels::TensorView& head = (*loaded)->weights().head.weight.codes;
    heads.emplace_back(head.as<const char>(), static_cast<size_t>(head.size()) * 2);
  }
  EXPECT_EQ(heads[0], heads[1]) << "the same tensors in every start";
  EXPECT_NE(heads[0], std::string(heads[0].size(), '\0'));
}

TEST_F(LoadedModelTest, NamesTheDirectory) {
  worker::LoadOptions options = TinyOptions({});
  options.model_dir = "deploy/models/none";
  EXPECT_THAT(Error(options), HasSubstr("deploy/models/none/config.json: cannot be read"));
}

TEST_F(LoadedModelTest, NamesWhatDoesNotFitTheModel) {
  worker::LoadOptions options = TinyOptions({});
  options.block_tokens = 31;
  EXPECT_EQ(Error(options),
            "block_size is 31, must be a multiple of the model's compression ratios, that is of 2");
  options = TinyOptions({});
  options.limits.max_model_len = 1048577;
  EXPECT_EQ(Error(options), "max_model_len is 1048577, config.json allows at most 1048576");
}

TEST_F(LoadedModelTest, AnIncompleteManifestListsEveryOperator) {
  KernelManifest manifest = KernelManifest::Uniform("cpu");
  manifest.Erase(kernels::OpId::kMoeGate);
  manifest.Set(kernels::OpId::kSparseAttention, "reference");
  manifest.Set(kernels::OpId::kRmsNorm, "sm90");
  const std::string error = Error(TinyOptions({}), manifest);
  EXPECT_THAT(error, HasSubstr("these operators cannot be served"));
  EXPECT_THAT(error, HasSubstr("moe_gate"));
  EXPECT_THAT(error, HasSubstr("sparse_attention"));
  EXPECT_THAT(error, HasSubstr("rms_norm"));
}

TEST(BackendNumerics, TheReferenceComputesInDouble) {
  EXPECT_EQ(worker::BackendNumerics("reference").wide, kernels::DType::kF64);
  EXPECT_EQ(worker::BackendNumerics("cpu").wide, kernels::DType::kF32);
}

}  // namespace
}  // namespace skein::tests
