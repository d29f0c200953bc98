// Thread: one object is used by one thread.
// Must never: leave no token where the other constraint allows one.
#include "coordinator/api/min_tokens_constraint.h"

#include <algorithm>
#include <utility>

namespace skein::coordinator {

MinTokensConstraint::MinTokensConstraint(const protocol::StopConditions& stop, int32_t vocab_size,
                                         std::unique_ptr<scheduler::TokenConstraint> inner)
    : stops_(stop.stop_token_ids),
      vocab_size_(vocab_size),
      // The last of them may end it.
      left_(stop.min_tokens - 1),
      inner_(std::move(inner)) {}

std::unique_ptr<scheduler::TokenConstraint> MinTokensConstraint::Clone() const {
  protocol::StopConditions stop;
  stop.stop_token_ids = stops_;
  stop.min_tokens = left_ + 1;
  return std::make_unique<MinTokensConstraint>(stop, vocab_size_,
                                               inner_ == nullptr ? nullptr : inner_->Clone());
}

void MinTokensConstraint::Advance(int32_t token) {
  left_ = std::max(left_ - 1, 0);
  if (inner_ != nullptr) inner_->Advance(token);
}

std::vector<uint32_t> MinTokensConstraint::Mask() const {
  const bool inner_binds = inner_ != nullptr && inner_->binds();
  std::vector<uint32_t> mask;
  if (inner_binds) {
    mask = inner_->Mask();
  } else {
    mask.assign((static_cast<size_t>(vocab_size_) + 31) / 32, ~0u);
  }
  if (left_ == 0) return mask;
  std::vector<uint32_t> longer = mask;
  for (const int32_t stop : stops_) {
    const auto word = static_cast<size_t>(stop) / 32;
    if (word < longer.size()) longer[word] &= ~(1u << (stop % 32));
  }
  // Behind a whole block of calls nothing but the end may follow.
  const auto is_zero = [](uint32_t word) { return word == 0; };
  return std::all_of(longer.begin(), longer.end(), is_zero) ? mask : longer;
}

std::vector<int32_t> MinTokensConstraint::Forced(size_t tokens_max) const {
  if (inner_ == nullptr || !inner_->binds()) return {};
  return inner_->Forced(tokens_max);
}

}  // namespace skein::coordinator
