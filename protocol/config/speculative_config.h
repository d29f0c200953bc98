// The flag --speculative-config as vLLM users know it: one JSON object that stands for the keys of
// the section `speculation`. Pure functions, any thread. Must never guess what a member meant that
// this server does not have.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace skein::protocol {

// One configuration key and its value as text.
struct KeyValue {
  std::string path;
  std::string text;
};

// The keys that `json` sets: {"method": "dspark" or "none", "num_speculative_tokens": N}, at least
// one of the two. InvalidArgument names the member, its value and the remedy; the range of numbers
// is the key's and not checked here.
absl::StatusOr<std::vector<KeyValue>> ReadSpeculativeConfig(std::string_view json);

}  // namespace skein::protocol
