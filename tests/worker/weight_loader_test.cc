// Weights become named views with their formats; every tensor is wanted and every wanted one is
// there; the Engram map is checked entry by entry.
#include "worker/model/weight_loader.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/scratch_dir.h"

namespace skein::tests {
namespace {

using kernels::DType;
using kernels::WeightFormat;
using ::testing::HasSubstr;
using worker::ModelSpec;
using worker::ModelWeights;

constexpr const char* kTiny = "deploy/models/tiny-v41";
constexpr const char* kEngram = "tests/data/conformance-v41/engram4";
constexpr const char* kMap = "engram_token_map.bin";

std::string LoadError(const std::filesystem::path& dir) {
  const auto spec = ModelSpec::Load(dir);
  EXPECT_TRUE(spec.ok()) << spec.status();
  worker::Arena arena;
  return std::string(ModelWeights::Load(dir, *spec, arena).status().message());
}

TEST(WeightLoader, TheDemoModelHasEveryTensor) {
  const auto spec = ModelSpec::Load(kTiny);
  ASSERT_TRUE(spec.ok()) << spec.status();
  worker::Arena arena;
  const auto loaded = ModelWeights::Load(kTiny, *spec, arena);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const ModelWeights& weights = **loaded;
  EXPECT_EQ(weights.embed.dim(0), 4096);
  EXPECT_EQ(weights.embed.dtype, DType::kBf16);
  ASSERT_EQ(weights.layers.size(), 10U);
  EXPECT_EQ(weights.skipped_tensors, 0);
  EXPECT_GT(weights.bytes, uint64_t{12} << 20);
  const worker::AttentionWeights& window = weights.layers[0].attn;
  EXPECT_EQ(window.wq_a.format, WeightFormat::kE4m3Block);
  EXPECT_EQ(window.wq_a.n, 128);
  EXPECT_EQ(window.wq_a.k, 192);
  EXPECT_EQ(window.wq_a.weight.scale.dim(1), 6);
  EXPECT_TRUE(window.compressor_norm.absent()) << "a window layer compresses nothing";
  const worker::AttentionWeights& full = weights.layers[2].attn;
  EXPECT_FALSE(full.compressor_wgate.weight.codes.absent());
  EXPECT_EQ(full.index_wk.n, 32);
  const worker::AttentionWeights& single = weights.layers[5].attn;
  EXPECT_FALSE(single.compressor_wkv.weight.codes.absent());
  EXPECT_TRUE(single.compressor_wgate.weight.codes.absent()) << "ratio 1 has no gate";
  const worker::AttentionWeights& reindex = weights.layers[7].attn;
  EXPECT_TRUE(reindex.index_wk.weight.codes.absent());
  EXPECT_EQ(reindex.index_wq_b.n, 4 * 32);
  EXPECT_TRUE(weights.layers[3].attn.index_wq_b.weight.codes.absent()) << "reuse selects nothing";
  const worker::MoeWeights& moe = weights.layers[0].moe;
  EXPECT_EQ(moe.expert_format, WeightFormat::kE2m1Row32);
  ASSERT_EQ(moe.w1.size(), 16U);
  EXPECT_EQ(moe.w1[15].codes.dtype, DType::kE2m1x2);
  EXPECT_EQ(moe.w1[15].codes.dim(1), 96);
}

TEST(WeightLoader, TheDemoModelHasEngramAndDraft) {
  const auto spec = ModelSpec::Load(kTiny);
  ASSERT_TRUE(spec.ok()) << spec.status();
  worker::Arena arena;
  const auto loaded = ModelWeights::Load(kTiny, *spec, arena);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const ModelWeights& weights = **loaded;
  ASSERT_EQ(weights.engram.size(), 2U);
  EXPECT_EQ(weights.engram[1].codes.dim(0), 9912);
  EXPECT_EQ(weights.engram[0].wkv.n, 5 * 192);
  EXPECT_EQ(weights.engram[0].wkv.k, 12 * 32);
  ASSERT_EQ(weights.engram_token_map.size(), 4096U);
  EXPECT_EQ(*std::max_element(weights.engram_token_map.begin(), weights.engram_token_map.end()),
            3375);
  const worker::DraftWeights& draft = weights.draft;
  ASSERT_EQ(draft.stages.size(), 3U);
  EXPECT_EQ(draft.stages[0].moe.w1.size(), 8U);
  EXPECT_EQ(draft.main_proj.k, 3 * 192);
  EXPECT_EQ(draft.confidence_hidden.k, 192);
  EXPECT_EQ(draft.confidence_markov.k, 32);
  EXPECT_EQ(draft.confidence_markov.weight.codes.as<std::byte>() -
                draft.confidence_hidden.weight.codes.as<std::byte>(),
            192 * 2);
}

TEST(WeightLoader, ListsEveryDefectUpToTen) {
  const ScratchDir dir("tests/data/conformance-v41/window");
  WriteFile(dir / "config.json", Replaced(ReadFile(dir / "config.json"), "\"num_hidden_layers\": 3",
                                          "\"num_hidden_layers\": 2"));
  const std::string error = LoadError(dir.path());
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 9);
  EXPECT_THAT(error, HasSubstr("tensor \"layers.2.attn.attn_sink\" is not part of the model that "
                               "config.json describes"));
}

TEST(WeightLoader, TheEngramMapIsChecked) {
  {
    const ScratchDir dir(kEngram);
    const std::string map = ReadFile(dir / kMap);
    WriteFile(dir / kMap, map.substr(0, map.size() - 4));
    const std::string error = LoadError(dir.path());
    EXPECT_THAT(error, HasSubstr((dir / kMap).string()));
    EXPECT_THAT(error, HasSubstr("has 1020 bytes, an int32 per entry of the vocabulary of 256 "
                                 "needs 1024"));
  }
  for (const int32_t value : {-1, 256}) {
    const ScratchDir dir(kEngram);
    std::string map = ReadFile(dir / kMap);
    std::memcpy(map.data() + 7 * sizeof(value), &value, sizeof(value));
    WriteFile(dir / kMap, map);
    EXPECT_THAT(LoadError(dir.path()), HasSubstr("engram_token_map.bin: entry 7 is " +
                                                 std::to_string(value) + ", must be 0 to 255"));
  }
  const ScratchDir dir(kEngram);
  std::filesystem::remove(dir / kMap);
  EXPECT_THAT(LoadError(dir.path()), HasSubstr("engram_token_map.bin: No such file"));
}

TEST(WeightLoader, VisionTensorsAreCountedAndLeftOut) {
  const ScratchDir dir("tests/data/conformance-v41/window");
  const std::string shard = "model-00001-of-00001.safetensors";
  SafetensorsParts parts = SafetensorsParts::Read(dir / shard);
  const std::string at = std::to_string(parts.data.size());
  parts.data += "abcd";
  parts.header = Replaced(parts.header, "{\"__metadata__\"",
                          "{\"vision.patch.weight\":{\"dtype\":\"F32\",\"shape\":[1],"
                          "\"data_offsets\":[" +
                              at + "," + std::to_string(parts.data.size()) + "]},\"__metadata__\"");
  WriteFile(dir / shard, parts.Bytes());
  const std::string index = "model.safetensors.index.json";
  WriteFile(dir / index, Replaced(ReadFile(dir / index), "\"weight_map\":{",
                                  "\"weight_map\":{\"vision.patch.weight\":\"" + shard + "\","));
  const auto spec = ModelSpec::Load(dir.path());
  ASSERT_TRUE(spec.ok());
  worker::Arena arena;
  const auto weights = ModelWeights::Load(dir.path(), *spec, arena);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ((*weights)->skipped_tensors, 1);
}

}  // namespace
}  // namespace skein::tests
