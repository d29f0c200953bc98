// The tokens of a vocabulary as a tree of their bytes, in one array: what may follow a state of a
// byte grammar is one walk, which leaves out every branch that the grammar refuses.
// Owns: the nodes. Thread: const after construction.
// Must never: hold a special token; their bytes are no text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "coordinator/text/tokenizer.h"

namespace skein::coordinator {

class TokenTrie {
 public:
  // Nodes in preorder: the children of a node follow it, each before what is behind it.
  struct Node {
    int32_t token = -1;   // that ends here; -1: none
    uint32_t behind = 0;  // index of the first node that is not below this one
    uint16_t depth = 0;   // bytes from the root, which is node 0
    uint8_t byte = 0;     // the last of them
  };

  // Of all tokens below `vocab_size` that are not special and have bytes.
  TokenTrie(const Tokenizer& tokenizer, int32_t vocab_size);

  const std::vector<Node>& nodes() const { return nodes_; }
  // A mask of all of them: bit v % 32 of word v / 32, words for `vocab_size` bits.
  const std::vector<uint32_t>& mask() const { return mask_; }
  // The longest token that `text` begins with, and how many bytes it takes; -1: none.
  struct Match {
    int32_t token = -1;
    size_t length = 0;
  };
  Match Longest(std::string_view text) const;

 private:
  std::vector<Node> nodes_;
  std::vector<uint32_t> mask_;
};

}  // namespace skein::coordinator
