// What a lookup in a full prefix cache costs. Owns: nothing. Thread: main's.
#pragma once

#include <cstdint>

#include "tests/bench/bench_line.h"

namespace skein::bench {

struct LookupCase {
  uint32_t prompt = 0;  // tokens
  bool hit = true;      // else its first block is another one
};

// Prints the line of one case; false when a lookup did not find what is there.
bool RunLookup(const LookupCase& bench, const RunIdentity& identity);

}  // namespace skein::bench
