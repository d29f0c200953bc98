// The part of GroupScheduler that lends cache blocks to other engines and takes theirs: both sides
// go through the prefix cache, so that what arrives is a hit like any other.
#include <utility>

#include "protocol/base/log.h"
#include "scheduler/group_scheduler.h"

namespace skein::scheduler {

// Tokens before the latest checkpoint of the sequence that is held here.
uint32_t GroupScheduler::Lendable(const Sequence& sequence) {
  if (cache_ == nullptr || sequence.alone()) return 0;
  cache_->Find(sequence.cache_root, sequence.tokens,
               (sequence.length() - 1) / geometry_.block_tokens, match_);
  return static_cast<uint32_t>(match_.with_state) * geometry_.block_tokens;
}

const Loan& GroupScheduler::Lend(protocol::TransferId transfer, const Sequence& sequence) {
  const uint32_t position = Lendable(sequence);
  SKEIN_CHECK(position > 0 && !loans_.contains(transfer)) << "nothing is there to be lent";
  match_.nodes.resize(match_.with_state);
  Loan& loan = loans_[transfer];
  cache_->Hold(sequence.cache_root, match_, loan.chain);
  for (const CacheNode node : loan.chain.nodes) {
    const protocol::BlockId block = cache_->block(node);
    // With a reference beside the cache's no other block takes its place there.
    blocks_->AddReference(block);
    loan.blocks.push_back(block);
  }
  loan.checkpoint = *cache_->checkpoint(loan.chain.nodes.back());
  cache_->Pin(loan.chain.nodes.back());
  return loan;
}

void GroupScheduler::EndLoan(protocol::TransferId transfer) {
  const auto found = loans_.find(transfer);
  if (found == loans_.end()) return;
  Loan loan = std::move(found->second);
  loans_.erase(found);
  cache_->Unpin(loan.chain.nodes.back());
  cache_->Release(loan.chain);
  blocks_->Release(loan.blocks);
}

Expectation GroupScheduler::Expect(protocol::TransferId transfer, const Sequence& sequence,
                                   uint32_t position) {
  if (cache_ == nullptr || position % geometry_.block_tokens != 0) return Expectation::kNoRoom;
  const uint32_t count = position / geometry_.block_tokens;
  cache_->Find(sequence.cache_root, sequence.tokens, count, match_);
  if (match_.with_state == count) return Expectation::kHere;
  const uint32_t missing = count - static_cast<uint32_t>(match_.nodes.size());
  Arrival arrival;
  cache_->Hold(sequence.cache_root, match_, arrival.chain);
  // Nothing is evicted for what finds no room after all.
  const std::optional<protocol::SlotId> checkpoint =
      missing <= num_free_blocks() ? cache_->ReserveCheckpoint() : std::nullopt;
  if (!checkpoint) {
    cache_->Release(arrival.chain);
    return Expectation::kNoRoom;
  }
  SKEIN_CHECK(TakeBlocks(missing, arrival.blocks)) << "blocks that were counted are not free";
  arrival.checkpoint = *checkpoint;
  arrival.tokens.assign(sequence.tokens.begin(), sequence.tokens.begin() + position);
  arrivals_.emplace(transfer, std::move(arrival));
  return Expectation::kComes;
}

// What came is listed; what did not is free.
void GroupScheduler::EndArrival(protocol::TransferId transfer, bool arrived) {
  const auto found = arrivals_.find(transfer);
  if (found == arrivals_.end()) return;
  Arrival arrival = std::move(found->second);
  arrivals_.erase(found);
  const uint32_t block = geometry_.block_tokens;
  const size_t front = arrival.chain.nodes.size();
  for (size_t i = 0; arrived && i < arrival.blocks.size(); ++i) {
    const auto tokens = std::span(arrival.tokens).subspan((front + i) * block, block);
    // What others listed meanwhile is the same, and its own copy is of no use.
    if (!cache_->Follow(arrival.chain, tokens)) {
      cache_->Publish(arrival.chain, tokens, arrival.blocks[i]);
    }
  }
  if (arrived) {
    cache_->Attach(arrival.chain.nodes.back(), arrival.checkpoint);
  } else {
    cache_->Unreserve(arrival.checkpoint);
  }
  blocks_->Release(arrival.blocks);
  cache_->Release(arrival.chain);
}

// The sequence leaves with its tokens; its cache stays until it is evicted.
void GroupScheduler::Depart(Sequence& sequence, MoveCause cause) {
  Unlist(sequence);
  if (cause == MoveCause::kDrain) return MoveOut(sequence);
  Requeue(sequence);
}

}  // namespace skein::scheduler
