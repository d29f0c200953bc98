// Block-addressed caches: compressed rows and index keys of every layer that owns some. One BlockId
// indexes all pools; a page of a pool is the share of one block. The scheduler counts blocks, this
// file alone knows bytes. Thread: the device thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops/kv_cache.h"
#include "worker/model/activations.h"
#include "worker/model/model_spec.h"

namespace skein::worker {

class KvCache {
 public:
  // `block_tokens` must be a multiple of spec.block_multiple().
  KvCache(const ModelSpec& spec, const Numerics& numerics, int block_tokens, int num_blocks,
          Arena& arena);

  // Pools of layer `kv_layer`, which must be a kv source.
  const kernels::KvPool& history(int kv_layer) const;
  const kernels::KvPool& index_keys(int kv_layer) const;
  // A block's share of each pool, in one order for all blocks.
  std::vector<std::span<std::byte>> Pages(int block) const;
  int block_tokens() const { return block_tokens_; }
  int num_blocks() const { return num_blocks_; }
  // Bytes of the pools of all layers.
  uint64_t history_bytes() const;
  uint64_t index_bytes() const;

  // Bytes of one block over all pools.
  static uint64_t BlockBytes(const ModelSpec& spec, const Numerics& numerics, int block_tokens);

 private:
  struct Pools {
    kernels::KvPool history, index;
  };
  int block_tokens_;
  int num_blocks_;
  std::vector<Pools> pools_;  // by layer; empty pools where the layer owns none
};

// Bytes of a page of `page_rows` rows, rounded up to a cache line.
int64_t PageBytes(kernels::KvFormat format, int dim, int64_t page_rows);

// Bytes of a pool; 0 for one without memory.
uint64_t PoolBytes(const kernels::KvPool& pool);

// A pool of `pages` pages of `page_rows` rows in memory of the arena.
kernels::KvPool MakePool(kernels::KvFormat format, int dim, int64_t page_rows, int64_t pages,
                         Arena& arena);

}  // namespace skein::worker
