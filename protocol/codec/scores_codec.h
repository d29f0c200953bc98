// The parts of a step that are lists of likely tokens, and what asks for those of a prompt, for
// codec.cc. Any thread. Must never read a list before its size was checked.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "protocol/messages/step.h"
#include "protocol/schema/step.capnp.h"

namespace skein::protocol {

// OK, or ResourceExhausted naming `field`: the list is too long to be written.
absl::Status CheckTop(const std::vector<TopLogprob>& top, std::string_view field);
// Writes a list that passed CheckTop; nothing for an empty one, which would cost a word.
template <typename Builder>
void WriteTop(const std::vector<TopLogprob>& top, Builder out) {
  if (top.empty()) return;
  auto list = out.initTop(static_cast<uint32_t>(top.size()));
  for (uint32_t i = 0; i < list.size(); ++i) {
    list[i].setToken(top[i].token);
    list[i].setLogprob(top[i].logprob);
  }
}
absl::Status ReadTop(capnp::List<wire::TopLogprob>::Reader in, std::string_view field,
                     std::vector<TopLogprob>& out);

// Nothing is written where nothing is to be scored.
absl::Status WriteScoring(const PromptScoring& in, wire::SequenceStep::Builder out);
absl::Status ReadScoring(wire::SequenceStep::Reader in, PromptScoring& out);
absl::Status WriteScores(const std::vector<TokenScore>& in, wire::VerificationSummary::Builder out);
absl::Status ReadScores(wire::VerificationSummary::Reader in, std::vector<TokenScore>& out);

}  // namespace skein::protocol
