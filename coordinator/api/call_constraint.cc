// Thread: a constraint is used by one thread.
// Must never: bind a request that may not call anything.
#include "coordinator/api/call_constraint.h"

#include <utility>

#include "coordinator/text/grammar_matcher.h"
#include "protocol/base/log.h"

namespace skein::coordinator {
namespace {

class CallConstraint final : public scheduler::TokenConstraint {
 public:
  explicit CallConstraint(GrammarMatcher matcher) : matcher_(std::move(matcher)) {}

  std::unique_ptr<scheduler::TokenConstraint> Clone() const override {
    return std::make_unique<CallConstraint>(matcher_);
  }
  void Advance(int32_t token) override { matcher_.Advance(token); }
  bool binds() const override { return matcher_.binds(); }
  std::vector<uint32_t> Mask() const override { return matcher_.Mask(); }
  std::vector<int32_t> Forced(size_t tokens_max) const override {
    return matcher_.Forced(tokens_max);
  }

 private:
  GrammarMatcher matcher_;
};

}  // namespace

CallConstraints::CallConstraints(const Tokenizer& tokenizer, const ChatTemplate& chat,
                                 int32_t vocab_size)
    : tokenizer_(tokenizer),
      chat_(chat),
      trie_(std::make_shared<const TokenTrie>(tokenizer, vocab_size)) {}

ApiOr<std::shared_ptr<const scheduler::TokenConstraint>> CallConstraints::Make(
    const ChatRequest& request, bool starts_in_reasoning) const {
  using Constraint = std::shared_ptr<const scheduler::TokenConstraint>;
  if (request.tools.empty()) return Constraint();
  auto grammar = CallGrammar::Create(
      request.tools, request.one_call ? CallGrammar::Calls::kOne : CallGrammar::Calls::kSeveral);
  if (!grammar.ok()) return GrammarTooComplex("tools", grammar.status());
  GrammarMatcher::Setup setup;
  setup.tokenizer = &tokenizer_;
  setup.trie = trie_;
  setup.grammar = *std::move(grammar);
  setup.tools = request.tools;
  setup.starts_in_reasoning = starts_in_reasoning;
  setup.demands_calls = request.demands_calls;
  setup.end_think_id = chat_.end_think_id();
  setup.dsml_id = chat_.dsml_id();
  setup.eos_id = chat_.eos_id();
  return Constraint(std::make_shared<const CallConstraint>(
      GrammarMatcher(std::make_shared<const GrammarMatcher::Setup>(std::move(setup)))));
}

}  // namespace skein::coordinator
