// The tests of prefix hits on the cpu backend; --full: at every length.
#include <cstdio>
#include <string_view>

#include <gtest/gtest.h>

#include "tests/exactness/prefix_hit.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc == 2 && std::string_view(argv[1]) == "--full") {
    skein::tests::RunEveryLength();
  } else if (argc != 1) {
    std::fprintf(stderr, "usage: prefix_hit_test [--full]\n");
    return 64;
  }
  const int result = RUN_ALL_TESTS();
  std::printf("answers compared: %llu\n",
              static_cast<unsigned long long>(skein::tests::NumCompared()));
  return result;
}
