#include "tests/accept/program_directory.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "protocol/base/strings.h"

namespace skein::tests {

using protocol::Concat;
namespace fs = std::filesystem;

ProgramDirectory::ProgramDirectory(std::string_view worker) {
  char path[] = "/tmp/skein_programs_XXXXXX";
  path_ = ::mkdtemp(path);
  for (const char* name : {"skein", "skein-node", "skein-coordinator"}) {
    fs::copy_file(Concat(SKEIN_PROGRAM_DIRECTORY, "/", name), Concat(path_, "/", name));
  }
  fs::copy_file(Concat(SKEIN_PROGRAM_DIRECTORY, "/", worker), path_ + "/skein-worker");
}

ProgramDirectory::~ProgramDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void ProgramDirectory::SetMockSpeed(int step_us, int row_ns) const {
  std::ofstream(path_ + "/mock-worker.speed") << step_us << ' ' << row_ns << '\n';
}

}  // namespace skein::tests
