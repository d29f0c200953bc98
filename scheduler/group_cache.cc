// The part of GroupScheduler that takes blocks and speaks to the prefix cache: hits at admission,
// publication at commit, checkpoints in between.
#include <algorithm>
#include <utility>

#include "protocol/base/log.h"
#include "scheduler/group_scheduler.h"
#include "scheduler/prompt_scores.h"

namespace skein::scheduler {

uint32_t GroupScheduler::num_free_blocks() const {
  return blocks_->num_free() + (cache_ != nullptr ? cache_->num_idle() : 0);
}

// Blocks for a table; those of the cache that were used least recently make room.
bool GroupScheduler::TakeBlocks(uint32_t count, BlockTable& table) {
  if (count > num_free_blocks()) return false;
  while (blocks_->num_free() < count) {
    SKEIN_CHECK(cache_->EvictOne()) << "scheduler invariant 10: an idle block is not evicted";
    ++counters_.cache_evictions;
  }
  return blocks_->Allocate(count, table);
}

// Blocks for the first `tokens` tokens, preempting sequences that are served later.
bool GroupScheduler::EnsureBlocks(Sequence& sequence, uint32_t tokens) {
  const uint32_t wanted = BlocksFor(tokens, geometry_.block_tokens);
  if (wanted <= sequence.blocks.size()) return true;
  const uint32_t missing = wanted - static_cast<uint32_t>(sequence.blocks.size());
  while (num_free_blocks() < missing) {
    Sequence* victim = FindVictim(sequence);
    if (victim == nullptr) return false;
    Preempt(*victim, PreemptReason::kBlocks);
  }
  return TakeBlocks(missing, sequence.blocks);
}

// Of `depth` drafts those whose rows fit into the blocks that the sequence has or that are free:
// drafts push nobody out.
uint32_t GroupScheduler::FitDrafts(const Sequence& sequence, uint32_t depth) const {
  const uint64_t blocks = uint64_t{sequence.blocks.size()} + num_free_blocks();
  const uint64_t room = blocks * geometry_.block_tokens;
  const uint64_t used = uint64_t{sequence.planned} + 1;
  return room <= used ? 0 : static_cast<uint32_t>(std::min<uint64_t>(depth, room - used));
}

// Tokens of the next chunk. A prefill stops where a checkpoint is to be left.
uint32_t GroupScheduler::NextChunk(const Sequence& sequence, const StepBudget& budget) const {
  const uint32_t chunk = LimitScores(sequence, ChunkLength(sequence, budget), budget.scores);
  if (cache_ == nullptr || geometry_.num_checkpoints == 0 || sequence.alone()) return chunk;
  for (const uint32_t stop : {sequence.cache.branch, sequence.cache.last}) {
    if (stop > sequence.planned) return std::min(chunk, stop - sequence.planned);
  }
  return chunk;
}

// Finds what is held of the tokens of a newcomer, in match_, and where it would go on from there,
// in `use`. Returns the blocks that its first chunk of at most `chunk` tokens takes beyond those
// that others use.
uint32_t GroupScheduler::LookUp(const Sequence& sequence, uint32_t chunk, CacheUse& use) {
  const uint32_t block = geometry_.block_tokens;
  // Who is a suspect shares nothing.
  const uint32_t whole = sequence.alone() ? 0 : (sequence.length() - 1) / block;
  cache_->Find(sequence.cache_root, sequence.tokens,
               std::min(whole, SkippableLength(sequence) / block), match_);
  use = {};
  const auto found = static_cast<uint32_t>(match_.nodes.size());
  use.shared_length = found * block;
  use.resume_length = static_cast<uint32_t>(match_.with_state) * block;
  use.exact_from = use.resume_length;
  const uint32_t margin = BlocksFor(geometry_.recompute_tokens, block);
  if (margin > 0 && found > margin && (found - margin) * block > use.resume_length) {
    use.resume_length = (found - margin) * block;
    use.exact_from = use.shared_length;
  }
  const uint32_t end = use.resume_length + std::min(sequence.length() - use.resume_length, chunk);
  use.branch = use.shared_length > use.exact_from || use.exact_from > use.resume_length
                   ? use.shared_length
                   : 0;
  use.last = whole * block;
  use.saved = use.exact_from > use.resume_length ? 0 : use.resume_length;
  const uint32_t wanted = std::max(BlocksFor(end, block), found) - found;
  return wanted + static_cast<uint32_t>(match_.num_idle);
}

uint32_t GroupScheduler::FirstBlocksFound(const Sequence& sequence) {
  if (cache_ == nullptr) return FirstBlocks(sequence);
  CacheUse use;
  return LookUp(sequence, std::min(limits_.max_num_batched_tokens, geometry_.max_rows), use);
}

uint32_t GroupScheduler::CachedTokens(const Sequence& sequence) {
  if (cache_ == nullptr || sequence.length() <= geometry_.block_tokens) return 0;
  // Most engines do not have the first block: that costs one look.
  cache_->Find(sequence.cache_root, sequence.tokens, 1, match_);
  if (match_.nodes.empty()) return 0;
  CacheUse use;
  LookUp(sequence, 0, use);
  return use.resume_length;
}

// Looks up a newcomer and gives it what is held of its tokens. False, and nothing changed, when its
// first chunk finds no room.
bool GroupScheduler::UseCache(Sequence& sequence, const StepBudget& budget) {
  const uint32_t chunk = ChunkLength(sequence, budget);
  // A suspect runs without: what it computes is not listed.
  if (cache_ == nullptr || sequence.alone()) {
    return BlocksFor(chunk, geometry_.block_tokens) <= num_free_blocks();
  }
  CacheUse& use = sequence.cache;
  if (LookUp(sequence, chunk, use) > num_free_blocks()) {
    use = {};
    return false;
  }
  cache_->Hold(sequence.cache_root, match_, use.chain);
  for (const CacheNode node : match_.nodes) {
    const protocol::BlockId shared = cache_->block(node);
    blocks_->AddReference(shared);
    sequence.blocks.push_back(shared);
  }
  sequence.planned = sequence.computed = use.resume_length;
  use.written = use.resume_length;
  if (!sequence.cached_tokens) CountHit(sequence, use.last);
  return true;
}

// Counts the prompt at its first admission. `whole`: its tokens in whole blocks.
void GroupScheduler::CountHit(Sequence& sequence, uint32_t whole) {
  const CacheUse& use = sequence.cache;
  sequence.cached_tokens = use.resume_length;
  if (sequence.scores_prompt()) return;  // what it skips is no miss of the cache
  counters_.cache_queries += sequence.length();
  counters_.cache_hits += use.resume_length;
  const auto miss = [this](CacheMiss reason, uint32_t tokens) {
    counters_.cache_misses[static_cast<size_t>(reason)] += tokens;
  };
  const CacheMiss cold = match_.evicted    ? CacheMiss::kEvicted
                         : sequence.salted ? CacheMiss::kSalt
                                           : CacheMiss::kCold;
  miss(CacheMiss::kStateMissing, use.shared_length - use.resume_length);
  miss(cold, whole - use.shared_length);
  miss(CacheMiss::kAlignment, sequence.length() - whole);
}

// Checkpoints of a step: the one that a hit begins with, and the one that is left at the last block
// end while the slot still has its state.
void GroupScheduler::SaveState(Sequence& sequence, protocol::SequenceStep& step,
                               StepInFlight::Part& part) {
  CacheUse& use = sequence.cache;
  const uint32_t block = geometry_.block_tokens;
  if (sequence.fresh_slot && use.resume_length > 0 && use.exact_from == use.resume_length) {
    const CacheNode node = use.chain.nodes[use.resume_length / block - 1];
    step.restore_from = cache_->checkpoint(node);
    SKEIN_CHECK(step.restore_from) << "scheduler invariant 10: a hit has lost its checkpoint";
    // A transfer may write a checkpoint before the worker comes to the step.
    cache_->Pin(node);
    part.restored = node;
  }
  const uint32_t at = sequence.planned / block * block;
  const uint32_t written = std::exchange(use.written, sequence.planned + part.chunk + part.depth);
  const bool wanted = at == use.branch || at >= use.last;
  if (sequence.fresh_slot || sequence.alone() || !wanted || at <= use.saved ||
      at < use.exact_from || at > use.chain.nodes.size() * uint64_t{block} ||
      written > at + geometry_.max_draft_tokens) {
    return;
  }
  const CacheNode node = use.chain.nodes[at / block - 1];
  use.saved = at;
  if (cache_->checkpoint(node)) return cache_->Touch(node);
  if (geometry_.num_checkpoints == 0) return;
  // Of an answer that grows, the newest checkpoint is enough.
  if (at > use.last && use.rolling > 0 && cache_->HeldOnce(use.chain.nodes[use.rolling - 1])) {
    cache_->Detach(use.chain.nodes[use.rolling - 1]);
  }
  if (at > use.last) use.rolling = at / block;
  step.save_to = cache_->ReserveCheckpoint();
  part.saved = step.save_to;
  part.node = node;
}

void GroupScheduler::FinishStates(const StepInFlight::Part& part) {
  if (part.restored != kNoNode) cache_->Unpin(part.restored);
  if (part.saved) cache_->Attach(part.node, *part.saved);
}

// Lists the blocks that the sequence has filled.
void GroupScheduler::PublishBlocks(Sequence& sequence) {
  const uint32_t block = geometry_.block_tokens;
  CacheChain& chain = sequence.cache.chain;
  if (chain.root == kNoNode) return;
  // Drafts behind the end of the sequence were computed and are no tokens of it.
  const uint32_t filled = std::min(sequence.computed, sequence.length());
  while (!chain.closed && (chain.nodes.size() + 1) * uint64_t{block} <= filled) {
    const size_t index = chain.nodes.size();
    cache_->Publish(chain, std::span(sequence.tokens).subspan(index * block, block),
                    sequence.blocks[index]);
  }
}

}  // namespace skein::scheduler
