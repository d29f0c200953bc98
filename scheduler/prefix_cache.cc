#include "scheduler/prefix_cache.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "protocol/base/log.h"

namespace skein::scheduler {
namespace {

constexpr uint64_t kOdd = 0x9e3779b97f4a7c15ULL;

uint64_t Mix(uint64_t x) {
  x ^= x >> 32;
  x *= kOdd;
  x ^= x >> 29;
  return x;
}

}  // namespace

// Four lanes, so that the multiplications of one do not wait for those of another.
uint64_t HashTokens(uint64_t parent, std::span<const int32_t> tokens) {
  constexpr size_t kLanes = 4;
  std::array<uint64_t, kLanes> lanes = {parent, ~parent, parent + kOdd, ~parent - kOdd};
  size_t i = 0;
  for (; i + 2 * kLanes <= tokens.size(); i += 2 * kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const uint64_t low = static_cast<uint32_t>(tokens[i + 2 * lane]);
      const uint64_t high = static_cast<uint32_t>(tokens[i + 2 * lane + 1]);
      lanes[lane] = Mix(lanes[lane] ^ (low | high << 32));
    }
  }
  uint64_t hash = Mix(parent + tokens.size() + 1);
  for (; i < tokens.size(); ++i) hash = Mix(hash ^ static_cast<uint32_t>(tokens[i]));
  for (const uint64_t lane : lanes) hash = Mix(hash ^ lane);
  return hash;
}

PrefixCache::PrefixCache(BlockPool& pool, uint32_t block_tokens, uint32_t first_checkpoint,
                         uint32_t num_checkpoints, BlockHash hash)
    : pool_(pool),
      block_tokens_(block_tokens),
      first_checkpoint_(first_checkpoint),
      hash_(hash),
      tokens_(size_t{pool.num_blocks()} * block_tokens),
      listed_(pool.num_blocks(), 0),
      buckets_(std::bit_ceil(std::max<size_t>(pool.num_blocks(), 1) * 2), kNoNode),
      free_checkpoints_(num_checkpoints),
      evicted_(buckets_.size(), 0) {}

CacheNode PrefixCache::FindRoot(const std::string& root) const {
  const auto found = roots_.find(root);
  return found == roots_.end() ? kNoNode : found->second;
}

// A root that is gone had the hash that it would get again.
uint64_t PrefixCache::RootHash(const std::string& root) const {
  uint64_t hash = HashTokens(0, {});
  for (const char c : root) hash = Mix(hash ^ static_cast<unsigned char>(c));
  return hash;
}

std::span<const int32_t> PrefixCache::TokensOf(const Node& node) const {
  return std::span(tokens_).subspan(size_t{node.block.value()} * block_tokens_, block_tokens_);
}

CacheNode PrefixCache::Child(CacheNode parent, uint64_t hash,
                             std::span<const int32_t> tokens) const {
  CacheNode at = buckets_[hash & (buckets_.size() - 1)];
  for (; at != kNoNode; at = nodes_[at].next) {
    const Node& node = nodes_[at];
    if (node.parent != parent || node.hash != hash) continue;
    const std::span<const int32_t> held = TokensOf(node);
    if (std::equal(tokens.begin(), tokens.end(), held.begin(), held.end())) return at;
  }
  return kNoNode;
}

// A hundred thousand blocks do not fit into the caches of a processor: asks for all that the next
// ones of a search will read, each kind when what leads to it has had time to arrive.
void PrefixCache::Prefetch(std::span<const uint64_t> hashes) const {
  const auto bucket = [this](uint64_t hash) { return &buckets_[hash & (buckets_.size() - 1)]; };
  for (const uint64_t hash : hashes) __builtin_prefetch(bucket(hash));
  for (const uint64_t hash : hashes) {
    if (*bucket(hash) != kNoNode) __builtin_prefetch(&nodes_[*bucket(hash)]);
  }
  constexpr size_t kLine = 64 / sizeof(int32_t);
  for (const uint64_t hash : hashes) {
    const CacheNode node = *bucket(hash);
    if (node == kNoNode) continue;
    const std::span<const int32_t> tokens = TokensOf(nodes_[node]);
    for (size_t i = 0; i < tokens.size(); i += kLine) __builtin_prefetch(&tokens[i]);
  }
}

void PrefixCache::Find(const std::string& root, std::span<const int32_t> tokens, size_t blocks_max,
                       Match& match) const {
  match.nodes.clear();
  match.with_state = 0;
  match.num_idle = 0;
  match.evicted = false;
  CacheNode at = FindRoot(root);
  uint64_t hash = at == kNoNode ? RootHash(root) : nodes_[at].hash;
  std::array<uint64_t, kAhead> hashes;
  for (size_t first = 0; first < blocks_max; first += kAhead) {
    const size_t count = std::min(kAhead, blocks_max - first);
    const auto block = [&](size_t i) {
      return tokens.subspan((first + i) * block_tokens_, block_tokens_);
    };
    for (size_t i = 0; i < count; ++i) hashes[i] = hash = hash_(hash, block(i));
    if (at != kNoNode) Prefetch(std::span(hashes).first(count));
    for (size_t i = 0; i < count; ++i) {
      at = at == kNoNode ? kNoNode : Child(at, hashes[i], block(i));
      if (at == kNoNode) {
        match.evicted = evicted_[hashes[i] & (evicted_.size() - 1)] == hashes[i];
        return;
      }
      match.nodes.push_back(at);
      if (nodes_[at].checkpoint) match.with_state = match.nodes.size();
      match.num_idle += nodes_[at].holders == 0 ? 1 : 0;
    }
  }
}

CacheNode PrefixCache::NewNode() {
  if (unused_.empty()) {
    nodes_.emplace_back();
    nodes_.back().used = true;
    return static_cast<CacheNode>(nodes_.size() - 1);
  }
  const CacheNode node = unused_.back();
  unused_.pop_back();
  nodes_[node] = Node{};
  nodes_[node].used = true;
  return node;
}

void PrefixCache::Free(CacheNode node) {
  nodes_[node] = Node{};
  unused_.push_back(node);
}

// The node names the block, with these tokens.
void PrefixCache::List(CacheNode node, std::span<const int32_t> tokens, protocol::BlockId block) {
  nodes_[node].block = block;
  if (listed_[block.value()]++ > 0) ++num_doubled_;
  std::copy(tokens.begin(), tokens.end(),
            tokens_.begin() + static_cast<std::ptrdiff_t>(block.value()) * block_tokens_);
  pool_.AddReference(block);
}

void PrefixCache::Unlist(const Node& node) {
  if (--listed_[node.block.value()] > 0) --num_doubled_;
  pool_.Release({node.block});
}

void PrefixCache::Link(CacheNode node) {
  CacheNode& head = buckets_[nodes_[node].hash & (buckets_.size() - 1)];
  nodes_[node].next = head;
  head = node;
}

void PrefixCache::Unlink(CacheNode node) {
  CacheNode* at = &buckets_[nodes_[node].hash & (buckets_.size() - 1)];
  while (*at != node) at = &nodes_[*at].next;
  *at = nodes_[node].next;
}

void PrefixCache::AddHolder(CacheNode node) {
  Node& held = nodes_[node];
  ++num_holds_;
  if (held.holders++ > 0 || held.root != nullptr) return;
  --num_idle_;
  if (held.children == 0) leaves_.erase({held.idle_since, node});
}

void PrefixCache::DropHolder(CacheNode node) {
  Node& held = nodes_[node];
  SKEIN_CHECK(held.used && held.holders > 0)
      << "scheduler invariant 10: cache node " << node << " is released without a holder";
  --num_holds_;
  if (--held.holders > 0) return;
  if (held.root != nullptr) return FreeRoot(node);
  ++num_idle_;
  held.idle_since = ++clock_;
  Offer(node);
}

void PrefixCache::Offer(CacheNode node) {
  const Node& it = nodes_[node];
  if (it.root != nullptr) return FreeRoot(node);
  if (it.holders == 0 && it.children == 0) leaves_.insert({it.idle_since, node});
}

void PrefixCache::FreeRoot(CacheNode node) {
  if (nodes_[node].holders > 0 || nodes_[node].children > 0) return;
  roots_.erase(roots_.find(*nodes_[node].root));
  Free(node);
}

void PrefixCache::Hold(const std::string& root, const Match& match, CacheChain& chain) {
  chain.root = FindRoot(root);
  if (chain.root == kNoNode) {
    chain.root = NewNode();
    Node& made = nodes_[chain.root];
    made.root = &roots_.emplace(root, chain.root).first->first;
    made.hash = RootHash(root);
  }
  AddHolder(chain.root);
  chain.nodes = match.nodes;
  for (const CacheNode node : chain.nodes) AddHolder(node);
}

void PrefixCache::Release(CacheChain& chain) {
  // The last block first: it is the first to be evicted.
  for (size_t i = chain.nodes.size(); i-- > 0;) DropHolder(chain.nodes[i]);
  if (chain.root != kNoNode) DropHolder(chain.root);
  chain = {};
}

bool PrefixCache::Follow(CacheChain& chain, std::span<const int32_t> tokens) {
  const CacheNode parent = chain.nodes.empty() ? chain.root : chain.nodes.back();
  const CacheNode node = Child(parent, hash_(nodes_[parent].hash, tokens), tokens);
  if (node == kNoNode) return false;
  AddHolder(node);
  chain.nodes.push_back(node);
  return true;
}

void PrefixCache::Publish(CacheChain& chain, std::span<const int32_t> tokens,
                          protocol::BlockId block) {
  const CacheNode parent = chain.nodes.empty() ? chain.root : chain.nodes.back();
  const uint64_t hash = hash_(nodes_[parent].hash, tokens);
  CacheNode node = Child(parent, hash, tokens);
  if (node == kNoNode) {
    node = NewNode();
    Node& made = nodes_[node];
    made.parent = parent;
    made.hash = hash;
    List(node, tokens, block);
    Link(node);
    ++nodes_[parent].children;
    ++num_blocks_;
    ++num_idle_;  // until it is held, below
  } else if (pool_.references(nodes_[node].block) > 1) {
    chain.closed = true;
    return;
  } else {
    const Node before = nodes_[node];
    List(node, tokens, block);
    Unlist(before);
  }
  AddHolder(node);
  chain.nodes.push_back(node);
}

bool PrefixCache::EvictOne() {
  if (leaves_.empty()) return false;
  const CacheNode node = leaves_.begin()->second;
  leaves_.erase(leaves_.begin());
  Detach(node);
  const CacheNode parent = nodes_[node].parent;
  evicted_[nodes_[node].hash & (evicted_.size() - 1)] = nodes_[node].hash;
  Unlink(node);
  Unlist(nodes_[node]);
  Free(node);
  --num_blocks_;
  --num_idle_;
  ++num_evictions_;
  --nodes_[parent].children;
  Offer(parent);
  return true;
}

std::optional<protocol::SlotId> PrefixCache::ReserveCheckpoint() {
  if (free_checkpoints_.empty()) {
    if (by_use_.empty()) return std::nullopt;
    Detach(by_use_.begin()->second);
  }
  ++num_reserved_;
  return protocol::SlotId(first_checkpoint_ + free_checkpoints_.TakeLowest());
}

void PrefixCache::Attach(CacheNode node, protocol::SlotId slot) {
  --num_reserved_;
  const uint32_t id = slot.value() - first_checkpoint_;
  if (nodes_[node].checkpoint) return free_checkpoints_.Insert(id);
  nodes_[node].checkpoint = id;
  nodes_[node].checkpoint_used = ++clock_;
  by_use_.insert({clock_, node});
}

void PrefixCache::Unreserve(protocol::SlotId slot) {
  --num_reserved_;
  free_checkpoints_.Insert(slot.value() - first_checkpoint_);
}

void PrefixCache::Pin(CacheNode node) {
  Node& it = nodes_[node];
  if (it.pins++ > 0) return;
  by_use_.erase({it.checkpoint_used, node});
  ++num_pinned_;
}

void PrefixCache::Unpin(CacheNode node) {
  Node& it = nodes_[node];
  if (--it.pins > 0) return;
  --num_pinned_;
  it.checkpoint_used = ++clock_;
  by_use_.insert({clock_, node});
}

void PrefixCache::Detach(CacheNode node) {
  Node& it = nodes_[node];
  if (!it.checkpoint) return;
  SKEIN_CHECK(it.pins == 0) << "scheduler invariant 13: a checkpoint goes while it is in use";
  by_use_.erase({it.checkpoint_used, node});
  free_checkpoints_.Insert(*it.checkpoint);
  it.checkpoint.reset();
}

std::optional<protocol::SlotId> PrefixCache::checkpoint(CacheNode node) const {
  const std::optional<uint32_t> id = nodes_[node].checkpoint;
  if (!id) return std::nullopt;
  return protocol::SlotId(first_checkpoint_ + *id);
}

void PrefixCache::Touch(CacheNode node) {
  Node& it = nodes_[node];
  if (!it.checkpoint || it.pins > 0) return;
  by_use_.erase({it.checkpoint_used, node});
  it.checkpoint_used = ++clock_;
  by_use_.insert({clock_, node});
}

std::vector<protocol::BlockId> PrefixCache::Blocks() const {
  std::vector<protocol::BlockId> blocks;
  for (const Node& node : nodes_) {
    if (node.used && node.root == nullptr) blocks.push_back(node.block);
  }
  return blocks;
}

}  // namespace skein::scheduler
