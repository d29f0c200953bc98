// Byte-pair merging: bytes of one pre-token to token ids.
// Owns: the byte ids, the merge table and the word index of one vocabulary.
// Thread: const after loading; Append may run on many threads.
// Must never: take time that grows with the square of the input, or give a whole word an id that
// its merges would not reach.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

namespace skein::coordinator {

class BytePairMerger {
 public:
  BytePairMerger() { byte_ids_.fill(-1); }

  void SetByteId(uint8_t byte, int32_t id) { byte_ids_[byte] = id; }
  // True when each of the 256 bytes has an id.
  bool CoversAllBytes() const;

  // Adds the next merge; merges added first are applied first. InvalidArgument when the pair was
  // added before.
  absl::Status AddMerge(int32_t left, int32_t right, int32_t result);

  // Ends loading: from now on the words among `tokens` (index: id; empty: no word) that merge into
  // their own id are looked up as a whole. The bytes must outlive this object.
  void IndexWords(std::span<const std::string_view> tokens);

  // Appends the ids of `bytes`: at every point the earliest merge, leftmost, is applied.
  void Append(std::string_view bytes, std::vector<int32_t>* ids) const;

 private:
  // Hash of a pair key: one multiplication, high bits folded down.
  struct PairHash {
    size_t operator()(uint64_t key) const {
      const uint64_t product = key * 0x9E3779B97F4A7C15u;
      return static_cast<size_t>(product ^ (product >> 32));
    }
  };

  // Hash of a word by eight bytes at a time; its last bytes are read twice where they overlap.
  struct WordHash {
    size_t operator()(std::string_view word) const;
  };

  void AppendMerged(std::string_view bytes, std::vector<int32_t>* ids) const;
  void AppendShort(std::string_view bytes, std::vector<int32_t>* ids) const;
  void AppendLong(std::string_view bytes, std::vector<int32_t>* ids) const;
  // Rank of the merge of two ids, -1 when there is none.
  int32_t FindRank(int32_t left, int32_t right) const;
  // The same for two bytes, from a table once loading has ended.
  int32_t FindByteRank(uint8_t left, uint8_t right) const;

  std::array<int32_t, 256> byte_ids_;
  absl::flat_hash_map<uint64_t, int32_t, PairHash> rank_of_pair_;
  std::vector<int32_t> result_of_rank_;
  std::vector<int32_t> rank_of_bytes_;  // [256 * left + right]
  absl::flat_hash_map<std::string_view, int32_t, WordHash, std::equal_to<>> words_;
  size_t word_bytes_max_ = 0;
};

}  // namespace skein::coordinator
