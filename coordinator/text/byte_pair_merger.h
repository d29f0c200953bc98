// Byte-pair merging: bytes of one pre-token to token ids.
// Owns: the byte ids and the merge table of one vocabulary.
// Thread: const after loading; Append may run on many threads.
// Must never: take time that grows with the square of the input.
#pragma once

#include <array>
#include <cstdint>
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

  // Appends the ids of `bytes`: at every point the earliest merge, leftmost, is applied.
  void Append(std::string_view bytes, std::vector<int32_t>* ids) const;

 private:
  void AppendShort(std::string_view bytes, std::vector<int32_t>* ids) const;
  void AppendLong(std::string_view bytes, std::vector<int32_t>* ids) const;
  // Rank of the merge of two ids, -1 when there is none.
  int32_t FindRank(int32_t left, int32_t right) const;

  std::array<int32_t, 256> byte_ids_;
  absl::flat_hash_map<uint64_t, int32_t> rank_of_pair_;
  std::vector<int32_t> result_of_rank_;
};

}  // namespace skein::coordinator
