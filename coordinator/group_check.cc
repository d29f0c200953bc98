#include "coordinator/group_check.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/request_table.h"

namespace skein::coordinator {
namespace {

// Longer than a window of the model, so that compressed rows are read too.
constexpr int64_t kPromptTokens = 160;
constexpr int64_t kAnswerTokens = 16;
constexpr int32_t kFirstToken = 3;
constexpr int32_t kTokens = 97;  // of the vocabulary that prompts are made of

}  // namespace

std::string Difference(const CheckResult& expected, const CheckResult& got) {
  const size_t count = std::min(expected.tokens.size(), got.tokens.size());
  for (size_t i = 0; i < count; ++i) {
    if (expected.tokens[i] == got.tokens[i] && expected.logprob_bits[i] == got.logprob_bits[i]) {
      continue;
    }
    return absl::StrCat("token ", i, " is ", got.tokens[i], " with logprob ",
                        std::bit_cast<float>(got.logprob_bits[i]), ", expected ",
                        expected.tokens[i], " with ",
                        std::bit_cast<float>(expected.logprob_bits[i]));
  }
  if (expected.tokens.size() == got.tokens.size()) return "";
  return absl::StrCat(got.tokens.size(), " tokens, expected ", expected.tokens.size());
}

void CheckSink::Deliver(TokenDelta delta) {
  for (const DeltaToken& token : delta.tokens) {
    result_.tokens.push_back(token.id);
    result_.logprob_bits.push_back(std::bit_cast<uint32_t>(token.logprob));
  }
  if (!delta.finish) return;
  error_ = std::move(delta.error);
  ended_ = true;
}

SubmitRequest MakeCheck(uint64_t n, int64_t max_model_len, std::shared_ptr<CheckSink> sink) {
  SubmitRequest request;
  request.id = protocol::RequestId(kFirstCheck + n);
  const int64_t answer = std::clamp<int64_t>(max_model_len / 2, 1, kAnswerTokens);
  const int64_t prompt = std::clamp<int64_t>(max_model_len - answer, 1, kPromptTokens);
  for (int64_t i = 0; i < prompt; ++i) {
    request.prompt_ids.push_back(kFirstToken + static_cast<int32_t>(i * i % kTokens));
  }
  request.sampling.temperature = 0;
  request.sampling.logprobs = true;
  request.stop.max_tokens = static_cast<int32_t>(answer);
  request.stop.ignore_eos = true;
  request.speculation.mode = protocol::VerificationMode::kGreedy;
  request.priority = INT32_MIN;  // before those that wait
  request.sink = std::move(sink);
  return request;
}

}  // namespace skein::coordinator
