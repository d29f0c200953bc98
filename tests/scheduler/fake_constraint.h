// A constraint over the tokens of FakeWorker: free until a token below 5, then seven tokens are
// bound, of which the first three have no choice. Owns its place. Thread: the test's.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "scheduler/token_constraint.h"
#include "tests/scheduler/fake_worker.h"

namespace skein::tests {

class FakeConstraint final : public scheduler::TokenConstraint {
 public:
  static constexpr int kBound = 7;
  // `dead_end`: its last bound token has no choice at all.
  explicit FakeConstraint(bool dead_end = false) : dead_end_(dead_end) {}

  std::unique_ptr<TokenConstraint> Clone() const override {
    return std::make_unique<FakeConstraint>(*this);
  }
  void Advance(int32_t token) override {
    if (left_ > 0) {
      --left_;
    } else if (token < 5) {
      left_ = kBound;
    }
  }
  bool binds() const override { return left_ > 0; }
  std::vector<uint32_t> Mask() const override {
    std::vector<uint32_t> mask(2);
    if (left_ == 1 && dead_end_) return mask;
    for (int32_t token = 5; token < 50; ++token) {
      if (left_ > kBound - 3 ? token == OnlyToken(left_) : token % 3 == left_ % 3) {
        mask[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
      }
    }
    return mask;
  }
  std::vector<int32_t> Forced(size_t tokens_max) const override {
    std::vector<int32_t> tokens;
    for (int left = left_; left > kBound - 3 && tokens.size() < tokens_max; --left) {
      tokens.push_back(OnlyToken(left));
    }
    return tokens;
  }
  static int32_t OnlyToken(int left) { return 10 + left; }

 private:
  bool dead_end_;
  int left_ = 0;  // tokens that are bound
};

// What sequential decoding of one sequence generates under the constraint.
inline std::vector<int32_t> DecodeBound(std::vector<int32_t> prompt, int32_t max_tokens,
                                        uint32_t max_model_len,
                                        const scheduler::TokenConstraint& constraint) {
  const std::unique_ptr<scheduler::TokenConstraint> state = constraint.Clone();
  std::vector<int32_t> out;
  while (static_cast<int32_t>(out.size()) < max_tokens && prompt.size() < max_model_len) {
    const std::vector<uint32_t> mask = state->binds() ? state->Mask() : std::vector<uint32_t>();
    const int32_t token = NextToken(prompt, mask);
    if (token < 0) break;
    state->Advance(token);
    prompt.push_back(token);
    out.push_back(token);
  }
  return out;
}

}  // namespace skein::tests
