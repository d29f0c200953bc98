// The main of unit tests that are linked with planted bugs: mutated_SUITE [GTEST FLAGS] NUMBER, of
// the bug that is alive; 0: none.
#include <charconv>
#include <string_view>

#include <gtest/gtest.h>

#include "tests/sim/mutant.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const std::string_view number = argc == 2 ? argv[1] : "";
  const auto [end, error] =
      std::from_chars(number.data(), number.data() + number.size(), skein::tests::chosen_mutant);
  if (error != std::errc() || end != number.data() + number.size()) return 64;
  return RUN_ALL_TESTS();
}
