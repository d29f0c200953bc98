// Built from the sorted tokens.
// Thread: const after construction.
// Must never: hold a special token.
#include "coordinator/text/token_trie.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "protocol/base/log.h"

namespace skein::coordinator {

TokenTrie::TokenTrie(const Tokenizer& tokenizer, int32_t vocab_size)
    : mask_((static_cast<size_t>(vocab_size) + 31) / 32) {
  std::vector<std::pair<std::string_view, int32_t>> tokens;
  for (int32_t id = 0; id < std::min(vocab_size, tokenizer.vocab_size()); ++id) {
    const std::string_view bytes = tokenizer.TokenBytes(id);
    if (bytes.empty() || tokenizer.IsSpecial(id)) continue;
    SKEIN_CHECK(bytes.size() <= UINT16_MAX) << "token " << id << " is too long";
    tokens.emplace_back(bytes, id);
    mask_[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  }
  std::sort(tokens.begin(), tokens.end());
  std::vector<uint32_t> path = {0};  // nodes of the token before, from the root
  nodes_.emplace_back();
  std::string_view before;
  const auto close = [&](size_t depth) {
    while (path.size() > depth + 1) {
      nodes_[path.back()].behind = static_cast<uint32_t>(nodes_.size());
      path.pop_back();
    }
  };
  for (const auto& [bytes, id] : tokens) {
    const auto same = std::mismatch(bytes.begin(), bytes.end(), before.begin(), before.end());
    const auto shared = static_cast<size_t>(same.first - bytes.begin());
    close(shared);
    for (size_t i = shared; i < bytes.size(); ++i) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      Node& node = nodes_.emplace_back();
      node.depth = static_cast<uint16_t>(i + 1);
      node.byte = static_cast<uint8_t>(bytes[i]);
    }
    SKEIN_CHECK(nodes_[path.back()].token < 0)
        << "tokens " << nodes_[path.back()].token << " and " << id << " have the same bytes";
    nodes_[path.back()].token = id;
    before = bytes;
  }
  close(0);
  nodes_[0].behind = static_cast<uint32_t>(nodes_.size());
}

TokenTrie::Match TokenTrie::Longest(std::string_view text) const {
  Match match;
  uint32_t parent = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const uint32_t end = nodes_[parent].behind;
    uint32_t child = parent + 1;
    while (child < end && nodes_[child].byte != static_cast<uint8_t>(text[i])) {
      child = nodes_[child].behind;
    }
    if (child >= end) break;
    if (nodes_[child].token >= 0) match = {nodes_[child].token, i + 1};
    parent = child;
  }
  return match;
}

}  // namespace skein::coordinator
