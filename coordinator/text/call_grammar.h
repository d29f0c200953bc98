// The syntax of a block of tool calls as an automaton over bytes and the DSML token: tags, declared
// functions, declared parameters, each at most once (serving.md S5).
// Owns: the texts that may stand at each place. Thread: const after Create.
// Must never: allow what ToolCallParser does not read as calls.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/text/tool_call_parser.h"

namespace skein::coordinator {

class CallGrammar {
 public:
  // The symbol of the DSML token; those below are bytes.
  static constexpr int kMark = 256;
  static constexpr size_t kParametersMax = 256;  // of one function

  enum class Calls { kOne, kSeveral };

  // ResourceExhausted names a function with more than kParametersMax parameters.
  static absl::StatusOr<std::shared_ptr<const CallGrammar>> Create(
      std::span<const DeclaredTool> tools, Calls calls);

  enum class Place : uint8_t {
    kTag,      // in or before one of several texts
    kValue,    // of a parameter: all bytes, until its close tag
    kUnbound,  // in a call of a function that declares no names: everything, until its close tag
    kEnd,      // the block is closed; nothing may follow
    kDead,     // what was read is no block
  };
  // A place in the block. Value type; meaningful with the grammar that gave it.
  struct State {
    Place place = Place::kDead;
    uint8_t num_held = 0;  // symbols of a close tag that were read
    uint16_t list = 0;     // kTag: of texts, one of options [low, high) goes on at `offset`
    uint16_t tool = 0;
    uint32_t low = 0, high = 0, offset = 0;
    std::bitset<kParametersMax> used;  // parameters of the call
  };

  // Before the blank line of the block.
  State Begin() const { return Enter(kHead, {}); }
  // Behind the DSML token of its first tag.
  State Opened() const;
  void Step(int symbol, State* state) const;
  // The only symbol that may follow; -1: several, or none.
  int Forced(const State& state) const;

 private:
  enum class Action : uint8_t {
    kNames,    // the name of a function comes next
    kCall,     // the call of function `index` begins
    kValue,    // the value of parameter `index` begins
    kNextTag,  // a parameter was closed
    kCloseCall,
    kCloseBlock,
  };
  struct Option {
    std::string text;  // kMarkByte for the DSML token
    Action action = Action::kNames;
    uint16_t index = 0;
  };
  // Lists of texts; those of function n are kTools + n.
  static constexpr uint16_t kHead = 0, kNames = 1, kAfterCall = 2, kAfterValue = 3, kTools = 4;

  CallGrammar() = default;
  void AddTool(const DeclaredTool& tool);
  State Enter(uint16_t list, State state) const;
  bool IsOpen(const Option& option, const State& state) const;
  void StepTag(int symbol, State* state) const;
  void Act(const Option& option, State* state) const;

  bool one_call_ = false;
  std::vector<bool> is_unbound_;            // by function
  std::vector<std::vector<Option>> lists_;  // each sorted, none the begin of another
};

}  // namespace skein::coordinator
