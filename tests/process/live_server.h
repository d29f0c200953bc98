// A real `skein serve` of the build tree: supervisor, coordinator and worker, with a directory of
// its own, by whose name its processes are known. Ended by handle with TERM when the test ends.
// Owns: the process, its output and the directory.
// Thread: the test's; output is read by a thread of its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "protocol/http/http_client.h"
#include "worker/node/descriptor.h"

namespace skein::tests {

// How long a test waits for what must happen; only a failure takes it.
inline constexpr absl::Duration kLimit = absl::Seconds(60);

// A process by its handle: the number may be reused, the handle never is.
class ProcessHandle {
 public:
  ProcessHandle() = default;
  explicit ProcessHandle(int pid);

  int pid() const { return pid_; }
  bool valid() const { return handle_.valid(); }
  bool Signal(int number) const;
  // True when it has ended before the limit.
  bool WaitForEnd(absl::Duration limit) const;

 private:
  int pid_ = 0;
  worker::Descriptor handle_;
};

class LiveServer {
 public:
  // `programs`: the directory of skein and the programs it starts; empty: the build tree's.
  explicit LiveServer(std::string programs = "");
  ~LiveServer();
  LiveServer(const LiveServer&) = delete;
  LiveServer& operator=(const LiveServer&) = delete;

  // Starts `skein serve` with these flags, on a free port unless they name one. Again, in the same
  // directory, when the last one has ended and was waited for.
  void Start(std::vector<std::string> flags = {});
  // The same, until /health is 200. False with the reason in output().
  bool StartReady(std::vector<std::string> flags = {});

  // Waits until /health has this status and, unless empty, contains `text`.
  bool WaitForHealth(int status, std::string_view text = {});
  // Waits until the output contains `text` `times` times; false when the time is over or skein
  // ended without it.
  bool WaitForOutput(std::string_view text, int times = 1);
  std::string output() const;  // both streams, as they came
  std::string errors() const;  // standard error alone

  // The port the coordinator last reported.
  uint16_t port() const;
  // The sum of a metric over its labels; -1 when it is not exported.
  // Of those with the label alone, when the name ends with {label="value"}.
  double Metric(std::string_view name) const;
  // Waits until the metric has the value.
  bool WaitForMetric(std::string_view name, double value) const;

  // A call to the operators' socket. Status 0 when it cannot be reached.
  protocol::HttpResult Admin(const std::string& method, const std::string& target,
                             const std::string& body = "") const;
  // Waits until GET /admin/status contains `text`.
  bool WaitForStatus(std::string_view text) const;

  const ProcessHandle& skein() const { return skein_; }
  // The oldest process of ours that runs this program, with this argument unless it is empty; not
  // valid when there is none.
  ProcessHandle Find(std::string_view program, std::string_view argument = {}) const;
  // The command lines of our processes that are alive.
  std::vector<std::string> Alive() const;
  // The exit status of skein, or minus its signal; -1000 when it did not end in time.
  int WaitForExit(absl::Duration limit = kLimit);

  const std::string& directory() const { return directory_; }

 private:
  void ReadOutput();

  std::string program_;
  std::string directory_;
  ProcessHandle skein_;
  std::optional<int> exit_;
  worker::Descriptor out_;
  worker::Descriptor err_;
  std::thread reader_;
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::string output_;
  std::string errors_;
  bool output_ended_ = false;
};

// Looks again and again until `done` holds or the time is over; false then.
bool WaitUntil(const std::function<bool()>& done, absl::Duration limit = kLimit);
// The ports at which the workers of this output are scraped, as the start table says them.
std::vector<uint16_t> ScrapedPorts(const std::string& output);
// A TCP port that was free a moment ago.
uint16_t FreePort();

}  // namespace skein::tests
