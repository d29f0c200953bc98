// Notices a text that goes round in circles: the same few tokens again and again.
// Owns: the last tokens and, for each length of a circle, how long it has held.
// Thread: one object is used by one thread.
// Must never: look at text; only ids count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace skein::coordinator {

// The longest circle that a request may name: each token costs a comparison for each length.
inline constexpr uint32_t kRepetitionNgramMax = 64;

class RepetitionGuard {
 public:
  // So many times the longest circle must have been gone round before it counts.
  static constexpr uint32_t kRounds = 4;

  // `ngram`: tokens of the longest circle, at most kRepetitionNgramMax; 0: nothing is noticed.
  explicit RepetitionGuard(uint32_t ngram) : held_(ngram, 0) {}

  // Adds a token. True when the last kRounds * ngram tokens are one circle of at most ngram tokens.
  bool Append(int32_t token);

 private:
  std::vector<int32_t> last_;  // of held_.size() tokens, a ring
  size_t num_tokens_ = 0;
  std::vector<uint32_t> held_;  // by length - 1: tokens in a row that equal the one so far before
};

}  // namespace skein::coordinator
