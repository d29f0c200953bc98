// What `skein bench` was asked for: the flags, in the vocabulary of `vllm bench serve`.
// Owns: plain values. Main thread. Must never guess: an unknown flag or value is an error.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace skein::worker {

struct BenchOptions {
  std::string base_url;  // http://host:port or https://host:port; else host and port
  std::string ca_file;   // of https: whose certificates are believed; empty: this host's list
  bool tls = false;      // base_url is https
  std::string host = "127.0.0.1";
  int64_t port = 8000;
  std::string endpoint = "/v1/completions";
  std::string model;  // empty: the first one of GET /v1/models
  std::string api_key;

  std::string dataset_name = "random";  // random, sharegpt, trace
  std::string dataset_path;
  int64_t random_input_len = 1024;  // tokens
  int64_t random_output_len = 128;  // tokens
  double random_range_ratio = 0;    // lengths are uniform in len * (1 - r) ... len * (1 + r)
  int64_t random_prefix_len = 0;    // tokens that all random prompts share
  int64_t random_token_max = 4000;  // ids are drawn from 256 up to this
  int64_t output_len = 0;           // of sharegpt and trace, instead of the recorded length
  double trace_speed = 1;           // timestamps are divided by it
  int64_t num_prompts = 1000;
  int64_t num_warmups = 0;

  double request_rate = 0;      // per second; 0: inf
  double burstiness = 1;        // shape of the gamma distribution of intervals; 1: Poisson
  int64_t max_concurrency = 0;  // 0: no bound
  int64_t seed = 0;
  bool ignore_eos = false;
  double temperature = 0;
  double timeout_s = 600;  // of a request without a byte

  std::vector<std::pair<std::string, double>> goodput;  // metric, milliseconds
  std::string slo;                                      // interactive, chat, tight, batch
  std::vector<std::string> percentile_metrics = {"ttft", "tpot", "itl", "e2el"};
  std::vector<double> metric_percentiles = {99};

  bool save_result = false;
  std::string result_dir;
  std::string result_filename;
  std::vector<std::string> compare;  // files; nothing is run then
};

// InvalidArgument names the flag, the value and what is accepted.
absl::StatusOr<BenchOptions> ParseBenchOptions(std::span<const std::string> arguments);

// Text of `skein bench --help`.
std::string BenchHelp();

}  // namespace skein::worker
