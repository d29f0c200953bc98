// A program of a check, started with its output in a file and ended by its handle.
// Owns the process. One thread. Must never leave it behind.
#pragma once

#include <string>
#include <vector>

#include "tests/process/live_server.h"

namespace skein::tests {

class ChildProgram {
 public:
  // Throws when the process cannot be made. `arguments[0]` is looked up as a shell would.
  ChildProgram(const std::vector<std::string>& arguments, std::string output_file);
  ~ChildProgram();
  ChildProgram(const ChildProgram&) = delete;
  ChildProgram& operator=(const ChildProgram&) = delete;

  const ProcessHandle& process() const { return process_; }
  std::string output() const;

 private:
  const std::string output_file_;
  ProcessHandle process_;
};

// Runs a command to its end; its exit status, or -1.
int RunCommand(const std::vector<std::string>& arguments);

// The value of a metric in the text of /metrics at this port, summed over its labels that contain
// `labels`; -1 when nobody answers.
double MetricAt(uint16_t port, std::string_view name, std::string_view labels = "");

}  // namespace skein::tests
