// One JSON line per case of a benchmark on standard output, with the keys that all of them have.
// Owns: nothing. Thread: main's. Must never print a case whose checks failed as valid.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::bench {

// What is the same for all cases of a run.
struct RunIdentity {
  std::string bench;
  std::string commit = "unknown";  // --commit
  uint64_t seed = 0;
  int reps = 1;
};

// A value is JSON text already.
using BenchFields = std::vector<std::pair<std::string, std::string>>;

// Number as JSON, with at most three digits behind the point.
std::string JsonNumber(double value);
std::string JsonText(std::string_view text);

// Prints the line: the keys of the identity, the device, then `fields`.
void PrintCase(const RunIdentity& run, std::string_view name, const BenchFields& fields,
               bool valid);

// The nearest-rank percentile, 0 of nothing. Sorts `values`.
double Percentile(std::vector<double>& values, double percent);

}  // namespace skein::bench
