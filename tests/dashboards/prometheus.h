// A real Prometheus that scrapes real processes, and what it answers.
// Owns: the process, which ends with the test, and its files. Thread: the test's.
#pragma once

#include <cstdint>
#include <ctime>
#include <string>
#include <vector>

#include "tests/process/live_server.h"

namespace skein::tests {

struct ScrapeJob {
  std::string name;
  std::vector<uint16_t> ports;  // on this host
  std::string key;              // bearer token; empty: none
};

class Prometheus {
 public:
  // The program is there; false with its package in the test's output.
  static bool IsInstalled();

  // Scrapes the jobs each second and evaluates the rule files; its own files lie in `directory`.
  Prometheus(const std::string& directory, const std::vector<ScrapeJob>& jobs,
             const std::vector<std::string>& rule_files);
  ~Prometheus();
  Prometheus(const Prometheus&) = delete;
  Prometheus& operator=(const Prometheus&) = delete;

  bool WaitReady() const;
  // The values that an expression has now, one for each series.
  std::vector<double> Query(const std::string& expression) const;
  // Of a query with one series; NaN otherwise.
  double Value(const std::string& expression) const;
  // All values that it had between two times, of all series, each second.
  std::vector<double> Range(const std::string& expression, std::time_t from, std::time_t to) const;
  // What a rule's evaluation said is wrong, of all rules.
  std::vector<std::string> RuleProblems() const;
  // What the program wrote.
  std::string Log() const;

 private:
  std::string Ask(const std::string& path, const std::string& form) const;

  const std::string directory_;
  const uint16_t port_;
  ProcessHandle process_;
};

}  // namespace skein::tests
