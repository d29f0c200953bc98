// Truncated and lying checkpoints: each is a damaged copy of a good one, each error names the file
// and, where there is one, the tensor and the rule.
#include "worker/model/checkpoint.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/scratch_dir.h"
#include "worker/model/model_spec.h"
#include "worker/model/weight_loader.h"

namespace skein::tests {
namespace {

using ::testing::HasSubstr;
using worker::Checkpoint;

constexpr const char* kGood = "tests/data/conformance-v41/window";
constexpr const char* kShard = "model-00001-of-00001.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// What is done to a copy, and what the error must say.
struct Damage {
  const char* name;
  std::function<void(const ScratchDir&)> apply;
  std::vector<std::string> texts;
};

void PrintTo(const Damage& damage, std::ostream* out) { *out << damage.name; }

// Replaces text of the shard's header.
std::function<void(const ScratchDir&)> Header(std::string from, std::string to) {
  return [=](const ScratchDir& dir) {
    SafetensorsParts parts = SafetensorsParts::Read(dir / kShard);
    parts.header = Replaced(parts.header, from, to);
    WriteFile(dir / kShard, parts.Bytes());
  };
}

std::function<void(const ScratchDir&)> Index(std::string from, std::string to) {
  return [=](const ScratchDir& dir) {
    WriteFile(dir / kIndex, Replaced(ReadFile(dir / kIndex), from, to));
  };
}

// Replaces the bytes of the shard.
std::function<void(const ScratchDir&)> Bytes(std::function<std::string(std::string)> change) {
  return [=](const ScratchDir& dir) { WriteFile(dir / kShard, change(ReadFile(dir / kShard))); };
}

class DamagedCheckpoint : public ::testing::TestWithParam<Damage> {};

TEST_P(DamagedCheckpoint, IsRefusedByName) {
  const Damage& damage = GetParam();
  const ScratchDir dir(kGood);
  ASSERT_TRUE(Checkpoint::Open(dir.path()).ok());
  damage.apply(dir);
  // As a worker does it: what the container allows is refused where the tensors are taken.
  const auto spec = worker::ModelSpec::Load(dir.path());
  ASSERT_TRUE(spec.ok()) << spec.status();
  worker::Arena arena;
  const auto weights = worker::ModelWeights::Load(dir.path(), *spec, arena);
  ASSERT_FALSE(weights.ok()) << damage.name;
  const std::string message(weights.status().message());
  EXPECT_THAT(message, HasSubstr(dir.path().string())) << "the file is not named";
  for (const std::string& text : damage.texts) EXPECT_THAT(message, HasSubstr(text));
}

auto Name = [](const auto& test) { return std::string(test.param.name); };

INSTANTIATE_TEST_SUITE_P(
    File, DamagedCheckpoint,
    ::testing::Values(
        Damage{"empty",
               Bytes([](std::string) { return std::string(); }),
               {kShard, "the file is empty"}},
        Damage{"seven_bytes",
               Bytes([](std::string b) { return b.substr(0, 7); }),
               {kShard, "7 bytes are too few for a safetensors header"}},
        Damage{"header_cut",
               Bytes([](std::string b) { return b.substr(0, 1000); }),
               {kShard, "header of 22776 bytes exceeds the file of 1000 bytes"}},
        Damage{"data_cut",
               Bytes([](std::string b) { return b.substr(0, b.size() - 1); }),
               {kShard, "tensor \"layers.2.ffn.gate.bias_vl\"",
                "data_offsets [395128, 395160] leave the file's 395159 data bytes"}},
        Damage{"padded",
               Bytes([](std::string b) { return b + "x"; }),
               {kShard, "tensors end at byte 395160 of 395161: truncated or padded file"}},
        Damage{"header_too_long",
               Bytes([](std::string b) {
                 for (size_t i = 0; i < 8; ++i) b[i] = '\x7f';
                 return b;
               }),
               {kShard, "header of 9187201950435737471 bytes exceeds the file"}},
        Damage{"header_of_nothing",
               Bytes([](std::string b) {
                 for (size_t i = 0; i < 8; ++i) b[i] = '\0';
                 return b;
               }),
               {kShard, "header does not start with '{'"}},
        Damage{"no_object",
               Header("{\"__metadata__\"", "[\"__metadata__\""),
               {kShard, "header does not start with '{'"}},
        Damage{"no_json", Header("\"shape\":[256,64]", "\"shape\":[256,64"), {kShard, "header:"}},
        Damage{"missing_shard",
               [](const ScratchDir& dir) { std::filesystem::remove(dir / kShard); },
               {kShard, "No such file or directory"}},
        Damage{"directory",
               [](const ScratchDir& dir) {
                 std::filesystem::remove(dir / kShard);
                 std::filesystem::create_directory(dir / kShard);
               },
               {kShard, "not a regular file"}}),
    Name);

INSTANTIATE_TEST_SUITE_P(
    Tensor, DamagedCheckpoint,
    ::testing::Values(
        Damage{"duplicate_key",
               Header("\"head.weight\"", "\"embed.weight\""),
               {kShard, "header:", "embed.weight"}},
        Damage{"bad_dtype",
               Header("\"BF16\"", "\"F4\""),
               {kShard, "tensor \"embed.weight\": dtype F4 is not known"}},
        Damage{"dtype_number",
               Header("\"BF16\"", "16"),
               {kShard, "tensor \"embed.weight\"", "a string"}},
        Damage{"no_shape",
               Header("\"shape\":[256,64],", ""),
               {kShard, "tensor \"embed.weight\"", "shape"}},
        Damage{"unknown_key",
               Header("\"dtype\":\"BF16\"", "\"dtype\":\"BF16\",\"device\":\"cpu\""),
               {kShard, "tensor \"embed.weight\": unknown key \"device\""}},
        Damage{"not_an_object",
               Header("{\"dtype\":\"BF16\",\"shape\":[256,64],"
                      "\"data_offsets\":[0,32768]}",
                      "7"),
               {kShard, "tensor \"embed.weight\""}},
        Damage{"five_dimensions",
               Header("[256,64]", "[256,64,1,1,1]"),
               {kShard, "tensor \"embed.weight\": has 5 dimensions, needs 1 to 4"}},
        Damage{"negative_extent",
               Header("[256,64]", "[-256,64]"),
               {kShard, "tensor \"embed.weight\""}},
        Damage{"overflow",
               Header("[256,64]", "[281474976710656,281474976710656]"),
               {kShard, "tensor \"embed.weight\": the product of its shape overflows"}},
        Damage{"overflow_behind_zero",
               Header("[256,64]", "[0,281474976710656,281474976710656]"),
               {kShard, "tensor \"embed.weight\": the product of its shape overflows"}},
        Damage{"wrong_size",
               Header("[256,64]", "[256,65]"),
               {kShard,
                "tensor \"embed.weight\": its shape needs 33280 bytes, data_offsets give "
                "32768"}},
        Damage{"one_offset",
               Header("[0,32768]", "[0]"),
               {kShard, "tensor \"embed.weight\": data_offsets must have two entries"}},
        Damage{"backwards",
               Header("[0,32768]", "[32768,0]"),
               {kShard, "tensor \"embed.weight\": data_offsets [32768, 0] leave the file's"}},
        Damage{"out_of_range",
               Header("[0,32768]", "[395160,427928]"),
               {kShard,
                "tensor \"embed.weight\": data_offsets [395160, 427928] leave the file's "
                "395160 data bytes"}},
        Damage{"overlap",
               Header("[32768,65536]", "[0,32768]"),
               {kShard, "begins at byte 0, the data before it end at 32768: overlap or hole"}},
        Damage{"hole",
               Header("\"head.weight\":{\"dtype\":\"BF16\",\"shape\":[256,64],"
                      "\"data_offsets\":[32768,65536]},",
                      ""),
               {kShard,
                "tensor \"norm.weight\": begins at byte 65536, the data before it end at "
                "32768: overlap or hole"}}),
    Name);

INSTANTIATE_TEST_SUITE_P(
    Index, DamagedCheckpoint,
    ::testing::Values(
        Damage{"no_json", Index("{", "{{"), {kIndex}},
        Damage{"no_map", Index("weight_map", "weights"), {kIndex, "weight_map"}},
        Damage{"not_in_index",
               Index("\"embed.weight\":\"model-00001-of-00001.safetensors\",", ""),
               {kShard, "tensor \"embed.weight\": is not in the index"}},
        Damage{"names_a_missing_tensor",
               Index("\"embed.weight\"", "\"embed.weigth\""),
               {kIndex, "tensor \"embed.weigth\": is not in its shard " + std::string(kShard)}},
        Damage{"missing_shard",
               Index("\"embed.weight\":\"model-00001", "\"embed.weight\":\"model-00007"),
               {"model-00007-of-00001.safetensors", "No such file or directory"}},
        Damage{"path",
               Index("\"embed.weight\":\"model", "\"embed.weight\":\"../model"),
               {kIndex,
                "tensor \"embed.weight\": its shard \"../model-00001-of-00001.safetensors\""
                " must be a plain file name"}},
        Damage{"parent",
               Index("\"embed.weight\":\"model-00001-of-00001.safetensors\"",
                     "\"embed.weight\":\"..\""),
               {"not a regular file"}},
        Damage{"shard_number",
               Index("\"embed.weight\":\"model-00001-of-00001.safetensors\"", "\"embed.weight\":5"),
               {kIndex, "embed.weight", "a string"}}),
    Name);

INSTANTIATE_TEST_SUITE_P(
    Model, DamagedCheckpoint,
    ::testing::Values(
        Damage{"missing_tensor",
               [](const ScratchDir& dir) {
                 Header("\"embed.weight\"", "\"vision.embed\"")(dir);
                 Index("\"embed.weight\"", "\"vision.embed\"")(dir);
               },
               {"tensor \"embed.weight\" (BF16 [256, 64]) is missing in "}},
        Damage{"extra_tensor",
               [](const ScratchDir& dir) {
                 Header("\"layers.2.", "\"layers.9.")(dir);
                 Index("\"layers.2.", "\"layers.9.")(dir);
               },
               {kShard, "tensor \"layers.9.", "is not part of the model that config.json describes",
                "tensor \"layers.2."}},
        Damage{"wrong_shape",
               Header("[256,64]", "[64,256]"),
               {kShard,
                "tensor \"embed.weight\" is BF16 [64, 256], config.json needs BF16 "
                "[256, 64]"}},
        Damage{"wrong_rank",
               Header("[256,64]", "[16384]"),
               {kShard, "tensor \"embed.weight\" is BF16 [16384], config.json needs"}},
        Damage{"wrong_dtype",
               Header("\"BF16\",\"shape\":[256,64]", "\"F32\",\"shape\":[128,64]"),
               {kShard, "tensor \"embed.weight\" is F32 [128, 64], config.json needs BF16"}},
        Damage{"other_config",
               [](const ScratchDir& dir) {
                 WriteFile(dir / "config.json",
                           Replaced(ReadFile(dir / "config.json"), "\"n_routed_experts\": 8",
                                    "\"n_routed_experts\": 9"));
               },
               {kShard,
                "tensor \"layers.0.ffn.gate.weight\" is BF16 [8, 64], config.json needs "
                "BF16 [9, 64]",
                "tensor \"layers.0.ffn.experts.8.w1.weight\" (I8 [32, 32]) is missing"}}),
    Name);

TEST(Checkpoint, AGoodOneHasItsTensors) {
  const auto checkpoint = Checkpoint::Open(kGood);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->tensors().size(), 237U);
  const worker::StoredTensor* embed = (*checkpoint)->Find("embed.weight");
  ASSERT_NE(embed, nullptr);
  EXPECT_EQ(worker::DescribeTensor(embed->view), "BF16 [256, 64]");
  EXPECT_EQ(embed->file, kShard);
  EXPECT_EQ((*checkpoint)->Find("embed.bias"), nullptr);
}

TEST(Checkpoint, ReadsASingleFileWithoutIndex) {
  const ScratchDir dir(kGood);
  std::filesystem::remove(dir / kIndex);
  EXPECT_THAT(std::string(Checkpoint::Open(dir.path()).status().message()),
              HasSubstr("model.safetensors: No such file"));
  std::filesystem::rename(dir / kShard, dir / "model.safetensors");
  const auto checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->tensors().size(), 237U);
}

TEST(Checkpoint, ATensorInTwoShardsIsRefused) {
  const ScratchDir dir(kGood);
  std::filesystem::copy(dir / kShard, dir / "second.safetensors");
  Index("\"embed.weight\":\"model-00001-of-00001.safetensors\"",
        "\"embed.weight\":\"second.safetensors\"")(dir);
  EXPECT_THAT(std::string(Checkpoint::Open(dir.path()).status().message()),
              HasSubstr("second.safetensors: tensor \"embed.weight\": is in an earlier shard too"));
}

TEST(Checkpoint, UnalignedDataIsReadable) {
  const ScratchDir dir(kGood);
  const auto before = Checkpoint::Open(kGood);
  // One more byte of header moves every tensor to an odd address.
  Header("{\"__metadata__\"", "{ \"__metadata__\"")(dir);
  const auto after = Checkpoint::Open(dir.path());
  ASSERT_TRUE(after.ok()) << after.status();
  const auto& one = (*before)->Find("layers.0.hc_attn_fn")->view;
  const auto& two = (*after)->Find("layers.0.hc_attn_fn")->view;
  EXPECT_EQ(reinterpret_cast<uintptr_t>(two.data) % 4, 0U);
  EXPECT_EQ(std::memcmp(one.data, two.data, static_cast<size_t>(one.size()) * 4), 0);
}

TEST(MappedFile, SaysWhatIsWrongWithTheFile) {
  const ScratchDir dir;
  EXPECT_EQ(worker::MappedFile::Open(dir / "none").status().code(), absl::StatusCode::kNotFound);
  WriteFile(dir / "some", "abc");
  auto file = worker::MappedFile::Open(dir / "some");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->size(), 3U);
  worker::MappedFile moved = *std::move(file);
  EXPECT_EQ(static_cast<char>(moved.data()[2]), 'c');
}

}  // namespace
}  // namespace skein::tests
