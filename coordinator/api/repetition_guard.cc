// Circles among tokens.
// Thread: one object is used by one thread.
// Must never: look at text.
#include "coordinator/api/repetition_guard.h"

namespace skein::coordinator {

bool RepetitionGuard::Append(int32_t token) {
  const size_t ngram = held_.size();
  if (ngram == 0) return false;
  if (last_.empty()) last_.resize(ngram);
  bool circles = false;
  for (size_t length = 1; length <= ngram && length <= num_tokens_; ++length) {
    uint32_t& held = held_[length - 1];
    held = last_[(num_tokens_ - length) % ngram] == token ? held + 1 : 0;
    // The first round has nothing before it that it could equal.
    circles = circles || held + length >= kRounds * ngram;
  }
  last_[num_tokens_ % ngram] = token;
  ++num_tokens_;
  return circles;
}

}  // namespace skein::coordinator
