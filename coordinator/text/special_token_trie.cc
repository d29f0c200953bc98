// A byte trie in two hash maps.
// Thread: const after loading.
// Must never: look further than the longest token.
#include "coordinator/text/special_token_trie.h"

namespace skein::coordinator {
namespace {

uint64_t EdgeKey(uint32_t node, char byte) {
  return (static_cast<uint64_t>(node) << 8) | static_cast<uint8_t>(byte);
}

}  // namespace

bool SpecialTokenTrie::Add(std::string_view text, int32_t id) {
  uint32_t node = 0;
  for (char byte : text) {
    const auto [at, inserted] = next_.emplace(EdgeKey(node, byte), num_nodes_);
    if (inserted) ++num_nodes_;
    node = at->second;
  }
  return id_of_node_.emplace(node, id).second;
}

std::optional<SpecialTokenTrie::Match> SpecialTokenTrie::FindFirst(std::string_view text,
                                                                   size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    std::optional<Match> longest;
    uint32_t node = 0;
    for (size_t at = begin; at < text.size(); ++at) {
      const auto edge = next_.find(EdgeKey(node, text[at]));
      if (edge == next_.end()) break;
      node = edge->second;
      const auto id = id_of_node_.find(node);
      if (id != id_of_node_.end()) longest = Match{begin, at + 1, id->second};
    }
    if (longest.has_value()) return longest;
  }
  return std::nullopt;
}

}  // namespace skein::coordinator
