// The grammar of calls. The input's lines up to an empty one declare functions, "name parameter
// parameter", "*" for any parameters; its other bytes choose among the tokens that may follow. A
// token that may follow leaves another one, forced tokens may follow, and a block that was
// generated so is read as calls.
// Thread: one.
// Must never: depend on anything but the input.
#include <memory>

#include "coordinator/text/grammar_matcher.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/small_vocabulary.h"

namespace skein::tests {
namespace {

using coordinator::CallGrammar;
using coordinator::DeclaredTool;
using coordinator::GrammarMatcher;
using coordinator::TokenTrie;
using coordinator::ToolCallParser;

constexpr size_t kStepsMax = 100;

bool Allows(const std::vector<uint32_t>& mask, int32_t token) {
  return (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1u) != 0;
}

// The `index`-th token that may follow, of which there are that many, over again.
int32_t Choose(const std::vector<uint32_t>& mask, size_t index) {
  std::vector<int32_t> allowed;
  for (int32_t id = 0; id < SmallTokenizer().vocab_size(); ++id) {
    if (Allows(mask, id)) allowed.push_back(id);
  }
  Require(!allowed.empty(), "after a token that may follow another one may");
  return allowed[index % allowed.size()];
}

// A name as requests may have one: functions of letters, parameters of anything but a line end.
std::vector<DeclaredTool> ToolsOf(std::string_view& text) {
  std::vector<DeclaredTool> tools;
  while (!text.empty() && tools.size() < 8) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(text.size(), end + 1));
    if (line.empty()) break;
    DeclaredTool tool;
    while (!line.empty()) {
      const size_t space = std::min(line.find(' '), line.size());
      const std::string word(line.substr(0, space));
      line.remove_prefix(std::min(line.size(), space + 1));
      if (tool.name.empty()) {
        for (const char c : word)
          tool.name += static_cast<char>('a' + static_cast<uint8_t>(c) % 26);
        tool.name += std::to_string(tools.size());
      } else if (word == "*") {
        tool.any_parameters = true;
      } else if (std::find(tool.parameters.begin(), tool.parameters.end(), word) ==
                 tool.parameters.end()) {
        tool.parameters.push_back(word);
      }
    }
    if (!tool.name.empty()) tools.push_back(std::move(tool));
  }
  return tools;
}

void CheckBlock(const std::vector<DeclaredTool>& tools, const std::vector<int32_t>& ids) {
  ToolCallParser parser({tools, [](size_t) { return std::string("c"); }});
  ToolCallParser::Output out;
  for (const int32_t id : ids) {
    if (id == SmallChat().dsml_id()) {
      parser.Mark(&out);
    } else if (id != SmallChat().eos_id()) {
      parser.Text(SmallTokenizer().TokenBytes(id), &out);
    }
  }
  Require(parser.done() && parser.num_closed() > 0 && out.content.empty(),
          "a block is read as calls", out.content);
}

std::shared_ptr<GrammarMatcher::Setup> SetupOf(const std::vector<DeclaredTool>& tools, bool one) {
  static const auto trie =
      std::make_shared<const TokenTrie>(SmallTokenizer(), SmallTokenizer().vocab_size());
  auto grammar =
      CallGrammar::Create(tools, one ? CallGrammar::Calls::kOne : CallGrammar::Calls::kSeveral);
  if (!grammar.ok()) return nullptr;
  auto setup = std::make_shared<GrammarMatcher::Setup>();
  setup->tokenizer = &SmallTokenizer();
  setup->trie = trie;
  setup->grammar = *std::move(grammar);
  setup->tools = tools;
  setup->demands_calls = true;
  setup->end_think_id = SmallChat().end_think_id();
  setup->dsml_id = SmallChat().dsml_id();
  setup->eos_id = SmallChat().eos_id();
  return setup;
}

void Walk(const std::vector<DeclaredTool>& tools, std::string_view choices, bool one) {
  const auto setup = SetupOf(tools, one);
  if (setup == nullptr) return;
  GrammarMatcher matcher(setup);
  std::vector<int32_t> ids;
  bool free = false;  // a function takes any parameters: nothing binds in its calls
  Bytes bytes(choices);
  for (size_t step = 0; step < kStepsMax; ++step) {
    free |= !matcher.binds();
    if (free) break;
    GrammarMatcher ahead = matcher;
    for (const int32_t token : matcher.Forced(step % 8 == 0 ? 8 : 1)) {
      Require(Allows(ahead.Mask(), token), "forced tokens may follow");
      ahead.Advance(token);
    }
    const int32_t token = Choose(matcher.Mask(), static_cast<size_t>(bytes.Number(1)));
    ids.push_back(token);
    if (token == setup->eos_id) break;
    matcher.Advance(token);
  }
  if (!free && ids.back() == setup->eos_id) CheckBlock(tools, ids);
}

void Check(std::string_view text) {
  const std::vector<DeclaredTool> tools = ToolsOf(text);
  if (tools.empty()) return;
  Walk(tools, text, false);
  Walk(tools, text, true);
}

}  // namespace
}  // namespace skein::tests

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  skein::tests::Check(skein::tests::TextOf(data, size));
  return 0;
}
