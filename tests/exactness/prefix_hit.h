// What programs with the tests of prefix hits may set and ask. Owns nothing. Thread: main's.
#pragma once

#include <cstdint>

namespace skein::tests {

// Every length from now on.
void RunEveryLength();
// Answers that were compared with cold ones so far.
uint64_t NumCompared();

}  // namespace skein::tests
