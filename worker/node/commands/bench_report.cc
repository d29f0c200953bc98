// Sums, percentiles, the table and the JSON object.
// Any thread. Must never divide by a duration of zero.
#include "worker/node/commands/bench_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <numeric>

#include "protocol/base/control_bytes.h"
#include "protocol/base/strings.h"
#include "protocol/json/json_writer.h"

namespace skein::worker {
namespace {

using protocol::Concat;

constexpr double kMs = 1000;

double TpotMs(const BenchRecord& record) {
  return record.output_tokens < 2 ? 0
                                  : (record.last_s - record.first_s) * kMs /
                                        static_cast<double>(record.output_tokens - 1);
}

// The value of a metric that has one per request.
double ValueMs(std::string_view metric, const BenchRecord& record) {
  if (metric == "ttft") return (record.first_s - record.scheduled_s) * kMs;
  if (metric == "tpot") return TpotMs(record);
  return (record.last_s - record.scheduled_s) * kMs;
}

std::vector<double> ValuesOf(std::string_view metric, std::span<const BenchRecord> records) {
  std::vector<double> values;
  for (const BenchRecord& record : records) {
    if (!record.ok()) continue;
    if (metric == "itl") {
      for (const double gap : record.gaps_s) values.push_back(gap * kMs);
    } else if (metric != "tpot" || record.output_tokens > 1) {
      values.push_back(ValueMs(metric, record));
    }
  }
  std::sort(values.begin(), values.end());
  return values;
}

BenchLatency LatencyOf(const BenchOptions& options, std::string_view metric,
                       std::span<const BenchRecord> records) {
  const std::vector<double> values = ValuesOf(metric, records);
  BenchLatency latency;
  latency.name = std::string(metric);
  latency.count = values.size();
  latency.median = LinearPercentile(values, 50);
  for (const double percent : options.metric_percentiles) {
    latency.percentiles.emplace_back(percent, LinearPercentile(values, percent));
  }
  if (values.empty()) return latency;
  const auto count = static_cast<double>(values.size());
  latency.mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - latency.mean) * (value - latency.mean);
  latency.standard_deviation = std::sqrt(squares / count);
  return latency;
}

bool IsGood(const BenchOptions& options, const BenchRecord& record) {
  return std::all_of(options.goodput.begin(), options.goodput.end(), [&](const auto& bound) {
    return ValueMs(bound.first, record) <= bound.second;
  });
}

// The most requests that were open at a time.
double PeakConcurrency(std::span<const BenchRecord> records) {
  std::vector<std::pair<double, int>> changes;
  for (const BenchRecord& record : records) {
    changes.emplace_back(record.sent_s, 1);
    changes.emplace_back(record.end_s, -1);
  }
  std::sort(changes.begin(), changes.end());
  int open = 0;
  int peak = 0;
  for (const auto& [at, change] : changes) peak = std::max(peak, open += change);
  return peak;
}

void AddWork(const BenchRecord& record, BenchReport& report, std::array<int64_t, 4>& sums) {
  ++report.completed;
  report.input_tokens += record.input_tokens;
  report.output_tokens += record.output_tokens;
  if (record.steps > 0) {
    sums[0] += record.output_tokens;
    sums[1] += record.steps;
  }
  sums[2] += record.draft_tokens;
  sums[3] += record.accepted_draft_tokens;
}

// printf into a string.
[[gnu::format(printf, 2, 3)]] void Append(std::string& out, const char* format, ...) {
  char line[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  out += line;
}

std::string_view TitleOf(std::string_view metric) {
  if (metric == "ttft") return "Time to First Token";
  if (metric == "tpot") return "Time per Output Token (excl. 1st token)";
  return metric == "itl" ? "Inter-token Latency" : "End-to-end Latency";
}

std::string PercentName(double percent) {
  std::string name = protocol::FormatJsonDouble(percent);
  if (name.ends_with(".0")) name.resize(name.size() - 2);
  return Concat("p", name);
}

void AppendLatencies(const BenchReport& report, std::string& out) {
  for (const BenchLatency& latency : report.latencies) {
    std::string upper = latency.name;
    for (char& c : upper) c = static_cast<char>(c - 'a' + 'A');
    if (latency.name == "e2el") upper = "E2EL";
    const std::string title = Concat("---- ", TitleOf(latency.name), " ");
    Append(out, "%s%s\n", title.c_str(), std::string(60 - title.size(), '-').c_str());
    const auto row = [&](const std::string& kind, double value) {
      const std::string label = Concat(kind, " ", upper, " (ms):");
      Append(out, "%-44s%15.2f\n", label.c_str(), value);
    };
    row("Mean", latency.mean);
    row("Median", latency.median);
    for (const auto& [percent, value] : latency.percentiles) {
      std::string name = PercentName(percent);
      name[0] = 'P';
      row(name, value);
    }
  }
}

std::string RateText(const BenchOptions& options) {
  return options.request_rate > 0 ? protocol::FormatJsonDouble(options.request_rate) : "inf";
}

void WriteOptions(const BenchOptions& options, protocol::JsonWriter& writer) {
  const auto text = [&](std::string_view key, std::string_view value) {
    writer.Key(key);
    writer.String(value);
  };
  text("endpoint_type",
       options.endpoint.find("chat") != std::string::npos ? "openai-chat" : "openai");
  text("endpoint", options.endpoint);
  text("model_id", options.model);
  text("dataset", options.dataset_name);
  writer.Key("num_prompts");
  writer.Int(options.num_prompts);
  text("request_rate", RateText(options));
  writer.Key("burstiness");
  writer.Double(options.burstiness);
  writer.Key("max_concurrency");
  options.max_concurrency > 0 ? writer.Int(options.max_concurrency) : writer.Null();
  writer.Key("seed");
  writer.Int(options.seed);
  text("slo", options.slo);
}

void WriteLatencies(const BenchReport& report, protocol::JsonWriter& writer) {
  for (const BenchLatency& latency : report.latencies) {
    const auto number = [&](std::string_view kind, double value) {
      writer.Key(Concat(kind, "_", latency.name, "_ms"));
      writer.Double(value);
    };
    number("mean", latency.mean);
    number("median", latency.median);
    number("std", latency.standard_deviation);
    for (const auto& [percent, value] : latency.percentiles) number(PercentName(percent), value);
  }
}

}  // namespace

double LinearPercentile(std::span<const double> sorted, double percent) {
  if (sorted.empty()) return 0;
  const double rank = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(rank);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (rank - static_cast<double>(low));
}

BenchReport MakeReport(const BenchOptions& options, std::span<const BenchRecord> records) {
  BenchReport report;
  std::array<int64_t, 4> sums{};  // tokens, steps, drafts, accepted
  for (const BenchRecord& record : records) {
    report.duration_s = std::max(report.duration_s, record.end_s);
    report.late_start_ms_max =
        std::max(report.late_start_ms_max, (record.sent_s - record.scheduled_s) * kMs);
    if (record.ok()) {
      AddWork(record, report, sums);
      report.good += IsGood(options, record) ? 1 : 0;
      continue;
    }
    ++report.failed;
    ++report.errors[record.error];
    if (report.first_error.empty()) report.first_error = record.message;
  }
  const auto rate = [&](int64_t count) {
    return report.duration_s > 0 ? static_cast<double>(count) / report.duration_s : 0;
  };
  report.request_throughput = rate(report.completed);
  report.output_throughput = rate(report.output_tokens);
  report.total_token_throughput = rate(report.input_tokens + report.output_tokens);
  report.request_goodput = rate(report.good);
  report.peak_concurrency = PeakConcurrency(records);
  if (sums[1] > 0) {
    report.acceptance_length = static_cast<double>(sums[0]) / static_cast<double>(sums[1]);
  }
  if (sums[2] > 0) {
    report.draft_acceptance = static_cast<double>(sums[3]) / static_cast<double>(sums[2]);
  }
  for (const std::string& metric : options.percentile_metrics) {
    report.latencies.push_back(LatencyOf(options, metric, records));
  }
  return report;
}

std::string ReportTable(const BenchOptions& options, const BenchReport& report) {
  std::string out = "============= Serving Benchmark Result =====================\n";
  const auto whole = [&](const char* label, int64_t value) {
    Append(out, "%-44s%15lld\n", label, static_cast<long long>(value));
  };
  const auto real = [&](const char* label, double value) {
    Append(out, "%-44s%15.2f\n", label, value);
  };
  whole("Successful requests:", report.completed);
  whole("Failed requests:", report.failed);
  for (const auto& [kind, count] : report.errors) whole(Concat("  ", kind, ":").c_str(), count);
  if (!report.first_error.empty())
    out += Concat("  first: ", protocol::EscapeControls(report.first_error, ""), "\n");
  Append(out, "%-44s%15s\n", "Request rate (req/s):", RateText(options).c_str());
  if (options.max_concurrency > 0) whole("Maximum concurrency:", options.max_concurrency);
  real("Peak concurrent requests:", report.peak_concurrency);
  real("Latest start after its arrival (ms):", report.late_start_ms_max);
  real("Benchmark duration (s):", report.duration_s);
  whole("Total input tokens:", report.input_tokens);
  whole("Total generated tokens:", report.output_tokens);
  real("Request throughput (req/s):", report.request_throughput);
  if (!options.goodput.empty()) real("Request goodput (req/s):", report.request_goodput);
  real("Output token throughput (tok/s):", report.output_throughput);
  real("Total token throughput (tok/s):", report.total_token_throughput);
  if (report.acceptance_length > 0) {
    real("Acceptance length (tokens per step):", report.acceptance_length);
  }
  if (report.draft_acceptance >= 0) real("Accepted share of drafts:", report.draft_acceptance);
  AppendLatencies(report, out);
  return out + std::string(60, '=') + "\n";
}

std::string ReportJson(const BenchOptions& options, const BenchReport& report,
                       std::string_view date) {
  std::string out;
  protocol::JsonWriter writer(&out);
  const auto whole = [&](std::string_view key, int64_t value) {
    writer.Key(key);
    writer.Int(value);
  };
  const auto real = [&](std::string_view key, double value) {
    writer.Key(key);
    writer.Double(value);
  };
  writer.BeginObject();
  writer.Key("bench");
  writer.String("skein bench");
  writer.Key("date");
  writer.String(date);
  WriteOptions(options, writer);
  real("duration", report.duration_s);
  whole("completed", report.completed);
  whole("failed", report.failed);
  whole("total_input_tokens", report.input_tokens);
  whole("total_output_tokens", report.output_tokens);
  real("request_throughput", report.request_throughput);
  writer.Key("request_goodput");
  options.goodput.empty() ? writer.Null() : writer.Double(report.request_goodput);
  writer.Key("goodput_bounds_ms");
  writer.BeginObject();
  for (const auto& [metric, limit] : options.goodput) real(metric, limit);
  writer.EndObject();
  real("output_throughput", report.output_throughput);
  real("total_token_throughput", report.total_token_throughput);
  real("peak_concurrency", report.peak_concurrency);
  real("late_start_ms_max", report.late_start_ms_max);
  writer.Key("acceptance_length");
  report.acceptance_length > 0 ? writer.Double(report.acceptance_length) : writer.Null();
  writer.Key("draft_acceptance");
  report.draft_acceptance >= 0 ? writer.Double(report.draft_acceptance) : writer.Null();
  WriteLatencies(report, writer);
  writer.Key("errors");
  writer.BeginObject();
  for (const auto& [kind, count] : report.errors) whole(kind, count);
  writer.EndObject();
  writer.EndObject();
  return out;
}

}  // namespace skein::worker
