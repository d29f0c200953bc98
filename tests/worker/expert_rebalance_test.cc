// Experts that other ranks hold than at first: every rank still answers what the whole model
// answers, bit for bit, on every backend that shares the host's memory; what a rank lacks it reads
// into the memory that it has; and a placement that is none of this model is refused by name.
#include <algorithm>
#include <random>
#include <string>
#include <tuple>

#include <gmock/gmock.h>

#include "scheduler/expert_placement.h"
#include "tests/worker/draft_stream.h"
#include "tests/worker/owned_streams.h"
#include "tests/worker/rank_group.h"
#include "worker/model/dummy_weights.h"

namespace skein::tests {
namespace {

using protocol::ExpertPlacement;
using ::testing::HasSubstr;

absl::Status Always() { return absl::OkStatus(); }

ExpertPlacement Shuffled(const worker::ModelSpec& spec, int ranks, uint32_t seed) {
  ExpertPlacement placement = worker::FirstPlacement(spec, ranks);
  std::mt19937 random(seed);
  for (auto& layer : placement) std::shuffle(layer.begin(), layer.end(), random);
  return placement;
}

// What lies in the memory of a device.
std::string BytesOf(kernels::Device& device, const kernels::TensorView& view) {
  std::string bytes(static_cast<size_t>(view.size()) * kernels::DTypeBytes(view.dtype), ' ');
  EXPECT_TRUE(device.CopyOut(bytes.data(), view.data, bytes.size()).ok());
  EXPECT_TRUE(device.Wait().ok());
  return bytes;
}

// Every entry is the expert that it says it is, where the placement has it.
void ExpectHeld(worker::LoadedModel& part, worker::LoadedModel& whole,
                const ExpertPlacement& placement, int rank) {
  auto& weights = const_cast<worker::ModelWeights&>(part.weights());
  const auto all = const_cast<worker::ModelWeights&>(whole.weights()).MoeLayers();
  const auto held = weights.MoeLayers();
  ASSERT_EQ(held.size(), placement.size());
  const auto same = [&](const kernels::TensorView& own, const kernels::TensorView& right) {
    return BytesOf(part.device(), own) == BytesOf(whole.device(), right);
  };
  for (size_t i = 0; i < held.size(); ++i) {
    for (size_t n = 0; n < held[i]->held.size(); ++n) {
      const auto expert = static_cast<size_t>(held[i]->held[n]);
      EXPECT_EQ(placement[i][expert], rank);
      EXPECT_TRUE(same(held[i]->w1[n].codes, all[i]->w1[expert].codes));
      EXPECT_TRUE(same(held[i]->w2[n].scale, all[i]->w2[expert].scale));
      EXPECT_TRUE(same(held[i]->w3[n].codes, all[i]->w3[expert].codes));
    }
  }
}

using GroupForm = std::tuple<int, bool, bool>;
class ExpertRebalanceTest : public ::testing::TestWithParam<GroupForm> {
 protected:
  static RankSetup Ranks() {
    RankSetup setup;
    std::tie(setup.ranks, setup.split, setup.record) = GetParam();
    return setup;
  }
};

// rule: AC4, MM3
TEST_P(ExpertRebalanceTest, StreamsWithAndWithoutDraftsAreThoseOfTheWholeModel) {
  RankGroup group(Ranks());
  const worker::ModelSpec& spec = group.part(0).spec();
  const Drafting kinds[] = {{VerificationMode::kGreedy, 5},
                            {VerificationMode::kCoupled, 3},
                            {VerificationMode::kRejection, 4},
                            {VerificationMode::kCoupled, 0, 0, false}};
  const auto ranks = static_cast<uint32_t>(group.size());
  for (uint32_t epoch = 0; epoch < 4; ++epoch) {
    // The last epoch has the experts where they were at first.
    group.Meet(epoch == 3 ? ExpertPlacement{} : Shuffled(spec, group.size(), epoch));
    std::vector<Owned> owned;
    for (uint32_t i = 0; i < 4; ++i) {
      const float temperature = kinds[i].mode == VerificationMode::kGreedy ? 0.0F : 0.8F;
      owned.push_back(OwnedStream(20 + i + epoch, i % ranks, i / ranks, temperature, kinds[i]));
      owned.back().from_step = i % 3;
    }
    RunOwned(group, owned);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ExpertRebalanceTest,
                         ::testing::Values(GroupForm{2, false, false}, GroupForm{3, false, false},
                                           GroupForm{4, false, false}, GroupForm{2, true, false},
                                           GroupForm{2, true, true}, GroupForm{4, true, true}));

TEST(ExpertRebalance, WhatARankLacksIsReadIntoTheMemoryThatItHas) {
  for (const bool split : {false, true}) {
    RankSetup setup;
    setup.split = split;
    const auto whole = LoadPart(RankSetup(), {});
    for (const int rank : {0, 1}) {
      const auto part = LoadPart(setup, {rank, 2});
      const uint64_t bytes = part->arena_bytes();
      std::vector<const void*> before;
      for (const kernels::Weight& w : part->weights().layers[0].moe.w1) {
        before.push_back(w.codes.data);
      }
      for (uint32_t seed = 0; seed < 3; ++seed) {
        const ExpertPlacement placement = Shuffled(part->spec(), 2, seed);
        ASSERT_TRUE(part->PlaceExperts(placement, Always).ok());
        ExpectHeld(*part, *whole, placement, rank);
      }
      EXPECT_EQ(part->arena_bytes(), bytes);
      if (!split) continue;
      for (size_t n = 0; n < before.size(); ++n) {
        EXPECT_EQ(part->weights().layers[0].moe.w1[n].codes.data, before[n]);
      }
    }
  }
}

// What is loaded stays when the epoch ends in the middle, and the next one goes on from there.
TEST(ExpertRebalance, ALoadThatIsEndedGoesOnInTheNextEpoch) {
  RankSetup setup;
  setup.split = true;
  const auto whole = LoadPart(RankSetup(), {});
  const auto part = LoadPart(setup, {1, 2});
  const ExpertPlacement placement = Shuffled(part->spec(), 2, 7);
  int first = 0;
  const absl::Status ended = part->PlaceExperts(placement, [&first] {
    return ++first > 5 ? absl::AbortedError("the rank leaves the epoch") : absl::OkStatus();
  });
  EXPECT_EQ(ended.message(), "the rank leaves the epoch");
  int rest = 0;
  const auto count = [&rest] {
    ++rest;
    return absl::OkStatus();
  };
  ASSERT_TRUE(part->PlaceExperts(placement, count).ok());
  ExpectHeld(*part, *whole, placement, 1);
  const auto fresh = LoadPart(setup, {1, 2});
  const int half = std::exchange(rest, 0);
  ASSERT_TRUE(fresh->PlaceExperts(placement, count).ok());
  EXPECT_EQ(half + 5, rest);
  // Nothing is read where all is there.
  rest = 0;
  ASSERT_TRUE(fresh->PlaceExperts(placement, count).ok());
  EXPECT_EQ(rest, 0);
}

TEST(ExpertRebalance, PlacementsThatAreNotOfThisModelAreNamed) {
  const auto part = LoadPart(RankSetup(), {0, 2});
  const ExpertPlacement right = Shuffled(part->spec(), 2, 1);
  const auto refusal = [&](const ExpertPlacement& wrong) {
    return std::string(part->PlaceExperts(wrong, Always).message());
  };
  ExpertPlacement wrong = right;
  wrong.pop_back();
  EXPECT_THAT(refusal(wrong), HasSubstr("layers, this model has "));
  wrong = right;
  wrong[1].push_back(0);
  EXPECT_THAT(refusal(wrong), HasSubstr("layer 1 has 17 experts, that of this model 16"));
  wrong = right;
  *std::find(wrong[2].begin(), wrong[2].end(), 1) = 0;
  EXPECT_THAT(refusal(wrong), HasSubstr("layer 2 has 9 experts on rank 0 of 2, which holds 8"));
  wrong = right;
  *std::find(wrong[0].begin(), wrong[0].end(), 1) = 9;
  EXPECT_THAT(refusal(wrong), HasSubstr("layer 0 has 7 experts on rank 1 of 2, which holds 8"));
  EXPECT_TRUE(part->PlaceExperts(right, Always).ok());
}

// The coordinator reckons with the ranges that workers load first, also where they are of unequal
// sizes.
TEST(ExpertRebalance, WhatIsLoadedFirstIsWhatTheCoordinatorTakesForIt) {
  worker::ModelSpec spec;
  spec.num_layers = 2;
  spec.dspark.stages = 1;
  for (const int experts : {8, 13, 256}) {
    spec.num_experts = experts;
    spec.dspark.num_experts = experts + 3;
    const std::vector<double> layer(static_cast<size_t>(experts));
    const std::vector<double> draft(static_cast<size_t>(experts + 3));
    for (const int ranks : {1, 2, 3, 8}) {
      EXPECT_EQ(worker::FirstPlacement(spec, ranks),
                scheduler::ContiguousPlacement({layer, layer, draft},
                                               static_cast<uint32_t>(ranks)))
          << experts << " on " << ranks;
    }
  }
}

// Weights that are made are the same for every expert of a layer, so whoever holds which.
TEST(ExpertRebalance, MadeExpertsAreAlike) {
  const auto spec = worker::ModelSpec::Load("deploy/models/tiny-v41");
  ASSERT_TRUE(spec.ok());
  worker::Arena arena;
  const worker::TensorMaker make = worker::dummy::MakerOf(*spec);
  const auto wanted =
      kernels::MakeView(nullptr, kernels::DType::kE2m1x2, {spec->expert_inner, spec->hidden / 2});
  const auto of = [&](int expert) {
    return make(arena, protocol::Concat("layers.1.ffn.experts.", expert, ".w1.weight"), wanted);
  };
  EXPECT_EQ(BytesOf(arena.device(), of(0)), BytesOf(arena.device(), of(7)));
}

}  // namespace
}  // namespace skein::tests
