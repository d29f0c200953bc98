// Thread: const after Create.
// Must never: allow what ToolCallParser does not read as calls.
#include "coordinator/text/call_grammar.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "protocol/base/strings.h"

namespace skein::coordinator {
namespace {

constexpr char kMarkByte = '\xFF';
constexpr std::string_view kHeadText = "\n\n<\xFF calls>\n<\xFF invoke name=\"";
constexpr size_t kOpenedAt = 4;  // behind the first mark of it
constexpr std::string_view kCallClose = "</\xFF invoke>";
constexpr std::string_view kValueClose = "</\xFF";

// A name that a tag can hold.
bool Fits(std::string_view name) {
  return !name.empty() && name.find_first_of("\"\n\xFF") == std::string_view::npos;
}

// How many symbols of `text` end what was read, after `held` of them and one more.
uint8_t Held(std::string_view text, uint8_t held, char next) {
  if (next == text[held]) return static_cast<uint8_t>(held + 1);
  return next == text[0] ? 1 : 0;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const CallGrammar>> CallGrammar::Create(
    std::span<const DeclaredTool> tools, Calls calls) {
  std::shared_ptr<CallGrammar> grammar(new CallGrammar());
  grammar->one_call_ = calls == Calls::kOne;
  grammar->lists_.resize(kTools);
  grammar->lists_[kHead] = {{std::string(kHeadText), Action::kNames, 0}};
  grammar->lists_[kAfterCall] = {{"\n<\xFF invoke name=\"", Action::kNames, 0},
                                 {"\n</\xFF calls>", Action::kCloseBlock, 0}};
  grammar->lists_[kAfterValue] = {{" parameter>\n", Action::kNextTag, 0}};
  for (const DeclaredTool& tool : tools) {
    if (tool.parameters.size() > kParametersMax) {
      return absl::ResourceExhaustedError(
          protocol::Concat("function ", tool.name, " declares ", tool.parameters.size(),
                           " parameters; at most ", kParametersMax, " are accepted"));
    }
    grammar->AddTool(tool);
  }
  const auto by_text = [](const Option& a, const Option& b) { return a.text < b.text; };
  for (auto& list : grammar->lists_) std::sort(list.begin(), list.end(), by_text);
  return grammar;
}

void CallGrammar::AddTool(const DeclaredTool& tool) {
  const auto index = static_cast<uint16_t>(lists_.size() - kTools);
  lists_[kNames].push_back({tool.name + "\">\n", Action::kCall, index});
  is_unbound_.push_back(tool.any_parameters);
  std::vector<Option>& list = lists_.emplace_back();
  for (size_t i = 0; i < tool.parameters.size(); ++i) {
    if (!Fits(tool.parameters[i])) continue;
    const std::string tag = protocol::Concat("<\xFF parameter name=\"", tool.parameters[i]);
    list.push_back({tag + "\" string=\"true\">", Action::kValue, static_cast<uint16_t>(i)});
    list.push_back({tag + "\" string=\"false\">", Action::kValue, static_cast<uint16_t>(i)});
  }
  // A call without parameters has an empty line.
  list.push_back({std::string(kCallClose), Action::kCloseCall, 0});
  list.push_back({"\n" + std::string(kCallClose), Action::kCloseCall, 0});
}

CallGrammar::State CallGrammar::Enter(uint16_t list, State state) const {
  state.place = Place::kTag;
  state.num_held = 0;
  state.list = list;
  state.low = 0;
  state.high = static_cast<uint32_t>(lists_[list].size());
  state.offset = 0;
  return state;
}

CallGrammar::State CallGrammar::Opened() const {
  State state = Begin();
  state.offset = kOpenedAt;
  return state;
}

bool CallGrammar::IsOpen(const Option& option, const State& state) const {
  switch (option.action) {
    case Action::kValue:
      return !state.used[option.index];
    case Action::kCloseCall:
      return state.used.none() == (option.text[0] == '\n');
    case Action::kNames:
      return state.list != kAfterCall || !one_call_;
    case Action::kCall:
    case Action::kNextTag:
    case Action::kCloseBlock:
      return true;
  }
  return false;
}

void CallGrammar::Step(int symbol, State* state) const {
  // The byte that stands for the mark is part of no tag.
  const char next = symbol == kMark ? kMarkByte : static_cast<char>(symbol);
  const bool is_text = symbol != static_cast<uint8_t>(kMarkByte);
  switch (state->place) {
    case Place::kTag:
      return StepTag(symbol, state);
    case Place::kValue:
      if (symbol == kMark && state->num_held + 1u != kValueClose.size()) {
        state->place = Place::kDead;
      } else if (symbol == kMark) {
        *state = Enter(kAfterValue, *state);
      } else {
        state->num_held = is_text ? Held(kValueClose, state->num_held, next) : 0;
      }
      return;
    case Place::kUnbound:
      state->num_held = is_text ? Held(kCallClose, state->num_held, next) : 0;
      if (state->num_held == kCallClose.size()) *state = Enter(kAfterCall, *state);
      return;
    case Place::kEnd:
    case Place::kDead:
      state->place = Place::kDead;
  }
}

void CallGrammar::StepTag(int symbol, State* state) const {
  const std::vector<Option>& list = lists_[state->list];
  const size_t offset = state->offset;
  const auto next = static_cast<uint8_t>(symbol == kMark ? kMarkByte : static_cast<char>(symbol));
  const auto at = [&](const Option& option) { return static_cast<uint8_t>(option.text[offset]); };
  const auto begin = list.begin();
  const auto low = std::lower_bound(begin + state->low, begin + state->high, next,
                                    [&](const Option& o, uint8_t c) { return at(o) < c; });
  const auto high = std::upper_bound(low, begin + state->high, next,
                                     [&](uint8_t c, const Option& o) { return c < at(o); });
  const bool is_mark_byte = symbol == static_cast<uint8_t>(kMarkByte);
  const auto is_open = [&](const Option& option) { return IsOpen(option, *state); };
  if (is_mark_byte || std::none_of(low, high, is_open)) {
    state->place = Place::kDead;
    return;
  }
  state->low = static_cast<uint32_t>(low - begin);
  state->high = static_cast<uint32_t>(high - begin);
  state->offset += 1;
  if (low->text.size() == state->offset) Act(*low, state);
}

void CallGrammar::Act(const Option& option, State* state) const {
  const auto list = static_cast<uint16_t>(kTools + state->tool);
  switch (option.action) {
    case Action::kNames:
      *state = Enter(kNames, *state);
      return;
    case Action::kCall:
      state->tool = option.index;
      state->used.reset();
      *state = Enter(static_cast<uint16_t>(kTools + option.index), *state);
      if (is_unbound_[option.index]) state->place = Place::kUnbound;
      return;
    case Action::kValue:
      state->used.set(option.index);
      state->place = Place::kValue;
      state->num_held = 0;
      return;
    case Action::kNextTag:
      *state = Enter(list, *state);
      return;
    case Action::kCloseCall:
      *state = Enter(kAfterCall, *state);
      return;
    case Action::kCloseBlock:
      state->place = Place::kEnd;
      return;
  }
}

int CallGrammar::Forced(const State& state) const {
  if (state.place != Place::kTag) return -1;
  int forced = -1;
  for (uint32_t i = state.low; i < state.high; ++i) {
    const Option& option = lists_[state.list][i];
    if (!IsOpen(option, state)) continue;
    const auto next = static_cast<uint8_t>(option.text[state.offset]);
    const int symbol = next == static_cast<uint8_t>(kMarkByte) ? kMark : next;
    if (forced >= 0 && forced != symbol) return -1;
    forced = symbol;
  }
  return forced;
}

}  // namespace skein::coordinator
