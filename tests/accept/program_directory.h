// A directory with the programs of a server of the build tree, in which another program may stand
// in for the worker. Owns the directory until it ends. Any one thread.
// Must never leave a file behind.
#pragma once

#include <string>
#include <string_view>

namespace skein::tests {

class ProgramDirectory {
 public:
  // `worker`: a program of the build tree that is called skein-worker here.
  explicit ProgramDirectory(std::string_view worker);
  ~ProgramDirectory();
  ProgramDirectory(const ProgramDirectory&) = delete;
  ProgramDirectory& operator=(const ProgramDirectory&) = delete;

  // What a step of mock-worker takes, and each row of it.
  void SetMockSpeed(int step_us, int row_ns) const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace skein::tests
