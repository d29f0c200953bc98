// What the scheduler needs of a grammar: which tokens may follow those of a sequence. Its state is
// a function of the tokens alone, so neither the batch nor a replay can change it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace skein::scheduler {

// Of one sequence, used by the thread that owns it.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // An equal one, which goes on by itself.
  virtual std::unique_ptr<TokenConstraint> Clone() const = 0;
  // The sequence generated a token.
  virtual void Advance(int32_t token) = 0;
  // The next token is bound: it must be one of Mask(). While it is not, every token may follow.
  virtual bool binds() const = 0;
  // Bit v % 32 of word v / 32: token v may follow. As many words as the vocabulary needs; all zero
  // when nothing may follow, which ends the sequence with an error.
  virtual std::vector<uint32_t> Mask() const = 0;
  // A likely spelling of the text that must follow, at most `tokens_max` tokens; empty when there
  // is a choice. Mask() has the last word about each of them.
  virtual std::vector<int32_t> Forced(size_t tokens_max) const = 0;
};

}  // namespace skein::scheduler
