// A byte grammar over tokens: which of them may follow. Free until a block of calls opens,
// or until the reasoning ends when calls are demanded; bound from there on.
// Owns: the place in the answer of one sequence. Thread: one object is used by one thread.
// Must never: depend on anything but the tokens that were generated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "coordinator/text/call_grammar.h"
#include "coordinator/text/token_trie.h"
#include "coordinator/text/tokenizer.h"
#include "coordinator/text/tool_call_parser.h"

namespace skein::coordinator {

class GrammarMatcher {
 public:
  struct Setup {
    const Tokenizer* tokenizer = nullptr;   // outlives all matchers
    std::shared_ptr<const TokenTrie> trie;  // of that tokenizer
    std::shared_ptr<const CallGrammar> grammar;
    std::vector<DeclaredTool> tools;  // of the grammar
    bool starts_in_reasoning = false;
    bool demands_calls = false;  // a block must come; otherwise it may
    int32_t end_think_id = -1, dsml_id = -1, eos_id = -1;
  };
  explicit GrammarMatcher(std::shared_ptr<const Setup> setup);

  // The sequence generated a token.
  void Advance(int32_t token);
  // The next token is bound; while it is not, every token may follow.
  bool binds() const;
  // While it binds. Bit v % 32 of word v / 32: token v may follow. All zero after a token that was
  // not allowed.
  std::vector<uint32_t> Mask() const;
  // A likely spelling of the text that must follow, at most `tokens_max` tokens; empty when there
  // is a choice.
  std::vector<int32_t> Forced(size_t tokens_max) const;

 private:
  enum class Phase : uint8_t { kReasoning, kContent, kBlock };

  void EndReasoning();
  void AdvanceContent(int32_t token);
  void AdvanceBlock(int32_t token);
  void AddTexts(std::vector<uint32_t>* mask) const;

  std::shared_ptr<const Setup> setup_;
  Phase phase_ = Phase::kReasoning;
  ToolCallParser parser_;  // kContent: it knows when a block opens
  CallGrammar::State state_;
};

}  // namespace skein::coordinator
