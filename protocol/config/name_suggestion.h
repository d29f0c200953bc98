// Which known name a wrong one was probably meant to be, for error texts. Pure, any thread.
// Must never suggest a name that is far from what was written.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace skein::protocol {

// "; did you mean PREFIXname?" with the name of `known` that is nearest to `name`; empty when none
// is near enough to be meant.
std::string NameSuggestion(std::string_view name, const std::vector<std::string>& known,
                           std::string_view prefix);

}  // namespace skein::protocol
