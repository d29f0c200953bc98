// min_tokens: before so many tokens the ones that would end the generation may not follow.
// Owns: the count, and the constraint of the answer's form under it.
// Thread: one object is used by one thread.
// Must never: leave no token where the other constraint allows one.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "protocol/messages/sampling_params.h"
#include "scheduler/token_constraint.h"

namespace skein::coordinator {

class MinTokensConstraint final : public scheduler::TokenConstraint {
 public:
  // `inner`: of the same sequence, or null. `vocab_size`: of the tokenizer.
  MinTokensConstraint(const protocol::StopConditions& stop, int32_t vocab_size,
                      std::unique_ptr<scheduler::TokenConstraint> inner);

  std::unique_ptr<scheduler::TokenConstraint> Clone() const override;
  void Advance(int32_t token) override;
  bool binds() const override { return left_ > 0 || (inner_ != nullptr && inner_->binds()); }
  std::vector<uint32_t> Mask() const override;
  std::vector<int32_t> Forced(size_t tokens_max) const override;

 private:
  std::vector<int32_t> stops_;
  int32_t vocab_size_;
  int32_t left_;  // tokens until one may end it
  std::unique_ptr<scheduler::TokenConstraint> inner_;
};

}  // namespace skein::coordinator
