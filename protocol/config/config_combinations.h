// Keys of the configuration that contradict each other, or whose text has a form of its own.
// Pure functions, any thread. Must never change a value.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "protocol/config/config.h"

namespace skein::protocol {

// "path (--flag)" of a key.
using PathNamer = std::string (*)(std::string_view path);

// What is wrong, one text each with the key, the value and the remedy; empty when nothing is.
std::vector<std::string> CombinationProblems(const Config& config, const LoadOptions& options,
                                             PathNamer name_of);

}  // namespace skein::protocol
