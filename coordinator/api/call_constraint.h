// The calls that a chat request allows, as the scheduler's constraint of its tokens.
// Owns: the vocabulary's trie, shared by all requests; the matcher of one.
// Thread: Make on the listener's thread; a constraint is used by one thread.
// Must never: bind a request that may not call anything.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "coordinator/api/api_error.h"
#include "coordinator/api/chat_request.h"
#include "coordinator/text/chat_template.h"
#include "coordinator/text/token_trie.h"
#include "coordinator/text/tokenizer.h"
#include "scheduler/token_constraint.h"

namespace skein::coordinator {

class CallConstraints {
 public:
  // `tokenizer` and `chat` outlive all constraints. `vocab_size`: of the tokenizer.
  CallConstraints(const Tokenizer& tokenizer, const ChatTemplate& chat, int32_t vocab_size);

  // Null when the request may call nothing. A 400 names a function that is too large.
  ApiOr<std::shared_ptr<const scheduler::TokenConstraint>> Make(const ChatRequest& request,
                                                                bool starts_in_reasoning) const;

 private:
  const Tokenizer& tokenizer_;
  const ChatTemplate& chat_;
  const std::shared_ptr<const TokenTrie> trie_;
};

}  // namespace skein::coordinator
