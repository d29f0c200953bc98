// A directory of its own for one test, removed with it; a copy of a checkpoint to damage.
// Owns the directory. Thread: the test's.
// Must never: write outside of it.
#pragma once

#include <stdlib.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

namespace skein::tests {

inline std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

inline void WriteFile(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  stream << bytes;
}

// `text` with its first `from` replaced; a failure of the test if there is none.
inline std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  if (at != std::string::npos) text.replace(at, from.size(), to);
  return text;
}

class ScratchDir {
 public:
  ScratchDir() {
    std::string path = ::testing::TempDir() + "skein_XXXXXX";
    EXPECT_NE(::mkdtemp(path.data()), nullptr);
    path_ = path;
  }
  // A copy of every file of `source` but recorded results.
  explicit ScratchDir(const std::filesystem::path& source) : ScratchDir() {
    for (const auto& entry : std::filesystem::directory_iterator(source)) {
      if (entry.path().filename().string().starts_with("goldens")) continue;
      std::filesystem::copy(entry.path(), path_ / entry.path().filename());
    }
  }
  ~ScratchDir() { std::filesystem::remove_all(path_); }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

// A safetensors file in its parts.
struct SafetensorsParts {
  std::string header;
  std::string data;

  static SafetensorsParts Read(const std::filesystem::path& path) {
    const std::string bytes = ReadFile(path);
    uint64_t size = 0;
    std::memcpy(&size, bytes.data(), sizeof(size));
    return {bytes.substr(8, size), bytes.substr(8 + size)};
  }
  std::string Bytes() const {
    const uint64_t size = header.size();
    std::string out(reinterpret_cast<const char*>(&size), sizeof(size));
    return out + header + data;
  }
};

}  // namespace skein::tests
