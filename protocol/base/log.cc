// The one file that knows spdlog: patterns, escaping, buckets and the sink of the process log.
// Any thread; InstallLog only while nobody else logs. Must never allocate a file or rotate one:
// children write to a pipe and the supervisor owns what becomes of it.
#include "protocol/base/log.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <utility>

#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include "protocol/base/control_bytes.h"

namespace skein::protocol {
namespace {

constexpr size_t kLineBytesMax = 2048;
constexpr int64_t kProcessLinesPerSecond = 500;

// Hands finished lines to the function main() gave.
class FunctionSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FunctionSink(std::function<void(std::string_view)> write) : write_(std::move(write)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    write_(std::string_view(line.data(), line.size()));
  }
  void flush_() override {}

  std::function<void(std::string_view)> write_;
};

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::off;
}

void AppendEscaped(std::string_view text, std::string& out) {
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (const size_t bytes = ControlBytes(text.substr(i)); bytes > 0) {
      i += bytes - 1;  // the last byte of a C1 is its code
      out += "\\u00";
      AppendHex(static_cast<unsigned char>(text[i]), out);
    } else {
      out += c;
    }
  }
}

struct ProcessLog {
  std::shared_ptr<spdlog::logger> logger;
  LogForm form = LogForm::kKeyValue;
  LogBucket bucket{kProcessLinesPerSecond};
  std::atomic<uint64_t> suppressed{0};
};

std::shared_ptr<spdlog::logger> MakeLogger(const LogOptions& options) {
  spdlog::sink_ptr sink;
  if (options.sink) {
    sink = std::make_shared<FunctionSink>(options.sink);
  } else {
    sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  }
  std::string process;
  AppendEscaped(options.process, process);
  std::string pattern;
  if (options.form == LogForm::kJson) {
    pattern = R"({"ts":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l",)";
    if (!process.empty()) pattern += "\"process\":\"" + process + "\",";
    pattern += "%v}";
  } else {
    pattern = "ts=%Y-%m-%dT%H:%M:%S.%eZ level=%l ";
    if (!process.empty()) pattern += "process=" + process + " ";
    pattern += "%v";
  }
  sink->set_formatter(
      std::make_unique<spdlog::pattern_formatter>(pattern, spdlog::pattern_time_type::utc, "\n"));
  auto logger = std::make_shared<spdlog::logger>("skein", std::move(sink));
  logger->set_level(ToSpdlog(options.level));
  logger->flush_on(spdlog::level::debug);
  return logger;
}

// The process-wide log: the one mutable global of the tree, replaced only by InstallLog.
ProcessLog& Log() {
  static ProcessLog* log = [] {
    auto* made = new ProcessLog;  // lives until the process ends: threads log while main returns
    made->logger = MakeLogger(LogOptions{});
    return made;
  }();
  return *log;
}

int64_t MonotonicNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool NeedsQuotes(std::string_view text) {
  if (text.empty()) return true;
  for (const char c : text) {
    if (c <= ' ' || c == '"' || c == '=' || c == '\\' || static_cast<unsigned char>(c) >= 0x7F) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string_view LogLevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarn:
      return "warn";
    case LogLevel::kError:
      return "error";
    case LogLevel::kOff:
      return "off";
  }
  return "off";
}

void InstallLog(LogOptions options) {
  ProcessLog& log = Log();
  log.form = options.form;
  log.logger = MakeLogger(options);
}

uint64_t LogLinesSuppressed() { return Log().suppressed.load(std::memory_order_relaxed); }

bool LogBucket::TryTake(int64_t now_ns) {
  int64_t next = next_ns_.load(std::memory_order_relaxed);
  while (true) {
    const int64_t base = next > now_ns ? next : now_ns;
    if (base - now_ns > burst_ns_ - interval_ns_) return false;
    if (next_ns_.compare_exchange_weak(next, base + interval_ns_, std::memory_order_relaxed)) {
      return true;
    }
  }
}

bool LogSite::Admit(LogLevel level, int64_t now_ns, uint64_t& suppressed) {
  bool pass = bucket_.TryTake(now_ns) && Log().bucket.TryTake(now_ns);
  if (!pass && level == LogLevel::kError) pass = guaranteed_.TryTake(now_ns);
  if (!pass) {
    suppressed_.fetch_add(1, std::memory_order_relaxed);
    Log().suppressed.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  suppressed = suppressed_.exchange(0, std::memory_order_relaxed);
  return true;
}

LogLine::LogLine(LogLevel level, std::string_view text, LogSite& site) : level_(level) {
  if (!Log().logger->should_log(ToSpdlog(level))) return;
  uint64_t suppressed = 0;
  if (!site.Admit(level, MonotonicNanoseconds(), suppressed)) return;
  enabled_ = true;
  AddText("msg", text);
  if (suppressed > 0) AddRaw("suppressed", std::to_string(suppressed));
}

LogLine::~LogLine() {
  if (!enabled_) return;
  Log().logger->log(ToSpdlog(level_), spdlog::string_view_t(body_.data(), body_.size()));
}

void LogLine::AddRaw(std::string_view name, std::string_view value) {
  const bool json = Log().form == LogForm::kJson;
  if (body_.size() + name.size() + value.size() + 8 > kLineBytesMax) return;
  if (!body_.empty()) body_ += json ? ',' : ' ';
  if (json) {
    body_ += '"';
    body_ += name;
    body_ += "\":";
  } else {
    body_ += name;
    body_ += '=';
  }
  body_ += value;
}

void LogLine::AddFloat(std::string_view name, double value) {
  if (!std::isfinite(value)) return AddText(name, std::isnan(value) ? "nan" : "inf");
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.6g", value);
  AddRaw(name, buffer);
}

void LogLine::AddText(std::string_view name, std::string_view value) {
  std::string text;
  const bool quotes = Log().form == LogForm::kJson || NeedsQuotes(value);
  if (quotes) text += '"';
  AppendEscaped(value.substr(0, kLineBytesMax), text);
  const size_t room_bytes = body_.size() + name.size() + 16 < kLineBytesMax
                                ? kLineBytesMax - body_.size() - name.size() - 16
                                : 0;
  if (text.size() > room_bytes) {
    text.resize(room_bytes);
    // Never cut inside an escape or a code point: both would break a reader of the line.
    while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xC0) == 0x80) {
      text.pop_back();
    }
    if (!text.empty() && static_cast<unsigned char>(text.back()) >= 0xC0) text.pop_back();
    const size_t escape = text.rfind('\\');
    if (escape != std::string::npos && text.size() - escape < 6) text.resize(escape);
    text += "...";
  }
  if (quotes) text += '"';
  AddRaw(name, text);
}

CheckFailure::CheckFailure(const char* file, int line, const char* condition) {
  text_ << "CHECK failed at " << file << ':' << line << ": " << condition << ' ';
}

CheckFailure::~CheckFailure() {
  std::string text;
  AppendEscaped(text_.str(), text);
  std::fprintf(stderr, "level=critical msg=\"%s\"\n", text.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace skein::protocol
