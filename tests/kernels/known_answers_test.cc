// Numbers that are known from outside: published vectors, hand-made cases and distributions, on
// every registered backend.
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu/register.h"
#include "kernels/ops/engram.h"
#include "kernels/ops/gemm.h"
#include "kernels/ops/hyper_connection.h"
#include "kernels/ops/logit_edits.h"
#include "kernels/ops/moe.h"
#include "kernels/ops/quant.h"
#include "kernels/philox.h"
#include "kernels/reference/register.h"
#include "tests/kernels/buffer.h"

namespace skein::kernels {
namespace {

const KernelRegistry& AllBackends() {
  static const std::unique_ptr<KernelRegistry> registry = [] {
    auto built = std::make_unique<KernelRegistry>();
    EXPECT_TRUE(RegisterReferenceKernels(*built).ok());
    EXPECT_TRUE(RegisterCpuKernels(*built, CpuIsa::kAuto).ok());
    return built;
  }();
  return *registry;
}

class KnownAnswers : public ::testing::TestWithParam<std::string> {
 protected:
  template <typename Op>
  void Run(const typename Op::Problem& problem, const typename Op::Args& args) {
    const KernelVariant<Op>* variant = AllBackends().Find<Op>(GetParam());
    ASSERT_NE(variant, nullptr);
    ASSERT_TRUE(variant->supports(problem).ok()) << variant->supports(problem);
    TestWorkspace workspace(variant->workspace_bytes(problem));
    const absl::Status status = variant->run(problem, args, workspace.get(), {});
    ASSERT_TRUE(status.ok()) << status;
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, KnownAnswers,
                         ::testing::Values("cpu", "reference", "reference-float"),
                         [](const auto& backend) {
                           return backend.param == "reference-float"
                                      ? std::string("reference_float")
                                      : backend.param;
                         });

TEST(Philox, PublishedVectors) {
  EXPECT_EQ(Philox({0, 0, 0, 0}, 0, 0),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox({~0u, ~0u, ~0u, ~0u}, ~0u, ~0u),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
  EXPECT_EQ(RandomBlock(0x299f31d0a4093822ull, 5, RandomPurpose::kDraft, 7, 1),
            Philox({7, 1, 5, 4u << 24}, 0xa4093822, 0x299f31d0));
}

// m[i] = 1.5 sin(0.7 i), scale 1, base 0.
TEST_P(KnownAnswers, HyperConnectionCheckVector) {
  constexpr int kChannels = 16;
  Buffer stream(DType::kBf16, {1, 4, kChannels});
  // A one-hot row of 64 values: the reciprocal root of its mean square is exactly 8.
  stream.Fill([](int64_t flat) { return flat == 0 ? 1.0 : 0.0; });
  Buffer fn(DType::kF32, {24, 4 * kChannels});
  fn.Fill([](int64_t flat) {
    return flat % 64 == 0 ? 1.5 * std::sin(0.7 * static_cast<double>(flat / 64)) / 8 : 0.37;
  });
  Buffer base(DType::kF32, {24}), scale(DType::kF32, {3});
  base.Fill([](int64_t) { return 0.0; });
  scale.Fill([](int64_t) { return 1.0; });
  Buffer pre(DType::kF32, {1, 4}), post(DType::kF32, {1, 4}), comb(DType::kF32, {1, 4, 4});
  HcMix::Args args;
  args.stream = stream.view();
  args.fn = fn.view();
  args.base = base.view();
  args.scale = scale.view();
  args.pre = pre.view();
  args.post = post.view();
  args.comb = comb.view();
  args.norm_eps = 1e-20f;
  args.hc_eps = 1e-6f;
  Run<HcMix>({4, kChannels, 20, DType::kBf16, DType::kF32, 1}, args);
  const std::vector<double> expected_pre = {0.5000010, 0.7243877, 0.8142977, 0.7849619};
  const std::vector<double> expected_post = {1.2460850, 0.7428190, 0.4258567, 0.3727682};
  const std::vector<double> expected_comb = {
      0.0427317, 0.1525300, 0.3942736, 0.4104638, 0.5314877, 0.3214188, 0.1137286, 0.0333639,
      0.0513821, 0.1192422, 0.3136317, 0.5157430, 0.3743975, 0.4068081, 0.1783651, 0.0404283};
  for (size_t k = 0; k < 4; ++k) {
    EXPECT_NEAR(pre.Values()[k], expected_pre[k], 3e-7) << k;
    EXPECT_NEAR(post.Values()[k], expected_post[k], 3e-7) << k;
  }
  for (size_t i = 0; i < 16; ++i) EXPECT_NEAR(comb.Values()[i], expected_comb[i], 3e-7) << i;
}

// comb maps old stream j to new stream k: a permutation that is not symmetric shows the
// orientation.
TEST_P(KnownAnswers, HyperConnectionPostIsIndexedOldThenNew) {
  Buffer stream(DType::kBf16, {1, 4, 2}), x(DType::kBf16, {1, 2});
  stream.Fill([](int64_t flat) { return static_cast<double>(flat / 2 + 1); });
  x.Fill([](int64_t) { return 16.0; });
  Buffer post(DType::kF32, {1, 4}), comb(DType::kF32, {1, 4, 4});
  post.Fill([](int64_t k) { return k == 3 ? 0.5 : 0.0; });
  comb.Fill([](int64_t flat) { return flat % 4 == (flat / 4 + 1) % 4 ? 1.0 : 0.0; });
  HcPost::Args args{x.view(), post.view(), comb.view(), stream.view()};
  Run<HcPost>({4, 2, DType::kBf16, DType::kF32}, args);
  EXPECT_EQ(stream.Values(), (std::vector<double>{4, 4, 1, 1, 2, 2, 11, 11}));
}

struct HashLayer {
  std::vector<int64_t> multiplier;
  std::vector<int64_t> prime;
};

HashLayer HashOfLayer(int layer) {
  if (layer == 1) {
    return {{76632096046245, 4839876093313, 35959672319349, 73987337458391},
            {16000057, 16000079, 16000081, 16000097, 16000121, 16000129, 16000133, 16000183,
             16000189, 16000207, 16000211, 16000253, 16000277, 16000289, 16000307, 16000321,
             16000339, 16000381, 16000393, 16000399, 16000403, 16000409, 16000447, 16000463}};
  }
  return {{67716810739261, 51510806800915, 30921347202721, 82619226485591},
          {16000477, 16000487, 16000499, 16000507, 16000511, 16000573, 16000609, 16000627,
           16000667, 16000669, 16000693, 16000697, 16000711, 16000729, 16000759, 16000769,
           16000781, 16000799, 16000813, 16000819, 16000841, 16000877, 16000879, 16000889}};
}

TEST_P(KnownAnswers, EngramHashOfTheReleasedLayers) {
  // Compressed ids 5 7 11 13 at positions 0..3, pad class 2: look-backs of position 3 and of 0.
  Buffer ngram(DType::kI32, {2, 4});
  const int64_t ids[8] = {13, 11, 7, 5, 5, 2, 2, 2};
  ngram.Fill([&](int64_t flat) { return static_cast<double>(ids[flat]); });
  for (const int layer : {1, 14}) {
    HashLayer hash = HashOfLayer(layer);
    std::vector<int64_t> offset = {0};
    for (const int64_t prime : hash.prime) offset.push_back(offset.back() + prime);
    EXPECT_EQ(offset.back(), layer == 1 ? 384006168 : 384016682);
    Buffer rows(DType::kI32, {2, 24});
    EngramHash::Args args;
    args.ngram = ngram.view();
    args.multiplier = MakeView(hash.multiplier.data(), DType::kI64, {4});
    args.prime = MakeView(hash.prime.data(), DType::kI64, {24});
    args.offset = MakeView(offset.data(), DType::kI64, {24});
    args.rows = rows.view();
    Run<EngramHash>({4, 8}, args);
    const std::vector<double> y = rows.Values();
    const std::vector<double> third(y.begin(), y.begin() + 4);
    if (layer == 1) {
      EXPECT_EQ(third, (std::vector<double>{4449004, 17571959, 46401655, 53039289}));
      EXPECT_EQ(y[22], 357302990);
      EXPECT_EQ(y[23], 369904649);
      EXPECT_EQ(y[24], 5412672);
      EXPECT_EQ(y[25], 18319159);
      EXPECT_EQ(y[26], 35492627);
      EXPECT_EQ(y[47], 372009279);
    } else {
      EXPECT_EQ(y[0], 15143247);
      EXPECT_EQ(y[1], 22529278);
      EXPECT_EQ(y[2], 37793046);
      EXPECT_EQ(y[23], 378459855);
      EXPECT_EQ(y[24], 6939818);
      EXPECT_EQ(y[25], 27264717);
      EXPECT_EQ(y[47], 382274687);
    }
  }
}

// Row 0 of layers.0.attn.wkv of the released checkpoint, read through a product with unit vectors.
TEST_P(KnownAnswers, LinearReadsRealCheckpointBytes) {
  const uint8_t codes[8] = {0xd8, 0x71, 0xf2, 0x79, 0x70, 0x69, 0xf0, 0xe5};
  const uint8_t scale = 0x73;
  Buffer x(DType::kBf16, {8, 8}), y(DType::kF32, {8, 1});
  x.Fill([](int64_t flat) { return flat / 8 == flat % 8 ? 1.0 : 0.0; });
  Linear::Args args;
  args.x = x.view();
  args.w = {MakeView(codes, DType::kE4m3, {1, 8}), MakeView(&scale, DType::kE8m0, {1, 1})};
  args.y = y.view();
  Run<Linear>({1, 8, WeightFormat::kE4m3Block, 32, DType::kBf16, DType::kF32, false, 8}, args);
  EXPECT_EQ(y.Values(), (std::vector<double>{-0.00390625, 0.03515625, -0.0390625, 0.0703125,
                                             0.03125, 0.017578125, -0.03125, -0.0126953125}));
}

TEST_P(KnownAnswers, CastHandlesZeroBoundaryAndPoisonedGroups) {
  Buffer x(DType::kF32, {1, 128}), codes(DType::kE4m3, {1, 128}), scale(DType::kE8m0, {1, 4});
  x.Fill([](int64_t i) {
    if (i < 32) return 0.0;
    if (i < 64) return i == 40 ? 448.0 : 1.0;
    if (i < 96) return i == 70 ? std::nextafterf(448.0f, 1e9f) : -2.0;
    return i == 100 ? std::nan("") : 1.0;
  });
  PerTokenCast::Args args{x.view(), codes.view(), scale.view()};
  Run<PerTokenCast>({128, 32, DType::kF32}, args);
  EXPECT_EQ(scale.Values(), (std::vector<double>{105, 127, 128, 255}));
  const std::vector<double> y = codes.Values();
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[40], 0x7E);
  EXPECT_EQ(y[41], 0x38);
  EXPECT_EQ(y[70], 0x76);
  EXPECT_EQ(y[71], 0xB8);
  for (size_t i = 96; i < 128; ++i) EXPECT_EQ(y[i], 0x7F);
}

TEST_P(KnownAnswers, FakeQuantRoundsTiesToTheEvenCode) {
  Buffer x(DType::kBf16, {1, 32});
  const double in[8] = {6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5};
  const double out[8] = {6, 0, 1, 1, 2, 2, 4, 4};
  x.Fill([&](int64_t i) { return i % 16 < 8 ? in[i % 8] : -in[i % 8]; });
  Run<FakeQuant>({32, 32, CodeFormat::kE2m1Ue8m0, DType::kBf16}, {x.view()});
  const std::vector<double> y = x.Values();
  for (size_t i = 0; i < 32; ++i) EXPECT_EQ(y[i], i % 16 < 8 ? out[i % 8] : -out[i % 8]) << i;
}

TEST_P(KnownAnswers, GateTakesTheLowestExpertsOnTiesAndRefusesNan) {
  Buffer logits(DType::kF32, {2, 6}), bias(DType::kF32, {6});
  logits.Fill([](int64_t flat) { return flat < 6 ? 0.0 : static_cast<double>(flat); });
  bias.Fill([](int64_t) { return 0.0; });
  Buffer index(DType::kI32, {2, 3}), weight(DType::kF32, {2, 3});
  MoeGate::Args args{logits.view(), bias.view(), index.view(), weight.view(), 1, 1.5f, true};
  Run<MoeGate>({6, 3, DType::kF32}, args);
  EXPECT_EQ(index.Values(), (std::vector<double>{0, 1, 2, 5, 4, 3}));
  for (size_t j = 0; j < 3; ++j) EXPECT_NEAR(weight.Values()[j], 0.5, 1e-6);
  logits.Set(7, std::nan(""));
  index.Fill([](int64_t) { return 77; });
  const absl::Status status =
      AllBackends().Find<MoeGate>(GetParam())->run({6, 3, DType::kF32}, args, {}, {});
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(status.message(), "moe_gate: row 1 has a non-finite logit; nothing was routed");
  EXPECT_EQ(index.Values(), std::vector<double>(6, 77));
}

template <typename T>
Buffer Packed(const std::vector<T>& values) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(T));
  Buffer buffer(DType::kU8, {static_cast<int64_t>(values.size()), kBytes});
  const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
  buffer.Fill([bytes](int64_t i) { return static_cast<double>(bytes[i]); });
  return buffer;
}

// By hand: the repetition penalty divides or multiplies, then frequency for each time, then
// presence once; a prompt token has the first alone. Row 0 has one draft, token 6; row 1 has none.
TEST_P(KnownAnswers, EditsOfLogitsAreThoseOfTheFormulas) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  Buffer raw(DType::kF32, {2, 8}), logits(DType::kF32, {2, 8});
  const double in[8] = {2, -2, 2, -2, 2, 2, 2, 4};
  raw.Fill([&in](int64_t i) { return in[i % 8]; });
  const Buffer entries = Packed<TokenEdit>(
      {{0, 2, 0, 0}, {1, 1, 1, 0}, {2, 0, 1, 0}, {3, 0, 0, 1.5F}, {4, 0, 0, kNever}, {6, 0, 0, 0}});
  const Buffer edits =
      Packed<LogitEdit>({{0, 0, 6, 0, 1, 0.5F, 0.25F, 2.0F}, {-1, 0, 6, 0, 0, 0.5F, 0.25F, 2.0F}});
  Buffer drafts(DType::kI32, {1}), mask(DType::kI32, {1, 1});
  drafts.Fill([](int64_t) { return 6.0; });
  mask.Fill([](int64_t) { return 255.0 - 32.0; });  // all but token 5
  Run<EditLogits>({8, DType::kF32}, {raw.view(), logits.view(), edits.view(), entries.view(),
                                     drafts.view(), mask.view()});
  EXPECT_EQ(logits.Values(), (std::vector<double>{0, -4.75, 1, -0.5, kNever, kNever, 0.25, 4,  //
                                                  0, -4.75, 1, -0.5, kNever, 2, 2, 4}));
}

}  // namespace
}  // namespace skein::kernels
