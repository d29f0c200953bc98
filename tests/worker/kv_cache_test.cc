// Pools of the block-addressed cache: where they are, how large a page is, what a block costs.
#include "worker/cache/kv_cache.h"

#include <gtest/gtest.h>

namespace skein::worker {
namespace {

using kernels::KvFormat;
using kernels::KvPool;

ModelSpec Spec() {
  ModelSpec spec;
  spec.head_dim = 64;
  spec.index_dim = 32;
  spec.num_layers = 4;
  spec.layers.resize(4);
  for (int layer : {1, 3}) {
    spec.layers[static_cast<size_t>(layer)].kv_source = true;
    spec.layers[static_cast<size_t>(layer)].ratio = layer == 1 ? 2 : 1;
  }
  spec.layers[2].ratio = 2;
  spec.layers[2].kv_layer = 1;
  return spec;
}

TEST(KvCache, OnlyKvSourcesOwnPools) {
  Arena arena;
  const KvCache cache(Spec(), Numerics::Model(), 8, 5, arena);
  EXPECT_EQ(cache.block_tokens(), 8);
  EXPECT_EQ(cache.num_blocks(), 5);
  EXPECT_EQ(cache.history(0).data, nullptr);
  EXPECT_EQ(cache.history(2).data, nullptr);
  const KvPool& history = cache.history(1);
  EXPECT_EQ(history.format, KvFormat::kFp4Group16);
  EXPECT_EQ(history.dim, 64);
  EXPECT_EQ(history.page_rows, 4) << "eight tokens at ratio two";
  EXPECT_EQ(history.num_rows, 20);
  EXPECT_EQ(history.page_bytes, 192) << "4 * (32 + 4) rounded up to 64";
  const KvPool& index = cache.index_keys(3);
  EXPECT_EQ(index.format, KvFormat::kFp4Group32);
  EXPECT_EQ(index.dim, 32);
  EXPECT_EQ(index.page_rows, 8);
  EXPECT_EQ(index.page_bytes, 192) << "8 * (16 + 1) rounded up to 64";
}

TEST(KvCache, ABlockCostsItsShareOfEveryPool) {
  for (const Numerics& numerics : {Numerics::Model(), Numerics::Unquantised()}) {
    Arena arena;
    const KvCache cache(Spec(), numerics, 8, 5, arena);
    EXPECT_EQ(KvCache::BlockBytes(Spec(), numerics, 8) * 5, arena.total_bytes());
  }
  // 192 + 128 of layer 1, 320 + 192 of layer 3.
  EXPECT_EQ(KvCache::BlockBytes(Spec(), Numerics::Model(), 8), 832U);
}

TEST(KvCache, AModelWithoutHistoryNeedsNoBlocks) {
  ModelSpec spec = Spec();
  for (LayerSpec& layer : spec.layers) layer = {};
  EXPECT_EQ(KvCache::BlockBytes(spec, Numerics::Model(), 8), 0U);
}

TEST(KvCacheDeathTest, ABlockMustHoldWholeGroups) {
  Arena arena;
  EXPECT_DEATH(KvCache(Spec(), Numerics::Model(), 7, 5, arena), "block_multiple");
}

}  // namespace
}  // namespace skein::worker
