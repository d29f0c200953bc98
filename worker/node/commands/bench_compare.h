// Numbers of two or more result files side by side: results of skein bench (one JSON object) and
// lines of the other benchmarks (one object per case).
// Owns: nothing. Main thread. Must never compare different cases.
#pragma once

#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace skein::worker {

struct BenchFile {
  std::string name;
  std::string text;
};

// A table per case, in the order of the first file: metric, value of each file, ratio of each to
// the first. A case or metric that a file lacks shows as "-". InvalidArgument names file and line
// that is no JSON object.
absl::StatusOr<std::string> CompareResults(std::span<const BenchFile> files);

}  // namespace skein::worker
