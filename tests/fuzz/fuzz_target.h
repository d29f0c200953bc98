// What a fuzz target is made of: its entry, and what the targets share. libFuzzer calls the entry
// with inputs of its own, replay_main.cc with those of the corpus.
// Thread: one.
// Must never: depend on anything but the input.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

// Looks at one input. Ends the process when a property does not hold; returns 0.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace skein::tests {

inline std::string_view TextOf(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Ends the process, which is how a target reports, unless the property `what` holds.
inline void Require(bool holds, std::string_view what, std::string_view detail = "") {
  if (holds) return;
  std::fprintf(stderr, "property does not hold: %.*s: %.*s\n", static_cast<int>(what.size()),
               what.data(), static_cast<int>(detail.size()), detail.data());
  std::abort();
}

// Decisions that follow from an input: the same input gives the same ones.
class Decisions {
 public:
  explicit Decisions(std::string_view input) {
    for (const char c : input) state_ = (state_ ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  }
  // Below `bound`, which is not zero.
  size_t Below(size_t bound) {
    state_ += 0x9E3779B97F4A7C15u;
    uint64_t x = state_;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return static_cast<size_t>((x ^ (x >> 31)) % bound);
  }

 private:
  uint64_t state_ = 0xCBF29CE484222325u;
};

// How a text arrives.
enum class Cut { kWhole, kBytes, kSome };
inline constexpr Cut kCuts[] = {Cut::kWhole, Cut::kBytes, Cut::kSome};

// `text` in pieces, which join to it again.
inline std::vector<std::string_view> Pieces(std::string_view text, Cut cut) {
  std::vector<std::string_view> pieces;
  Decisions decisions(text);
  while (!text.empty()) {
    size_t size = text.size();
    if (cut == Cut::kBytes) size = 1;
    if (cut == Cut::kSome) size = std::min(size, 1 + decisions.Below(12));
    pieces.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return pieces;
}

// The input from its begin on, value by value; zeros behind its end.
class Bytes {
 public:
  explicit Bytes(std::string_view input) : rest_(input) {}
  bool empty() const { return rest_.empty(); }
  uint64_t Number(size_t num_bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < num_bytes && !rest_.empty(); ++i) {
      value = value << 8 | static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
    }
    return value;
  }
  std::string_view Rest() const { return rest_; }

 private:
  std::string_view rest_;
};

// A file without a place that holds an input, for what reads files by name.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view content) : fd_(::memfd_create("input", MFD_CLOEXEC)) {
    Require(fd_ >= 0 && ::write(fd_, content.data(), content.size()) ==
                            static_cast<ssize_t>(content.size()),
            "an input becomes a file");
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  const int fd_;
};

}  // namespace skein::tests
