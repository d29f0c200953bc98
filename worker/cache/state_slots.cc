#include "worker/cache/state_slots.h"

#include "worker/cache/kv_cache.h"

namespace skein::worker {

StateSlots::StateSlots(const ModelSpec& spec, const Numerics& numerics, int num_slots,
                       int draft_stages, Arena& arena)
    : num_slots_(num_slots),
      ring_rows_(spec.ring_rows()),
      draft_rows_(spec.dspark.block + 1),
      ngram_rows_(spec.engram.ngram + spec.dspark.block + 1) {
  for (const LayerSpec& layer : spec.layers) {
    window_.push_back(MakePool(numerics.window, spec.head_dim, ring_rows_, num_slots, arena));
    kernels::KvPool open;
    if (layer.kv_source && layer.ratio > 1) {
      open = MakePool(numerics.open, 2 * spec.head_dim, open_rows(layer.ratio), num_slots, arena);
    }
    open_.push_back(open);
  }
  for (int s = 0; s < draft_stages; ++s) {
    draft_.push_back(MakePool(numerics.window, spec.head_dim, ring_rows_, num_slots, arena));
  }
  ngram_.assign(static_cast<size_t>(num_slots) * static_cast<size_t>(ngram_rows_), 0);
}

uint64_t StateSlots::SlotBytes(const ModelSpec& spec, const Numerics& numerics, int draft_stages) {
  int64_t bytes = (spec.num_layers + draft_stages) *
                  PageBytes(numerics.window, spec.head_dim, spec.ring_rows());
  for (const LayerSpec& layer : spec.layers) {
    if (layer.kv_source && layer.ratio > 1) {
      bytes += PageBytes(numerics.open, 2 * spec.head_dim, layer.ratio + spec.dspark.block + 1);
    }
  }
  return static_cast<uint64_t>(bytes);
}

}  // namespace skein::worker
