// Prints numbered lines as fast as it is told to, for a time: flood LINES_PER_SECOND SECONDS, in
// every other half second of the monotonic clock, so that what is beside it can be compared with
// itself. A child of a worker in tests of the log. Must never be paced by its reader's speed alone.
#include <charconv>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include <poll.h>
#include <unistd.h>

int main(int argc, char** argv) {
  uint64_t per_second = 0, seconds = 0;
  const auto read = [&](int i, uint64_t& value) {
    const std::string_view text = i < argc ? argv[i] : "";
    return std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc();
  };
  if (!read(1, per_second) || !read(2, seconds)) return 64;
  using Clock = std::chrono::steady_clock;
  const auto is_silent = [] {
    const auto now = Clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::milliseconds>(now).count() / 500 % 2 == 0;
  };
  const Clock::time_point start = Clock::now();
  uint64_t printed = 0, skipped = 0;
  std::string text;
  for (uint64_t elapsed_ms = 0; elapsed_ms < seconds * 1000;) {
    ::poll(nullptr, 0, 1);
    elapsed_ms = static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count());
    text.clear();
    const uint64_t due = per_second * elapsed_ms / 1000;
    if (is_silent()) skipped = due - printed;
    for (; printed + skipped < due; ++printed) {
      text += "flood of a worker that prints without end, line " + std::to_string(printed) + "\n";
      if (text.size() < 60'000 && printed + skipped + 1 < due) continue;
      if (::write(1, text.data(), text.size()) < 0) return 74;
      text.clear();
    }
  }
  text = "flood printed " + std::to_string(printed) + " lines\n";
  return ::write(1, text.data(), text.size()) < 0 ? 74 : 0;
}
