// The logprobs of a choice's prompt: taken as steps score them, shown as a list of their own or as
// the front of a completion's.
// Owns: the scores of one prompt.
// Thread: one object is used by one thread.
// Must never: be shown before it is complete.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "coordinator/api/answer_format.h"
#include "coordinator/text/tokenizer.h"
#include "protocol/messages/step.h"

namespace skein::coordinator {

class PromptLogprobs {
 public:
  struct Setup {
    std::vector<int32_t> ids;  // of the prompt
    // Its first token was added and is not part of the text that an echo shows.
    bool begins_hidden = false;
  };

  // `tokenizer` outlives the object.
  PromptLogprobs(Setup setup, const Tokenizer& tokenizer)
      : setup_(std::move(setup)), tokenizer_(tokenizer) {}

  // Adds the scores of the next tokens, from the second on.
  void Append(std::span<const protocol::TokenScore> scores);
  bool complete() const { return scores_.size() + 1 == setup_.ids.size(); }

  // JSON as vLLM's prompt_logprobs: null for the first token, then an object each of the token and
  // its `num_top` likeliest alternatives by id, with logprob, rank and text. The rank of a token
  // that is not among those is null.
  std::string Json(int32_t num_top) const;
  // Puts all tokens of the prompt into the list; the first without logprob.
  void AppendTo(LogprobList* list) const;

 private:
  const Setup setup_;
  const Tokenizer& tokenizer_;
  std::vector<protocol::TokenScore> scores_;
};

}  // namespace skein::coordinator
