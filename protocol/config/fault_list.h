// Planted faults for tests of recovery, as worker.enable_faults lists them. Pure, any thread.
// Must never do anything: the programs act on what is parsed here.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"

namespace skein::protocol {

struct FaultList {
  std::optional<int32_t> abort_on_token;  // the worker aborts when a step computes the token
  std::optional<int32_t> hang_on_token;   // its device thread stands still for ever
  std::optional<int32_t> exit_at_start;   // it ends with this code before it registers
  std::optional<int32_t> lose_blocks;     // worker number N lends cache blocks where nobody answers
  std::optional<int32_t> wedge_on_token;  // the coordinator's control thread stands still, 3 s
};

// "" or a comma-separated list of name:number with each name once. InvalidArgument names the entry
// and the names there are.
absl::StatusOr<FaultList> ParseFaults(std::string_view text);

}  // namespace skein::protocol
