// Counters, gauges and histograms of a process as handles over a prometheus-cpp registry, and their
// text form 0.0.4 for our own listener. Families are declared once, in one struct per binary, with
// closed label sets: every combination exists, as zero, from the start.
// Declare while main() wires; updating handles and Text() are safe from any thread.
// Must never take a label value from a request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace skein::protocol {

// Content-Type of MetricsRegistry::Text.
inline constexpr std::string_view kMetricsContentType = "text/plain; version=0.0.4; charset=utf-8";

// A number that only grows.
class Counter {
 public:
  using Cell = prometheus::Counter;
  explicit Counter(Cell* cell) : cell_(cell) {}
  void Increment(double amount = 1);  // negative amounts and NaN are ignored
  double value() const;

 private:
  Cell* cell_;  // owned by the registry, which outlives every handle
};

// A number that is set.
class Gauge {
 public:
  using Cell = prometheus::Gauge;
  explicit Gauge(Cell* cell) : cell_(cell) {}
  void Set(double value);
  void Add(double amount);
  double value() const;

 private:
  Cell* cell_;
};

// A distribution; NaN is ignored.
class Histogram {
 public:
  using Cell = prometheus::Histogram;
  explicit Histogram(Cell* cell) : cell_(cell) {}
  void Observe(double value);
  // So many more values in each bucket, the last one above all bounds, and their sum.
  void Add(const std::vector<double>& by_bucket, double sum);
  uint64_t count() const;
  double sum() const;

 private:
  Cell* cell_;
};

// The observations of one thread, put into their histogram together: for what happens per token,
// where a shared cell costs more than what it counts.
class HistogramBuffer {
 public:
  // `bounds`: those of the histogram; they outlive the buffer.
  HistogramBuffer(Histogram to, std::span<const double> bounds)
      : to_(to), bounds_(bounds), pending_(bounds.size() + 1, 0) {}
  // So many equal values; NaN is ignored.
  void Observe(double value, uint32_t times = 1);
  // What was observed is in the text from now on.
  void Flush();
  // With what was not flushed.
  uint64_t count() const;
  double sum() const { return to_.sum() + pending_sum_; }

 private:
  Histogram to_;
  std::span<const double> bounds_;
  std::vector<double> pending_;  // by bucket
  double pending_sum_ = 0;
  bool has_pending_ = false;
};

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

// A label of a family and every value it can have.
struct LabelSet {
  std::string name;
  std::vector<std::string> values;
};

// All series of a family with labels.
template <typename Handle>
class Family {
 public:
  Family(std::vector<LabelSet> labels, std::vector<Handle> series)
      : labels_(std::move(labels)), series_(std::move(series)) {}

  // The series with these label values, in the order of declaration. A value outside the closed set
  // is a bug and ends the process.
  Handle At(std::initializer_list<std::string_view> values) const {
    return series_[IndexOf(labels_, values)];
  }

 private:
  static size_t IndexOf(std::span<const LabelSet> labels,
                        std::initializer_list<std::string_view> values);

  std::vector<LabelSet> labels_;
  std::vector<Handle> series_;  // row-major over labels_
};

using CounterFamily = Family<Counter>;
using GaugeFamily = Family<Gauge>;
using HistogramFamily = Family<Histogram>;

// What every family needs: `name` skein_<noun>_<unit>[_total], `help` for somebody at night.
struct MetricName {
  std::string name;
  std::string help;
};

class MetricsRegistry final {
 public:
  // Most series of one registry; declaring more ends the process.
  static constexpr size_t kSeriesMax = 10'000;

  // `constant_labels` are on every series (model_name, engine; node, worker).
  explicit MetricsRegistry(MetricLabels constant_labels);
  ~MetricsRegistry();
  MetricsRegistry(const MetricsRegistry&) = delete;
  MetricsRegistry& operator=(const MetricsRegistry&) = delete;

  // A name that is taken, malformed or of another kind (counters end in _total, nothing else does)
  // is a bug and ends the process.
  Counter AddCounter(const MetricName& name);
  Gauge AddGauge(const MetricName& name);
  Histogram AddHistogram(const MetricName& name, std::span<const double> bounds);
  CounterFamily AddCounters(const MetricName& name, std::vector<LabelSet> labels);
  GaugeFamily AddGauges(const MetricName& name, std::vector<LabelSet> labels);
  HistogramFamily AddHistograms(const MetricName& name, std::span<const double> bounds,
                                std::vector<LabelSet> labels);

  // A second name for a whole family that is declared, in another program's vocabulary; anything
  // else is a bug and ends the process.
  void AddAlias(const std::string& name, const std::string& family);

  // Every family with its HELP and TYPE lines, aliases behind them, then process_* read at this
  // moment.
  std::string Text() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Bucket bounds; those of vLLM where it has the metric.
std::span<const double> TimeToFirstTokenBounds();
std::span<const double> InterTokenBounds();
std::span<const double> RequestLatencyBounds();
std::span<const double> TokenCountBounds();  // 1-2-5 series to a million
std::span<const double> StepTokenBounds();
std::span<const double> StepBatchBounds();
std::span<const double> StepDurationBounds();
std::span<const double> MessageLatencyBounds();

}  // namespace skein::protocol
