// Where a worker's threads and memory lie on its host: processors that no other worker has taken,
// and pages spread over the memory nodes. Owns the claims while it lives. Thread: built on the main
// thread before any other is started. Must never: fail a start; what cannot be had is reported.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace skein::worker {

// Processors taken for this process among the skein workers of the host. A claim is a bound socket
// name without a file: the system drops it when the process ends, however it ends.
class ProcessorClaims {
 public:
  ProcessorClaims() = default;
  ProcessorClaims(ProcessorClaims&& other) noexcept;
  ProcessorClaims& operator=(ProcessorClaims&& other) noexcept;
  ~ProcessorClaims();

  // `count` of `usable` that nobody claims; all or none: without enough, processors() is empty.
  static ProcessorClaims Take(const std::vector<int>& usable, int count);
  const std::vector<int>& processors() const { return processors_; }

 private:
  void Release();
  std::vector<int> processors_;
  std::vector<int> sockets_;
};

// "0-1,4" as the system lists nodes; nothing if the text is not such a list.
std::optional<std::vector<int>> ParseNodeList(std::string_view text);

// Spreads pages that this process touches first over all memory nodes, for threads started from now
// on too: checkpoint pages are shared by all workers of the host and read by all threads. Returns
// what was done, for the start-up report.
std::string InterleaveMemory();

// Equal for processes that can share memory and meet by name: of one boot of one kernel, in one
// network namespace.
std::string HostIdentity();

}  // namespace skein::worker
