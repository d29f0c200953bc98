// The requests of one run, all made before it begins: bodies, lengths and arrival times.
// Owns: plain values. Main thread. Must never depend on anything but the options, the seed and the
// dataset.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/node/commands/bench_options.h"

namespace skein::worker {

struct BenchRequest {
  double arrival_s = 0;  // after the begin of the run; meaningful in an open loop and a trace
  std::string body;
  int64_t output_len = 0;
};

struct BenchWorkload {
  std::vector<BenchRequest> requests;  // in order of arrival
  bool is_open_loop = false;           // arrival times count
};

// How many tokens a text has; the server is asked.
using TokenCounter = std::function<absl::StatusOr<int64_t>(std::string_view)>;

// `dataset` is the text of --dataset-path. InvalidArgument names the line or entry that is wrong.
absl::StatusOr<BenchWorkload> MakeWorkload(const BenchOptions& options, std::string_view dataset,
                                           const TokenCounter& count_tokens);

}  // namespace skein::worker
