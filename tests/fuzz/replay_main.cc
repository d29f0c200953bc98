// Gives every file of the directories in its arguments to a fuzz target, in the order of their
// names: a corpus as a test. Where a target is built with libFuzzer, that is its main instead.
// Wiring only.

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "tests/fuzz/fuzz_target.h"

namespace skein::tests {
namespace {

int Replay(int num_directories, char** directories) {
  std::set<std::filesystem::path> files;
  for (int i = 0; i < num_directories; ++i) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(directories[i], error)) {
      if (entry.is_regular_file()) files.insert(entry.path());
    }
    if (error) std::fprintf(stderr, "%s: %s\n", directories[i], error.message().c_str());
  }
  if (files.empty()) {
    std::fprintf(stderr, "no input: name a directory of tests/fuzz/corpus\n");
    return 1;
  }
  for (const std::filesystem::path& file : files) {
    // Stays on the screen when the target ends the process.
    std::printf("%s\n", file.c_str());
    std::fflush(stdout);
    std::ifstream stream(file, std::ios::binary);
    const std::string input{std::istreambuf_iterator<char>(stream), {}};
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  }
  std::printf("inputs=%zu\n", files.size());
  return 0;
}

}  // namespace
}  // namespace skein::tests

int main(int argc, char** argv) { return skein::tests::Replay(argc - 1, argv + 1); }
