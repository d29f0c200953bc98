// From records to the figures of one run: latencies, throughput, goodput, acceptance, errors.
// Owns: nothing; pure functions of values. Any thread. Must never count a failed request as work.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "worker/node/commands/bench_load.h"

namespace skein::worker {

// Milliseconds of one metric over all successful requests.
struct BenchLatency {
  std::string name;  // "ttft"
  double mean = 0;
  double median = 0;
  double standard_deviation = 0;
  std::vector<std::pair<double, double>> percentiles;  // percent, value
  size_t count = 0;
};

struct BenchReport {
  int64_t completed = 0;
  int64_t failed = 0;
  double duration_s = 0;
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;
  double request_throughput = 0;  // per second
  double output_throughput = 0;   // tokens per second
  double total_token_throughput = 0;
  int64_t good = 0;  // requests within every bound of goodput
  double request_goodput = 0;
  double peak_concurrency = 0;
  double late_start_ms_max = 0;  // largest delay from a scheduled arrival to its sending
  double acceptance_length = 0;  // tokens per step; 0: the server said no steps
  double draft_acceptance = -1;  // accepted share of draft tokens; -1: no drafts
  std::vector<BenchLatency> latencies;
  std::map<std::string, int64_t> errors;  // by kind
  std::string first_error;
};

// `duration_s` is from the begin of the run to the end of the last request.
BenchReport MakeReport(const BenchOptions& options, std::span<const BenchRecord> records);

// The numpy percentile: linear between the two nearest values. 0 of nothing. `sorted` ascends.
double LinearPercentile(std::span<const double> sorted, double percent);

// The table that is printed.
std::string ReportTable(const BenchOptions& options, const BenchReport& report);
// One JSON object; `date` as text.
std::string ReportJson(const BenchOptions& options, const BenchReport& report,
                       std::string_view date);

}  // namespace skein::worker
