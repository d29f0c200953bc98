// Per-sequence state: sizes of the rings, rows by position, recent ids of each slot.
#include "worker/cache/state_slots.h"

#include <gtest/gtest.h>

namespace skein::worker {
namespace {

using kernels::KvFormat;

ModelSpec Spec() {
  ModelSpec spec;
  spec.head_dim = 64;
  spec.window = 8;
  spec.num_layers = 3;
  spec.layers.resize(3);
  spec.layers[1].ratio = 2;
  spec.layers[1].kv_source = true;
  spec.layers[2].ratio = 1;
  spec.layers[2].kv_source = true;
  spec.dspark.stages = 2;
  spec.dspark.block = 5;
  spec.engram.ngram = 4;
  return spec;
}

TEST(StateSlots, RingsAreLongerThanTheWindowByTheDraft) {
  Arena arena;
  const StateSlots slots(Spec(), Numerics::Model(), 3, Spec().dspark.stages, arena);
  EXPECT_EQ(slots.num_slots(), 3);
  EXPECT_EQ(slots.ring_rows(), 14);
  EXPECT_EQ(slots.open_rows(2), 8);
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(slots.window(layer).num_rows, 42) << layer;
    EXPECT_EQ(slots.window(layer).format, KvFormat::kFp8Group32);
    EXPECT_EQ(slots.window(layer).page_rows, 14) << "a page is a slot";
  }
  EXPECT_EQ(slots.draft_window(1).num_rows, 42);
}

TEST(StateSlots, OpenGroupsExistWhereGroupsHaveSeveralTokens) {
  Arena arena;
  const StateSlots slots(Spec(), Numerics::Exact(), 3, Spec().dspark.stages, arena);
  EXPECT_EQ(slots.open_groups(0).data, nullptr);
  EXPECT_EQ(slots.open_groups(2).data, nullptr) << "ratio 1 leaves nothing open";
  EXPECT_EQ(slots.open_groups(1).dim, 128);
  EXPECT_EQ(slots.open_groups(1).num_rows, 24);
  EXPECT_EQ(slots.open_groups(1).format, KvFormat::kF64);
}

TEST(StateSlots, TheCountOfBytesIsWhatIsAllocated) {
  for (const Numerics& numerics : {Numerics::Model(), Numerics::Exact(), Numerics::Unquantised()}) {
    Arena arena;
    const StateSlots slots(Spec(), numerics, 3, Spec().dspark.stages, arena);
    EXPECT_EQ(StateSlots::SlotBytes(Spec(), numerics, Spec().dspark.stages) * 3,
              arena.total_bytes());
  }
}

TEST(StateSlots, RecentIdsAreKeptBySlotAndPosition) {
  Arena arena;
  StateSlots slots(Spec(), Numerics::Model(), 2, Spec().dspark.stages, arena);
  for (int position = 0; position < 100; ++position) {
    slots.set_ngram_id(0, position, 1000 + position);
    slots.set_ngram_id(1, position, 2000 + position);
    // Three ids back, and six more so that a refused draft loses none of them.
    for (int back = 0; back < std::min(position + 1, 10); ++back) {
      EXPECT_EQ(slots.ngram_id(0, position - back), 1000 + position - back);
      EXPECT_EQ(slots.ngram_id(1, position - back), 2000 + position - back);
    }
  }
}

}  // namespace
}  // namespace skein::worker
