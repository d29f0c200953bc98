#include "tests/sim/marks.h"

namespace skein::tests {

std::string_view NameOf(Mark mark) {
  static constexpr std::array<std::string_view, kNumMarks> kNames = {
      "a request was answered",
  };
  return kNames[static_cast<size_t>(mark)];
}

}  // namespace skein::tests
