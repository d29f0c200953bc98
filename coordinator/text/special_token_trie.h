// Finds added tokens in text: the longest at each position, from left to right.
// Owns: the byte trie.
// Thread: const after loading.
// Must never: match inside text of users unless the caller asked for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>

namespace skein::coordinator {

class SpecialTokenTrie {
 public:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
    int32_t id = 0;
  };

  // Adds a token of at least one byte. False when the same text was added before.
  bool Add(std::string_view text, int32_t id);

  // The first match that begins at or after `from`.
  std::optional<Match> FindFirst(std::string_view text, size_t from) const;

 private:
  std::unordered_map<uint64_t, uint32_t> next_;  // (node, byte) -> node; node 0 is the root
  std::unordered_map<uint32_t, int32_t> id_of_node_;
  uint32_t num_nodes_ = 1;
};

}  // namespace skein::coordinator
