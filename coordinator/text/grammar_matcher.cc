// Thread: one object is used by one thread.
// Must never: depend on anything but the tokens that were generated.
#include "coordinator/text/grammar_matcher.h"

#include <string>
#include <string_view>
#include <utility>

namespace skein::coordinator {
namespace {

using Place = CallGrammar::Place;

constexpr int32_t kWordBits = 32;

void Allow(int32_t token, std::vector<uint32_t>* mask) {
  (*mask)[static_cast<size_t>(token / kWordBits)] |= 1u << (token % kWordBits);
}

// Every text may follow.
bool TakesAll(const CallGrammar::State& state) {
  return state.place == Place::kValue || state.place == Place::kUnbound;
}

// Spells `text` by the longest tokens.
void Spell(const TokenTrie& trie, std::string_view text, std::vector<int32_t>* tokens) {
  while (!text.empty()) {
    const TokenTrie::Match match = trie.Longest(text);
    if (match.token < 0) return;
    tokens->push_back(match.token);
    text.remove_prefix(match.length);
  }
}

}  // namespace

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Setup> setup)
    : setup_(std::move(setup)),
      parser_({setup_->tools, [](size_t) { return std::string("call"); }}) {
  if (!setup_->starts_in_reasoning) EndReasoning();
}

void GrammarMatcher::EndReasoning() {
  phase_ = setup_->demands_calls ? Phase::kBlock : Phase::kContent;
  if (setup_->demands_calls) state_ = setup_->grammar->Begin();
}

void GrammarMatcher::Advance(int32_t token) {
  switch (phase_) {
    case Phase::kReasoning:
      if (token == setup_->end_think_id) EndReasoning();
      return;
    case Phase::kContent:
      return AdvanceContent(token);
    case Phase::kBlock:
      return AdvanceBlock(token);
  }
}

void GrammarMatcher::AdvanceContent(int32_t token) {
  ToolCallParser::Output unused;
  if (token == setup_->dsml_id) {
    parser_.Mark(&unused);
    if (!parser_.opens_block()) return;
    phase_ = Phase::kBlock;
    state_ = setup_->grammar->Opened();
  } else if (!setup_->tokenizer->IsSpecial(token)) {
    parser_.Text(setup_->tokenizer->TokenBytes(token), &unused);
  }
}

void GrammarMatcher::AdvanceBlock(int32_t token) {
  const bool was_bound = binds();
  const CallGrammar& grammar = *setup_->grammar;
  if (token == setup_->dsml_id) {
    grammar.Step(CallGrammar::kMark, &state_);
  } else if (setup_->tokenizer->IsSpecial(token)) {
    // No place takes one; behind the block the end of the text comes.
    if (was_bound && state_.place != Place::kEnd) state_.place = Place::kDead;
  } else {
    for (const char byte : setup_->tokenizer->TokenBytes(token)) {
      grammar.Step(static_cast<uint8_t>(byte), &state_);
    }
  }
  // A token that was not bound may reach beyond the call: then nothing binds any more.
  if (!was_bound && state_.place == Place::kDead) state_.place = Place::kUnbound;
}

bool GrammarMatcher::binds() const {
  return phase_ == Phase::kBlock && state_.place != Place::kUnbound;
}

std::vector<uint32_t> GrammarMatcher::Mask() const {
  std::vector<uint32_t> mask(setup_->trie->mask().size());
  if (state_.place == Place::kEnd) Allow(setup_->eos_id, &mask);
  if (state_.place == Place::kEnd || state_.place == Place::kDead) return mask;
  CallGrammar::State marked = state_;
  setup_->grammar->Step(CallGrammar::kMark, &marked);
  if (marked.place != Place::kDead) Allow(setup_->dsml_id, &mask);
  AddTexts(&mask);
  return mask;
}

// Walks the tokens by their bytes and leaves out each branch that the grammar refuses.
void GrammarMatcher::AddTexts(std::vector<uint32_t>* mask) const {
  if (TakesAll(state_)) {
    const std::vector<uint32_t>& all = setup_->trie->mask();
    for (size_t i = 0; i < all.size(); ++i) (*mask)[i] |= all[i];
    return;
  }
  const std::vector<TokenTrie::Node>& nodes = setup_->trie->nodes();
  std::vector<CallGrammar::State> path = {state_};  // by depth
  for (uint32_t i = 1; i < nodes.size();) {
    const TokenTrie::Node& node = nodes[i];
    path.resize(node.depth);
    CallGrammar::State state = path.back();
    setup_->grammar->Step(node.byte, &state);
    if (state.place == Place::kDead) {
      i = node.behind;
    } else if (TakesAll(state)) {
      for (; i < node.behind; ++i) {
        if (nodes[i].token >= 0) Allow(nodes[i].token, mask);
      }
    } else {
      if (node.token >= 0) Allow(node.token, mask);
      path.push_back(state);
      ++i;
    }
  }
}

std::vector<int32_t> GrammarMatcher::Forced(size_t tokens_max) const {
  std::vector<int32_t> tokens;
  if (!binds()) return tokens;
  CallGrammar::State state = state_;
  std::string text;
  while (tokens.size() < tokens_max) {
    const int symbol = setup_->grammar->Forced(state);
    if (symbol < 0 || symbol == CallGrammar::kMark) {
      Spell(*setup_->trie, std::exchange(text, {}), &tokens);
    } else {
      text.push_back(static_cast<char>(symbol));
    }
    if (symbol == CallGrammar::kMark) tokens.push_back(setup_->dsml_id);
    if (symbol < 0) break;
    setup_->grammar->Step(symbol, &state);
  }
  if (tokens.size() > tokens_max) tokens.resize(tokens_max);
  return tokens;
}

}  // namespace skein::coordinator
