// prometheus-cpp core behind metrics.h: registry, text, process numbers and bucket tables.
// Any thread after declaration. Must never open a socket: the text is served by our own listener.
#include "protocol/metrics/metrics.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <sstream>

#include <dirent.h>
#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>
#include <sys/resource.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "protocol/base/log.h"
#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

using LabelMap = std::map<std::string, std::string>;

constexpr double kTimeToFirstToken[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                        0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                        20,    40,    80,   160,  640,  2560};
constexpr double kInterToken[] = {0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.025, 0.05,
                                  0.075, 0.1,   0.15,  0.2,   0.3,   0.4,    0.5,  0.75,  1,
                                  2.5,   5,     7.5,   10,    20,    40,     80};
constexpr double kRequestLatency[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                      30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
constexpr double kTokenCount[] = {1,      2,       5,       10,      20,       50,     100,
                                  200,    500,     1000,    2000,    5000,     10'000, 20'000,
                                  50'000, 100'000, 200'000, 500'000, 1'000'000};
constexpr double kStepTokens[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16'384};
constexpr double kStepBatch[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};
constexpr double kStepDuration[] = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075,
                                    0.1,    0.15,  0.2,   0.3,   0.5,  0.75, 1,    2,    5};
constexpr double kMessageLatency[] = {0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005,
                                      0.001,   0.0025,   0.005,   0.01,   0.05,    0.25};

bool IsName(std::string_view name) {
  if (name.empty()) return false;
  for (const char c : name) {
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_')) return false;
  }
  return name[0] < '0' || name[0] > '9';
}

void AppendSample(std::string_view name, std::string_view type, std::string_view help, double value,
                  std::ostream& out) {
  out << "# HELP " << name << ' ' << help << "\n# TYPE " << name << ' ' << type << '\n'
      << name << ' ' << value << '\n';
}

// Fields of /proc/self/stat after the command, which may hold spaces.
std::vector<double> StatFields() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  const size_t end = line.rfind(") ");
  std::vector<double> fields;
  if (end == std::string::npos) return fields;
  std::istringstream rest(line.substr(end + 4));  // past the state letter
  for (double value = 0; rest >> value;) fields.push_back(value);
  return fields;
}

double BootTimeSeconds() {
  std::ifstream file("/proc/stat");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("btime ", 0) == 0) return std::strtod(line.c_str() + 6, nullptr);
  }
  return 0;
}

double OpenDescriptors() {
  DIR* directory = ::opendir("/proc/self/fd");
  if (directory == nullptr) return 0;
  double count = -3;  // ".", ".." and the descriptor of this very reading
  while (::readdir(directory) != nullptr) count += 1;
  ::closedir(directory);
  return count;
}

void AppendProcess(std::ostream& out) {
  const std::vector<double> stat = StatFields();
  if (stat.size() < 21) return;
  const double ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  const double page_bytes = static_cast<double>(::sysconf(_SC_PAGESIZE));
  AppendSample("process_cpu_seconds_total", "counter", "User and system CPU time.",
               (stat[10] + stat[11]) / ticks, out);
  AppendSample("process_threads", "gauge", "Threads of the process.", stat[16], out);
  AppendSample("process_start_time_seconds", "gauge", "Start of the process, Unix time.",
               BootTimeSeconds() + stat[18] / ticks, out);
  AppendSample("process_virtual_memory_bytes", "gauge", "Address space.", stat[19], out);
  AppendSample("process_resident_memory_bytes", "gauge", "Resident memory.", stat[20] * page_bytes,
               out);
  AppendSample("process_open_fds", "gauge", "Open descriptors.", OpenDescriptors(), out);
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  AppendSample("process_max_fds", "gauge", "Descriptors the process may open.",
               static_cast<double>(limit.rlim_cur), out);
}

}  // namespace

void Counter::Increment(double amount) {
  if (amount > 0) cell_->Increment(amount);
}
double Counter::value() const { return cell_->Value(); }

void Gauge::Set(double value) { cell_->Set(value); }
void Gauge::Add(double amount) { cell_->Increment(amount); }
double Gauge::value() const { return cell_->Value(); }

void Histogram::Observe(double value) {
  if (!std::isnan(value)) cell_->Observe(value);
}
void Histogram::Add(const std::vector<double>& by_bucket, double sum) {
  cell_->ObserveMultiple(by_bucket, sum);
}
uint64_t Histogram::count() const { return cell_->Collect().histogram.sample_count; }
double Histogram::sum() const { return cell_->Collect().histogram.sample_sum; }

void HistogramBuffer::Observe(double value, uint32_t times) {
  if (std::isnan(value)) return;
  // Most are small: a search from the front is the shortest.
  size_t bucket = 0;
  while (bucket < bounds_.size() && bounds_[bucket] < value) ++bucket;
  pending_[bucket] += times;
  pending_sum_ += value * times;
  has_pending_ = true;
}

void HistogramBuffer::Flush() {
  if (!has_pending_) return;
  to_.Add(pending_, pending_sum_);
  std::fill(pending_.begin(), pending_.end(), 0.0);
  pending_sum_ = 0;
  has_pending_ = false;
}

uint64_t HistogramBuffer::count() const {
  const double pending = std::accumulate(pending_.begin(), pending_.end(), 0.0);
  return to_.count() + static_cast<uint64_t>(pending);
}

template <typename Handle>
size_t Family<Handle>::IndexOf(std::span<const LabelSet> labels,
                               std::initializer_list<std::string_view> values) {
  SKEIN_CHECK(labels.size() == values.size())
      << "a family with " << labels.size() << " labels was asked for " << values.size();
  size_t index = 0;
  size_t dimension = 0;
  for (const std::string_view value : values) {
    const LabelSet& label = labels[dimension++];
    size_t position = 0;
    while (position < label.values.size() && label.values[position] != value) ++position;
    SKEIN_CHECK(position < label.values.size())
        << "label " << label.name << " has no value \"" << value << "\"; add it to its set";
    index = index * label.values.size() + position;
  }
  return index;
}

template class Family<Counter>;
template class Family<Gauge>;
template class Family<Histogram>;

class MetricsRegistry::Impl {
 public:
  explicit Impl(MetricLabels constant_labels)
      : constant_labels_(constant_labels.begin(), constant_labels.end()) {}

  // Declares a family of `Builder` and makes one series per combination of label values.
  template <typename Handle, typename Builder, typename... Extra>
  Family<Handle> Add(const MetricName& name, Builder builder, std::vector<LabelSet> labels,
                     const Extra&... extra) {
    CheckName(name, std::is_same_v<Handle, Counter>);
    auto& family =
        builder.Name(name.name).Help(name.help).Labels(constant_labels_).Register(registry_);
    size_t combinations = 1;
    for (const LabelSet& label : labels) {
      SKEIN_CHECK(IsName(label.name) && !label.values.empty())
          << name.name << ": label \"" << label.name << "\" needs a plain name and values";
      combinations *= label.values.size();
    }
    num_series_ += combinations;
    SKEIN_CHECK(num_series_ <= kSeriesMax)
        << name.name << ": more than " << kSeriesMax << " series";
    std::vector<Handle> series;
    for (size_t index = 0; index < combinations; ++index) {
      series.emplace_back(&family.Add(LabelsOf(labels, index), extra...));
    }
    return Family<Handle>(std::move(labels), std::move(series));
  }

  void AddAlias(const std::string& name, const std::string& family) {
    SKEIN_CHECK(names_.contains(family)) << name << ": there is no family " << family;
    SKEIN_CHECK(names_.insert(name).second) << name << ": declared twice";
    aliases_[family].push_back(name);
  }

  std::vector<prometheus::MetricFamily> Collect() const {
    std::vector<prometheus::MetricFamily> families = registry_.Collect();
    const size_t num_own = families.size();
    for (size_t i = 0; i < num_own; ++i) {
      const auto aliases = aliases_.find(families[i].name);
      if (aliases == aliases_.end()) continue;
      for (const std::string& name : aliases->second) {
        prometheus::MetricFamily copy = families[i];
        copy.name = name;
        families.push_back(std::move(copy));
      }
    }
    return families;
  }

 private:
  void CheckName(const MetricName& name, bool is_counter) {
    SKEIN_CHECK(IsName(name.name) && absl::StartsWith(name.name, "skein_"))
        << "metric name \"" << name.name << "\" must be skein_ and lower case";
    SKEIN_CHECK(absl::EndsWith(name.name, "_total") == is_counter)
        << name.name << ": _total is the ending of counters, and of nothing else";
    SKEIN_CHECK(!name.help.empty()) << name.name << ": the help text is missing";
    SKEIN_CHECK(names_.insert(name.name).second) << name.name << ": declared twice";
  }

  static LabelMap LabelsOf(std::span<const LabelSet> labels, size_t index) {
    LabelMap map;
    for (size_t i = labels.size(); i-- > 0;) {
      map[labels[i].name] = labels[i].values[index % labels[i].values.size()];
      index /= labels[i].values.size();
    }
    return map;
  }

  prometheus::Registry registry_;
  const LabelMap constant_labels_;
  std::set<std::string> names_;
  std::map<std::string, std::vector<std::string>> aliases_;  // by family
  size_t num_series_ = 0;
};

MetricsRegistry::MetricsRegistry(MetricLabels constant_labels)
    : impl_(std::make_unique<Impl>(std::move(constant_labels))) {}

MetricsRegistry::~MetricsRegistry() = default;

Counter MetricsRegistry::AddCounter(const MetricName& name) { return AddCounters(name, {}).At({}); }

Gauge MetricsRegistry::AddGauge(const MetricName& name) { return AddGauges(name, {}).At({}); }

Histogram MetricsRegistry::AddHistogram(const MetricName& name, std::span<const double> bounds) {
  return AddHistograms(name, bounds, {}).At({});
}

CounterFamily MetricsRegistry::AddCounters(const MetricName& name, std::vector<LabelSet> labels) {
  return impl_->Add<Counter>(name, prometheus::BuildCounter(), std::move(labels));
}

GaugeFamily MetricsRegistry::AddGauges(const MetricName& name, std::vector<LabelSet> labels) {
  return impl_->Add<Gauge>(name, prometheus::BuildGauge(), std::move(labels));
}

HistogramFamily MetricsRegistry::AddHistograms(const MetricName& name,
                                               std::span<const double> bounds,
                                               std::vector<LabelSet> labels) {
  return impl_->Add<Histogram>(name, prometheus::BuildHistogram(), std::move(labels),
                               std::vector<double>(bounds.begin(), bounds.end()));
}

void MetricsRegistry::AddAlias(const std::string& name, const std::string& family) {
  impl_->AddAlias(name, family);
}

std::string MetricsRegistry::Text() const {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out.precision(17);
  prometheus::TextSerializer().Serialize(out, impl_->Collect());
  AppendSample("skein_log_lines_suppressed_total", "counter",
               "Log lines of this process that its rate limits held back. Rising for minutes: the "
               "lines around it name what repeats.",
               static_cast<double>(LogLinesSuppressed()), out);
  AppendProcess(out);
  return std::move(out).str();
}

std::span<const double> TimeToFirstTokenBounds() { return kTimeToFirstToken; }
std::span<const double> InterTokenBounds() { return kInterToken; }
std::span<const double> RequestLatencyBounds() { return kRequestLatency; }
std::span<const double> TokenCountBounds() { return kTokenCount; }
std::span<const double> StepTokenBounds() { return kStepTokens; }
std::span<const double> StepBatchBounds() { return kStepBatch; }
std::span<const double> StepDurationBounds() { return kStepDuration; }
std::span<const double> MessageLatencyBounds() { return kMessageLatency; }

}  // namespace skein::protocol
