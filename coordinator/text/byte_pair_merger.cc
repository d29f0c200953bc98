// Byte-pair merging with a scan for short words and a heap for long ones.
// Thread: const after loading.
// Must never: take time that grows with the square of the input.
#include "coordinator/text/byte_pair_merger.h"

#include <algorithm>
#include <cstring>
#include <queue>
#include <string>
#include <utility>

namespace skein::coordinator {
namespace {

constexpr size_t kShortBytesMax = 48;

uint64_t PairKey(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

// `count` bytes, at most eight, as a number.
uint64_t LoadBytes(const char* from, size_t count) {
  uint64_t value = 0;
  std::memcpy(&value, from, count);
  return value;
}

// One symbol of the linked list; `id` is -1 once it was merged into its left neighbour.
struct Symbol {
  int32_t id;
  int32_t previous;
  int32_t next;
};

// A merge that was possible when it was pushed.
struct Candidate {
  int32_t rank;
  int32_t position;
  int32_t left;
  int32_t right;
  bool operator<(const Candidate& other) const {  // the queue gives the largest first
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

}  // namespace

size_t BytePairMerger::WordHash::operator()(std::string_view word) const {
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15u;
  uint64_t hash = word.size() * kMultiplier;
  const char* at = word.data();
  size_t left = word.size();
  if (left < 8) {
    hash = (hash ^ LoadBytes(at, left)) * kMultiplier;
    return static_cast<size_t>(hash ^ (hash >> 32));
  }
  for (; left > 8; at += 8, left -= 8) {
    hash = (hash ^ LoadBytes(at, 8)) * kMultiplier;
    hash ^= hash >> 29;
  }
  hash = (hash ^ LoadBytes(at + left - 8, 8)) * kMultiplier;
  return static_cast<size_t>(hash ^ (hash >> 32));
}

bool BytePairMerger::CoversAllBytes() const {
  return std::find(byte_ids_.begin(), byte_ids_.end(), -1) == byte_ids_.end();
}

absl::Status BytePairMerger::AddMerge(int32_t left, int32_t right, int32_t result) {
  const int32_t rank = static_cast<int32_t>(result_of_rank_.size());
  const auto [at, inserted] = rank_of_pair_.emplace(PairKey(left, right), rank);
  if (!inserted) {
    return absl::InvalidArgumentError("merge " + std::to_string(rank) + " repeats merge " +
                                      std::to_string(at->second) + "; each pair may occur once");
  }
  result_of_rank_.push_back(result);
  return absl::OkStatus();
}

int32_t BytePairMerger::FindRank(int32_t left, int32_t right) const {
  const auto at = rank_of_pair_.find(PairKey(left, right));
  return at == rank_of_pair_.end() ? -1 : at->second;
}

int32_t BytePairMerger::FindByteRank(uint8_t left, uint8_t right) const {
  if (rank_of_bytes_.empty()) return FindRank(byte_ids_[left], byte_ids_[right]);
  return rank_of_bytes_[size_t{256} * left + right];
}

void BytePairMerger::IndexWords(std::span<const std::string_view> tokens) {
  std::vector<int32_t> ranks(size_t{256} * 256);
  for (size_t pair = 0; pair < ranks.size(); ++pair) {
    ranks[pair] = FindRank(byte_ids_[pair / 256], byte_ids_[pair % 256]);
  }
  rank_of_bytes_ = std::move(ranks);
  words_.reserve(tokens.size());
  std::vector<int32_t> ids;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty()) continue;
    ids.clear();
    AppendMerged(tokens[id], &ids);
    if (ids.size() != 1 || ids.front() != static_cast<int32_t>(id)) continue;
    words_.emplace(tokens[id], static_cast<int32_t>(id));
    word_bytes_max_ = std::max(word_bytes_max_, tokens[id].size());
  }
}

void BytePairMerger::Append(std::string_view bytes, std::vector<int32_t>* ids) const {
  if (bytes.size() == 1) return ids->push_back(byte_ids_[static_cast<uint8_t>(bytes.front())]);
  if (bytes.size() <= word_bytes_max_) {
    const auto word = words_.find(bytes);
    if (word != words_.end()) {
      ids->push_back(word->second);
      return;
    }
  }
  AppendMerged(bytes, ids);
}

void BytePairMerger::AppendMerged(std::string_view bytes, std::vector<int32_t>* ids) const {
  if (bytes.size() <= kShortBytesMax) {
    AppendShort(bytes, ids);
  } else {
    AppendLong(bytes, ids);
  }
}

void BytePairMerger::AppendShort(std::string_view bytes, std::vector<int32_t>* ids) const {
  std::array<int32_t, kShortBytesMax> id;
  std::array<int32_t, kShortBytesMax> rank;  // of the pair that starts here, -1: none
  size_t count = bytes.size();
  for (size_t i = 0; i < count; ++i) id[i] = byte_ids_[static_cast<uint8_t>(bytes[i])];
  for (size_t i = 0; i + 1 < count; ++i) {
    rank[i] = FindByteRank(static_cast<uint8_t>(bytes[i]), static_cast<uint8_t>(bytes[i + 1]));
  }
  while (count > 1) {
    size_t best = count;
    for (size_t i = 0; i + 1 < count; ++i) {
      if (rank[i] >= 0 && (best == count || rank[i] < rank[best])) best = i;
    }
    if (best == count) break;
    id[best] = result_of_rank_[static_cast<size_t>(rank[best])];
    for (size_t i = best + 1; i + 1 < count; ++i) {
      id[i] = id[i + 1];
      rank[i] = rank[i + 1];
    }
    --count;
    if (best + 1 < count) rank[best] = FindRank(id[best], id[best + 1]);
    if (best > 0) rank[best - 1] = FindRank(id[best - 1], id[best]);
  }
  ids->insert(ids->end(), id.begin(), id.begin() + static_cast<std::ptrdiff_t>(count));
}

void BytePairMerger::AppendLong(std::string_view bytes, std::vector<int32_t>* ids) const {
  const int32_t count = static_cast<int32_t>(bytes.size());
  std::vector<Symbol> symbols(bytes.size());
  const auto at = [&](int32_t i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };
  for (int32_t i = 0; i < count; ++i) {
    at(i) = {byte_ids_[static_cast<uint8_t>(bytes[static_cast<size_t>(i)])], i - 1,
             i + 1 < count ? i + 1 : -1};
  }
  std::priority_queue<Candidate> queue;
  const auto push = [&](int32_t i) {
    if (i < 0 || at(i).next < 0) return;
    const int32_t right = at(at(i).next).id;
    const int32_t rank = FindRank(at(i).id, right);
    if (rank >= 0) queue.push({rank, i, at(i).id, right});
  };
  for (int32_t i = 0; i < count; ++i) push(i);
  while (!queue.empty()) {
    const Candidate candidate = queue.top();
    queue.pop();
    Symbol& symbol = at(candidate.position);
    if (symbol.id != candidate.left || symbol.next < 0) continue;
    Symbol& merged = at(symbol.next);
    if (merged.id != candidate.right) continue;
    symbol.id = result_of_rank_[static_cast<size_t>(candidate.rank)];
    symbol.next = merged.next;
    merged.id = -1;
    if (symbol.next >= 0) at(symbol.next).previous = candidate.position;
    push(symbol.previous);
    push(candidate.position);
  }
  for (int32_t i = 0; i >= 0 && i < count; i = at(i).next) ids->push_back(at(i).id);
}

}  // namespace skein::coordinator
