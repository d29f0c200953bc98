// One table of flags; everything else follows from it.
// Main thread. Must never take a number it did not read to its end.
#include "worker/node/commands/bench_options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string_view>
#include <variant>

#include "absl/status/status.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"

namespace skein::worker {
namespace {

using protocol::Concat;

// Which member a flag sets. kList flags take words up to the next flag.
using Member = std::variant<std::string BenchOptions::*, int64_t BenchOptions::*,
                            double BenchOptions::*, bool BenchOptions::*>;
struct Flag {
  std::string_view name;
  Member member;
  std::string_view help;
  double min = 0;
  double max = 1e15;
};

// Requests and prompts are made before the run; more than this is a slip of the keyboard.
constexpr double kRequestsMax = 1e7;
constexpr double kTokensMax = 1 << 24;

constexpr std::array kFlags = {
    Flag{"base-url", &BenchOptions::base_url,
         "http://HOST:PORT or https://HOST:PORT instead of --host and --port"},
    Flag{"ca-file", &BenchOptions::ca_file,
         "PEM file of the certificates that an https server's is to be signed with, or its own;\n"
         "      default: those that this host trusts"},
    Flag{"host", &BenchOptions::host, "server to load (127.0.0.1)"},
    Flag{"port", &BenchOptions::port, "its port (8000)", 1, 65535},
    Flag{"endpoint", &BenchOptions::endpoint,
         "/v1/completions (default: prompts are token ids) or /v1/chat/completions (text)"},
    Flag{"model", &BenchOptions::model, "served name; default: the first of GET /v1/models"},
    Flag{"api-key", &BenchOptions::api_key, "sent as Authorization: Bearer"},
    Flag{"dataset-name", &BenchOptions::dataset_name, "random (default), sharegpt or trace"},
    Flag{"dataset", &BenchOptions::dataset_name, "the same"},
    Flag{"dataset-path", &BenchOptions::dataset_path,
         "file of sharegpt (JSON: [{\"conversations\":[{\"value\":...},{\"value\":...}]}]) or\n"
         "      trace (JSON lines: timestamp in ms, input_length or prompt, output_length,\n"
         "      hash_ids of shared blocks of 512 tokens)"},
    Flag{"random-input-len", &BenchOptions::random_input_len, "tokens of a prompt (1024)", 1,
         kTokensMax},
    Flag{"random-output-len", &BenchOptions::random_output_len, "tokens of an answer (128)", 1,
         kTokensMax},
    Flag{"random-range-ratio", &BenchOptions::random_range_ratio,
         "spread of both lengths, 0 to below 1 (0)"},
    Flag{"random-prefix-len", &BenchOptions::random_prefix_len,
         "tokens that all prompts begin with, besides their own (0)", 0, kTokensMax},
    Flag{"random-token-max", &BenchOptions::random_token_max,
         "token ids are drawn from 256 up to this (4000); at most the vocabulary size", 257},
    Flag{"output-len", &BenchOptions::output_len,
         "tokens of an answer of sharegpt and trace, instead of what is recorded", 0, kTokensMax},
    Flag{"trace-speed", &BenchOptions::trace_speed, "2 replays a trace in half its time (1)", 1e-3},
    Flag{"num-prompts", &BenchOptions::num_prompts, "requests (1000); a trace may hold fewer", 1,
         kRequestsMax},
    Flag{"num-warmups", &BenchOptions::num_warmups, "requests before, not measured (0)", 0,
         kRequestsMax},
    Flag{"request-rate", &BenchOptions::request_rate,
         "requests per second, or inf (default). Open loop: arrival times are fixed before\n"
         "      the run, and every latency counts from the arrival, sent late or not",
         1e-6},
    Flag{"burstiness", &BenchOptions::burstiness,
         "shape of the gamma distribution of intervals; 1 (default) is Poisson", 1e-6},
    Flag{"max-concurrency", &BenchOptions::max_concurrency,
         "requests at a time; with --request-rate inf a closed loop (default: no bound)"},
    Flag{"seed", &BenchOptions::seed, "of prompts, lengths and arrivals (0)"},
    Flag{"ignore-eos", &BenchOptions::ignore_eos, "answers have exactly their length"},
    Flag{"temperature", &BenchOptions::temperature, "of every request (0)"},
    Flag{"timeout", &BenchOptions::timeout_s, "seconds a request may go without a byte (600)",
         1e-3},
    Flag{"slo", &BenchOptions::slo,
         "goodput of a profile: interactive (ttft 1500 ms, tpot 15), chat (500, 50),\n"
         "      tight (450, 40) or batch (none)"},
    Flag{"save-result", &BenchOptions::save_result, "write the result as a JSON file"},
    Flag{"result-dir", &BenchOptions::result_dir, "where (the current directory)"},
    Flag{"result-filename", &BenchOptions::result_filename, "its name (from rate, model, time)"},
};

constexpr std::string_view kListHelp =
    "  --goodput METRIC:MS...  requests within all bounds count: ttft, tpot, e2el\n"
    "  --percentile-metrics LIST  of ttft,tpot,itl,e2el (all)\n"
    "  --metric-percentiles LIST  such as 50,90,99 (99)\n"
    "  --compare A.json B.json...  runs nothing; numbers of result files side by side\n";

bool ReadNumber(std::string_view text, double* value) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, *value);
  return !text.empty() && result.ec == std::errc() && result.ptr == end && std::isfinite(*value);
}

absl::Status BadValue(std::string_view flag, std::string_view value, std::string_view wanted) {
  return absl::InvalidArgumentError(Concat("--", flag, " is \"", value, "\"; it must be ", wanted));
}

std::vector<std::string> SplitBy(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    if (end > 0) parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  return parts;
}

absl::Status SetFlag(const Flag& flag, std::string_view value, BenchOptions& options) {
  if (const auto* text = std::get_if<std::string BenchOptions::*>(&flag.member)) {
    if (value.empty()) return BadValue(flag.name, value, "a text; leave the flag out otherwise");
    options.** text = std::string(value);
    return absl::OkStatus();
  }
  double number = 0;
  if (flag.name == "request-rate" && value == "inf") {
    options.request_rate = 0;
    return absl::OkStatus();
  }
  const bool read = ReadNumber(value, &number) && number >= flag.min && number <= flag.max;
  const auto* real = std::get_if<double BenchOptions::*>(&flag.member);
  if (!read || (real == nullptr && std::trunc(number) != number)) {
    std::string wanted =
        Concat(real == nullptr ? "a whole number from " : "a number from ", flag.min);
    wanted += flag.max < 1e15 ? Concat(" to ", static_cast<int64_t>(flag.max)) : " on";
    return BadValue(flag.name, value, wanted);
  }
  if (real != nullptr) {
    options.** real = number;
  } else {
    options.*std::get<int64_t BenchOptions::*>(flag.member) = static_cast<int64_t>(number);
  }
  return absl::OkStatus();
}

bool IsMetric(std::string_view name) {
  return name == "ttft" || name == "tpot" || name == "itl" || name == "e2el";
}

absl::Status AddGoodput(std::string_view word, BenchOptions& options) {
  const size_t colon = word.find(':');
  const std::string_view name = word.substr(0, colon);
  double limit = 0;
  if (colon == std::string_view::npos || !IsMetric(name) || name == "itl" ||
      !ReadNumber(word.substr(colon + 1), &limit) || limit < 0) {
    return BadValue("goodput", word, "ttft:MS, tpot:MS or e2el:MS");
  }
  options.goodput.emplace_back(name, limit);
  return absl::OkStatus();
}

// One word of a flag that takes several; nothing when the flag is no such one.
absl::StatusOr<bool> AddWord(std::string_view flag, const std::string& word,
                             BenchOptions& options) {
  if (flag == "compare") {
    options.compare.push_back(word);
  } else if (flag == "goodput") {
    SKEIN_RETURN_IF_ERROR(AddGoodput(word, options));
  } else if (flag == "percentile-metrics") {
    options.percentile_metrics = SplitBy(word, ',');
    for (const std::string& name : options.percentile_metrics) {
      if (!IsMetric(name)) return BadValue(flag, word, "a list of ttft, tpot, itl and e2el");
    }
  } else if (flag == "metric-percentiles") {
    options.metric_percentiles.clear();
    for (const std::string& text : SplitBy(word, ',')) {
      double percent = 0;
      if (!ReadNumber(text, &percent) || percent < 0 || percent > 100) {
        return BadValue(flag, word, "a list of numbers from 0 to 100");
      }
      options.metric_percentiles.push_back(percent);
    }
  } else {
    return false;
  }
  return true;
}

constexpr std::string_view kBaseUrl = "http://HOST:PORT or https://HOST:PORT";

absl::Status ApplyBaseUrl(BenchOptions& options) {
  std::string_view url = options.base_url;
  if (url.empty()) return absl::OkStatus();
  options.tls = url.starts_with("https://");
  if (!options.tls && !url.starts_with("http://")) return BadValue("base-url", url, kBaseUrl);
  url.remove_prefix(options.tls ? 8 : 7);
  while (url.ends_with("/")) url.remove_suffix(1);
  const size_t colon = url.rfind(':');
  double port = options.tls ? 443 : 80;
  const bool read = colon == std::string_view::npos || ReadNumber(url.substr(colon + 1), &port);
  if (!read || port < 1 || port > 65535 || std::trunc(port) != port ||
      url.substr(0, colon).empty() || url.find('/') != std::string_view::npos) {
    return BadValue("base-url", options.base_url, kBaseUrl);
  }
  options.host = std::string(url.substr(0, colon));
  options.port = static_cast<int64_t>(port);
  return absl::OkStatus();
}

absl::Status ApplySlo(BenchOptions& options) {
  if (options.slo.empty() || options.slo == "batch") return absl::OkStatus();
  if (!options.goodput.empty()) {
    return absl::InvalidArgumentError("--slo and --goodput are both given; give one of them");
  }
  if (options.slo == "interactive") {
    options.goodput = {{"ttft", 1500}, {"tpot", 15}};
  } else if (options.slo == "chat") {
    options.goodput = {{"ttft", 500}, {"tpot", 50}};
  } else if (options.slo == "tight") {
    options.goodput = {{"ttft", 450}, {"tpot", 40}};
  } else {
    return BadValue("slo", options.slo, "interactive, chat, tight or batch");
  }
  return absl::OkStatus();
}

absl::Status CheckTogether(BenchOptions& options) {
  SKEIN_RETURN_IF_ERROR(ApplyBaseUrl(options));
  if (!options.ca_file.empty() && !options.tls) {
    return absl::InvalidArgumentError(
        "--ca-file is given without TLS; give --base-url https://HOST:PORT, or leave it out");
  }
  SKEIN_RETURN_IF_ERROR(ApplySlo(options));
  if (!options.endpoint.starts_with("/")) {
    return BadValue("endpoint", options.endpoint, "a path that begins with /");
  }
  const std::string& dataset = options.dataset_name;
  if (dataset != "random" && dataset != "sharegpt" && dataset != "trace") {
    return BadValue("dataset-name", dataset, "random, sharegpt or trace");
  }
  if (dataset != "random" && options.dataset_path.empty()) {
    return absl::InvalidArgumentError(
        Concat("--dataset-name ", dataset, " needs its file: add --dataset-path FILE"));
  }
  if (options.random_range_ratio >= 1) {
    return BadValue("random-range-ratio", Concat(options.random_range_ratio), "below 1");
  }
  if (options.compare.size() == 1) {
    return absl::InvalidArgumentError("--compare needs at least two result files");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BenchOptions> ParseBenchOptions(std::span<const std::string> arguments) {
  BenchOptions options;
  for (size_t i = 0; i < arguments.size();) {
    std::string_view name = arguments[i++];
    if (!name.starts_with("--")) {
      return absl::InvalidArgumentError(
          Concat("\"", name, "\" is no flag; skein bench --help lists them"));
    }
    name.remove_prefix(2);
    const size_t equals = name.find('=');
    std::vector<std::string> words;
    if (equals != std::string_view::npos) {
      words.emplace_back(name.substr(equals + 1));
      name = name.substr(0, equals);
    }
    const auto* flag = std::find_if(kFlags.begin(), kFlags.end(),
                                    [&](const Flag& known) { return known.name == name; });
    if (flag != kFlags.end() && std::holds_alternative<bool BenchOptions::*>(flag->member)) {
      if (!words.empty()) return BadValue(name, words[0], "without a value");
      options.*std::get<bool BenchOptions::*>(flag->member) = true;
      continue;
    }
    while (equals == std::string_view::npos && i < arguments.size() &&
           !arguments[i].starts_with("--") && (flag == kFlags.end() || words.empty())) {
      words.push_back(arguments[i++]);
    }
    if (words.empty()) words.emplace_back();
    if (flag != kFlags.end()) {
      SKEIN_RETURN_IF_ERROR(SetFlag(*flag, words[0], options));
      continue;
    }
    for (const std::string& word : words) {
      SKEIN_ASSIGN_OR_RETURN(const bool known, AddWord(name, word, options));
      if (!known) {
        return absl::InvalidArgumentError(
            Concat("--", name, " is no flag of skein bench; --help lists them"));
      }
    }
  }
  SKEIN_RETURN_IF_ERROR(CheckTogether(options));
  return options;
}

std::string BenchHelp() {
  std::string text =
      "usage: skein bench [FLAGS]\n"
      "Loads a server over HTTP with streamed requests and prints latencies, throughput and\n"
      "goodput. Names are those of vllm bench serve.\n\n"
      "  closed loop   skein bench --max-concurrency 16 --num-prompts 200\n"
      "  open loop     skein bench --request-rate 20 --num-prompts 1000 --slo chat\n"
      "  trace replay  skein bench --dataset-name trace --dataset-path t.jsonl --trace-speed 2\n"
      "  comparison    skein bench --compare before.json after.json\n\n"
      "TTFT counts to the first event with text, ITL from event to event (an event may carry\n"
      "several tokens), TPOT is (E2EL - TTFT) / (tokens - 1); tokens are those of usage.\n"
      "Exit code 0, 64 for wrong flags, 65 for unreadable files, 70 when no request succeeded,\n"
      "130 after Ctrl-C, which prints and saves what had ended by then.\n"
      "\nflags:\n";
  for (const Flag& flag : kFlags) {
    const bool is_switch = std::holds_alternative<bool BenchOptions::*>(flag.member);
    const bool is_text = std::holds_alternative<std::string BenchOptions::*>(flag.member);
    text += Concat("  --", flag.name,
                   is_switch ? ""
                   : is_text ? " TEXT"
                             : " N",
                   "  ", flag.help, "\n");
  }
  return text + std::string(kListHelp);
}

}  // namespace skein::worker
