// The log of a process and its CHECK. Lines are key=value or JSON, rate-limited per call site and
// per process; main() chooses level, form and sink once, before other threads start.
// Any thread may log. Must never be called per token, per layer or per step at kInfo, and must
// never print a prompt.
#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <functional>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>

#include "protocol/base/ids.h"

namespace skein::protocol {

enum class LogLevel { kDebug, kInfo, kWarn, kError, kOff };
enum class LogForm { kKeyValue, kJson };

// "debug", "info", "warn", "error", "off"; the names of the configuration.
std::string_view LogLevelName(LogLevel level);

struct LogOptions {
  LogLevel level = LogLevel::kInfo;
  LogForm form = LogForm::kKeyValue;
  std::string process;  // names the program in each line, e.g. "skein-worker"; may be empty
  // Receives each finished line with its newline. Empty: standard error. Called under a lock.
  std::function<void(std::string_view line)> sink;
};

// Replaces the log of the process. Called by main() (and by tests) while no other thread logs.
// Without a call: kInfo, key=value, standard error.
void InstallLog(LogOptions options);

// Lines suppressed by a bucket since the start, for the metrics.
uint64_t LogLinesSuppressed();

// A token bucket as one atomic: `per_second` on average, bursts of as many. Any thread.
class LogBucket {
 public:
  explicit constexpr LogBucket(int64_t per_second)
      : interval_ns_(1'000'000'000 / per_second), burst_ns_(1'000'000'000) {}
  // True when a line may pass at the monotonic time `now_ns`.
  bool TryTake(int64_t now_ns);

 private:
  const int64_t interval_ns_;
  const int64_t burst_ns_;
  std::atomic<int64_t> next_ns_{0};  // when the bucket would be full again
};

// State of one call site: 20 lines a second; errors get one a second past the process's bucket.
class LogSite {
 public:
  static constexpr int64_t kLinesPerSecond = 20;

  // True when the line may be written; else it was counted. `suppressed` gets the number of lines
  // held back here since the last one that passed.
  bool Admit(LogLevel level, int64_t now_ns, uint64_t& suppressed);

 private:
  LogBucket bucket_{kLinesPerSecond};
  LogBucket guaranteed_{1};
  std::atomic<uint64_t> suppressed_{0};
};

// One line being built; written when it is destroyed, at the end of the statement.
class LogLine {
 public:
  LogLine(LogLevel level, std::string_view text, LogSite& site);
  ~LogLine();
  LogLine(const LogLine&) = delete;
  LogLine& operator=(const LogLine&) = delete;

  // Adds `name=value`. Values: integers, strong ids, floats, bool, text.
  template <typename T>
  LogLine& Field(std::string_view name, const T& value) {
    if (!enabled_) return *this;
    if constexpr (std::is_same_v<T, bool>) {
      AddRaw(name, value ? "true" : "false");
    } else if constexpr (std::signed_integral<T>) {
      AddRaw(name, std::to_string(static_cast<int64_t>(value)));
    } else if constexpr (std::unsigned_integral<T>) {
      AddRaw(name, std::to_string(static_cast<uint64_t>(value)));
    } else if constexpr (std::floating_point<T>) {
      AddFloat(name, static_cast<double>(value));
    } else if constexpr (requires {
                           typename T::value_type;
                           value.value();
                         }) {
      AddRaw(name, std::to_string(value.value()));
    } else {
      AddText(name, std::string_view(value));
    }
    return *this;
  }

 private:
  void AddRaw(std::string_view name, std::string_view value);
  void AddFloat(std::string_view name, double value);
  void AddText(std::string_view name, std::string_view value);

  const LogLevel level_;
  bool enabled_ = false;
  std::string body_;
};

// Ends the process with the place, the condition and the text streamed into it. Use SKEIN_CHECK.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return text_; }

 private:
  std::ostringstream text_;
};

// Turns the stream expression of SKEIN_CHECK into void.
struct CheckVoidify {
  void operator&(std::ostream&) const {}
};

}  // namespace skein::protocol

// SKEIN_LOG(kInfo, "group formed").Field("group", group).Field("epoch", epoch);
#define SKEIN_LOG(level, text)                                                   \
  ::skein::protocol::LogLine(::skein::protocol::LogLevel::level, (text),         \
                             []() -> ::skein::protocol::LogSite& {               \
                               static ::skein::protocol::LogSite skein_log_site; \
                               return skein_log_site;                            \
                             }())

// SKEIN_CHECK(a == b) << "invariant 3: a=" << a; for what can only be our own bug.
#define SKEIN_CHECK(condition)                      \
  (condition) ? static_cast<void>(0)                \
              : ::skein::protocol::CheckVoidify() & \
                    ::skein::protocol::CheckFailure(__FILE__, __LINE__, #condition).stream()
