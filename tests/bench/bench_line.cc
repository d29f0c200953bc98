// The line, and what the machine is called.
// Thread: main's. Must never print a number that is not finite.
#include "tests/bench/bench_line.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>

#include <unistd.h>

#include "protocol/json/json_writer.h"

namespace skein::bench {
namespace {

std::string DeviceName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(": ") + 2);
  }
  return "unknown";
}

std::string Today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[16] = {};
  std::strftime(text, sizeof text, "%Y-%m-%d", &parts);
  return text;
}

}  // namespace

std::string JsonNumber(double value) {
  if (!std::isfinite(value)) return "null";
  const double rounded = std::round(value * 1000) / 1000;
  if (rounded == std::floor(rounded) && std::abs(rounded) < 1e15) {
    return std::to_string(static_cast<int64_t>(rounded));
  }
  return protocol::FormatJsonDouble(rounded);
}

std::string JsonText(std::string_view text) {
  std::string out;
  protocol::AppendJsonString(text, &out);
  return out;
}

void PrintCase(const RunIdentity& run, std::string_view name, const BenchFields& fields,
               bool valid) {
  std::string out;
  protocol::JsonWriter writer(&out);
  writer.BeginObject();
  const auto text = [&](std::string_view key, std::string_view value) {
    writer.Key(key);
    writer.String(value);
  };
  text("bench", run.bench);
  text("case", name);
  text("commit", run.commit);
  text("date", Today());
  text("device", DeviceName());
  writer.Key("cores");
  writer.Int(::sysconf(_SC_NPROCESSORS_ONLN));
  writer.Key("seed");
  writer.Uint(run.seed);
  writer.Key("reps");
  writer.Int(run.reps);
  for (const auto& [key, value] : fields) {
    writer.Key(key);
    writer.Raw(value);
  }
  writer.Key("valid");
  writer.Bool(valid);
  writer.EndObject();
  std::printf("%s\n", out.c_str());
  std::fflush(stdout);
}

double Percentile(std::vector<double>& values, double percent) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(percent / 100 * static_cast<double>(values.size()));
  const size_t index = rank < 1 ? 0 : static_cast<size_t>(rank) - 1;
  return values[std::min(index, values.size() - 1)];
}

}  // namespace skein::bench
