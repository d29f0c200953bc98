// What a rank holds beyond the sequences that run: full blocks by the exact tokens that led to
// them, and copies of slot state at their ends (checkpoints). Pure, single owner. A block is found
// by its parent and its own tokens, compared one by one; a hash only says where to look. Holds one
// reference on every block that it lists. Never walks a hash table, so equal histories give equal
// plans.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "protocol/base/ids.h"
#include "scheduler/block_pool.h"
#include "scheduler/free_ids.h"

namespace skein::scheduler {

// A block of the cache, or the root of a tenant. Valid while it is held.
using CacheNode = uint32_t;
inline constexpr CacheNode kNoNode = ~CacheNode{0};

// The blocks that a sequence shares with the cache: from its root, block by block. It holds them.
struct CacheChain {
  CacheNode root = kNoNode;
  std::vector<CacheNode> nodes;
  bool closed = false;  // another sequence lists what this one computes
};

// Where to look for a block: a hash of its tokens, begun with its parent's. It need not be good for
// what is found to be right.
using BlockHash = uint64_t (*)(uint64_t parent, std::span<const int32_t> tokens);
uint64_t HashTokens(uint64_t parent, std::span<const int32_t> tokens);

class PrefixCache {
 public:
  // `num_checkpoints`: spare slots, numbered from `first_checkpoint`. `pool` outlives the cache.
  PrefixCache(BlockPool& pool, uint32_t block_tokens, uint32_t first_checkpoint,
              uint32_t num_checkpoints, BlockHash hash = &HashTokens);

  // What is held of a prompt under a root.
  struct Match {
    std::vector<CacheNode> nodes;  // whole blocks from the first on
    size_t with_state = 0;         // blocks up to the last one with a checkpoint
    size_t num_idle = 0;           // of the nodes, those that could be evicted
    bool evicted = false;          // the block after them was here and was evicted
  };
  // Overwrites `match`, whose memory the caller keeps. At most `blocks_max` blocks.
  void Find(const std::string& root, std::span<const int32_t> tokens, size_t blocks_max,
            Match& match) const;

  // Holds what was found for a sequence until Release.
  void Hold(const std::string& root, const Match& match, CacheChain& chain);
  void Release(CacheChain& chain);
  // Lists a block that was computed: the next one of an open chain. If the same tokens are listed
  // with another block, `block` takes its place; if a sequence has that other block, the chain is
  // closed and what it computes stays its own: to hold both blocks could take more than there are.
  void Publish(CacheChain& chain, std::span<const int32_t> tokens, protocol::BlockId block);
  // Holds the next block of an open chain if it is listed. False: it is not.
  bool Follow(CacheChain& chain, std::span<const int32_t> tokens);

  // Blocks that eviction can free.
  uint32_t num_idle() const { return num_idle_; }
  // Evicts the block that was used least recently and has none after it. False if none is idle.
  bool EvictOne();

  // A spare slot for a checkpoint; the one used least recently gives its own. Nothing when all are
  // being written.
  std::optional<protocol::SlotId> ReserveCheckpoint();
  // The state at the end of the block is in the slot; of two, the first one stays.
  void Attach(CacheNode node, protocol::SlotId slot);
  // The slot was reserved, and nothing came of it.
  void Unreserve(protocol::SlotId slot);
  // The checkpoint of the block stays as it is until it is unpinned as often; it has one.
  void Pin(CacheNode node);
  void Unpin(CacheNode node);
  // Gives up the checkpoint of a block, if it has one.
  void Detach(CacheNode node);
  std::optional<protocol::SlotId> checkpoint(CacheNode node) const;
  // The checkpoint is used: it is the last to be evicted.
  void Touch(CacheNode node);
  protocol::BlockId block(CacheNode node) const { return nodes_[node].block; }
  // Whether no sequence but one holds the block.
  bool HeldOnce(CacheNode node) const { return nodes_[node].holders == 1; }

  // Counts for metrics and audits.
  uint32_t num_blocks() const { return num_blocks_; }
  // Listings of blocks that another one lists too: always 0.
  uint32_t num_doubled() const { return num_doubled_; }
  uint32_t num_checkpoints() const { return static_cast<uint32_t>(by_use_.size()) + num_pinned_; }
  uint32_t num_free_checkpoints() const { return free_checkpoints_.size(); }
  uint32_t num_reserved() const { return num_reserved_; }
  uint64_t num_evictions() const { return num_evictions_; }
  // References that sequences have on listed blocks, in all.
  uint64_t num_holds() const { return num_holds_; }
  // Every listed block, in no order that matters.
  std::vector<protocol::BlockId> Blocks() const;

 private:
  // What a search reads comes first.
  struct Node {
    CacheNode parent = kNoNode;
    CacheNode next = kNoNode;  // in its bucket
    uint64_t hash = 0;
    protocol::BlockId block;  // of a root: none
    uint32_t holders = 0;     // chains with the node
    uint32_t children = 0;    // nodes after it
    bool used = false;
    std::optional<uint32_t> checkpoint;
    uint64_t checkpoint_used = 0;
    uint32_t pins = 0;  // of the checkpoint
    uint64_t idle_since = 0;
    const std::string* root = nullptr;  // of a root: its key among roots_
  };
  // Blocks whose memory a search asks for before it looks at the first of them.
  static constexpr size_t kAhead = 16;

  CacheNode FindRoot(const std::string& root) const;
  uint64_t RootHash(const std::string& root) const;
  std::span<const int32_t> TokensOf(const Node& node) const;
  void Prefetch(std::span<const uint64_t> hashes) const;
  CacheNode Child(CacheNode parent, uint64_t hash, std::span<const int32_t> tokens) const;
  CacheNode NewNode();
  void Free(CacheNode node);
  void List(CacheNode node, std::span<const int32_t> tokens, protocol::BlockId block);
  void Unlist(const Node& node);
  void Link(CacheNode node);
  void Unlink(CacheNode node);
  void AddHolder(CacheNode node);
  void DropHolder(CacheNode node);
  // Lists the node among those that may be evicted, if it is one.
  void Offer(CacheNode node);
  void FreeRoot(CacheNode node);

  BlockPool& pool_;
  const uint32_t block_tokens_;
  const uint32_t first_checkpoint_;
  const BlockHash hash_;
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;   // of listed blocks, by block
  std::vector<uint32_t> listed_;  // listings, by block: 0 or 1
  std::vector<CacheNode> unused_;
  std::vector<CacheNode> buckets_;  // heads, by hash
  std::map<std::string, CacheNode> roots_;
  std::set<std::pair<uint64_t, CacheNode>> leaves_;  // idle, nothing after them, by time of use
  std::set<std::pair<uint64_t, CacheNode>> by_use_;  // with one that is not pinned, by time of use
  FreeIds free_checkpoints_;
  std::vector<uint64_t> evicted_;  // hashes of blocks that went, for the reasons of misses
  uint64_t clock_ = 0;
  uint32_t num_blocks_ = 0;
  uint32_t num_doubled_ = 0;
  uint32_t num_idle_ = 0;
  uint32_t num_reserved_ = 0;
  uint32_t num_pinned_ = 0;  // checkpoints
  uint64_t num_evictions_ = 0;
  uint64_t num_holds_ = 0;
};

}  // namespace skein::scheduler
