#include "worker/cache/kv_cache.h"

#include "protocol/base/log.h"

namespace skein::worker {

int64_t PageBytes(kernels::KvFormat format, int dim, int64_t page_rows) {
  const int64_t bytes =
      page_rows * (kernels::KvDataBytes(format, dim) + kernels::KvScaleBytes(format, dim));
  return (bytes + 63) / 64 * 64;
}

kernels::KvPool MakePool(kernels::KvFormat format, int dim, int64_t page_rows, int64_t pages,
                         Arena& arena) {
  kernels::KvPool pool;
  pool.format = format;
  pool.dim = dim;
  pool.page_rows = page_rows;
  pool.page_bytes = PageBytes(format, dim, page_rows);
  pool.num_rows = page_rows * pages;
  pool.data = arena.Bytes(static_cast<size_t>(pool.page_bytes * pages));
  return pool;
}

uint64_t PoolBytes(const kernels::KvPool& pool) {
  if (pool.data == nullptr || pool.page_rows == 0) return 0;
  return static_cast<uint64_t>(pool.num_rows / pool.page_rows * pool.page_bytes);
}

KvCache::KvCache(const ModelSpec& spec, const Numerics& numerics, int block_tokens, int num_blocks,
                 Arena& arena)
    : block_tokens_(block_tokens), num_blocks_(num_blocks) {
  SKEIN_CHECK(block_tokens % spec.block_multiple() == 0);
  for (const LayerSpec& layer : spec.layers) {
    Pools pools;
    if (layer.kv_source) {
      const int64_t page_rows = block_tokens / layer.ratio;
      pools.history = MakePool(numerics.history, spec.head_dim, page_rows, num_blocks, arena);
      pools.index = MakePool(numerics.index, spec.index_dim, page_rows, num_blocks, arena);
    }
    pools_.push_back(pools);
  }
}

const kernels::KvPool& KvCache::history(int kv_layer) const {
  return pools_[static_cast<size_t>(kv_layer)].history;
}

const kernels::KvPool& KvCache::index_keys(int kv_layer) const {
  return pools_[static_cast<size_t>(kv_layer)].index;
}

uint64_t KvCache::history_bytes() const {
  uint64_t bytes = 0;
  for (const Pools& pools : pools_) bytes += PoolBytes(pools.history);
  return bytes;
}

uint64_t KvCache::index_bytes() const {
  uint64_t bytes = 0;
  for (const Pools& pools : pools_) bytes += PoolBytes(pools.index);
  return bytes;
}

std::vector<std::span<std::byte>> KvCache::Pages(int block) const {
  std::vector<std::span<std::byte>> pages;
  for (const Pools& pools : pools_) {
    for (const kernels::KvPool* pool : {&pools.history, &pools.index}) {
      if (pool->data == nullptr) continue;
      const auto bytes = static_cast<size_t>(pool->page_bytes);
      pages.emplace_back(static_cast<std::byte*>(pool->data) + static_cast<size_t>(block) * bytes,
                         bytes);
    }
  }
  return pages;
}

uint64_t KvCache::BlockBytes(const ModelSpec& spec, const Numerics& numerics, int block_tokens) {
  int64_t bytes = 0;
  for (const LayerSpec& layer : spec.layers) {
    if (!layer.kv_source) continue;
    const int64_t page_rows = block_tokens / layer.ratio;
    bytes += PageBytes(numerics.history, spec.head_dim, page_rows) +
             PageBytes(numerics.index, spec.index_dim, page_rows);
  }
  return static_cast<uint64_t>(bytes);
}

}  // namespace skein::worker
