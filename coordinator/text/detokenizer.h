// Streaming text of one choice: token bytes to whole code points, cut at stop strings.
// Owns: bytes of an unfinished code point and text that may begin a stop string.
// Thread: one object is used by one thread.
// Must never: emit part of a code point, emit text after a stop string, or hold back more than
// what may still become one.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace skein::coordinator {

struct StopStrings {
  std::vector<std::string> strings;  // valid UTF-8, not empty
  bool include_in_output = false;    // the match stays in the text
};

class Detokenizer {
 public:
  explicit Detokenizer(StopStrings stop = {});

  enum class Honour { kStops, kNoStops };

  // Adds the bytes of one token and returns the text that is now certain. Bytes that are not
  // UTF-8 become U+FFFD. With kNoStops a stop string that ends inside this token does not count.
  // After a match nothing is returned any more.
  std::string Append(std::string_view token_bytes, Honour honour = Honour::kStops);

  // The text still held back, at the end of the generation.
  std::string Finish();

  // The stop string that matched first.
  const std::optional<std::string>& matched() const { return matched_; }

 private:
  // Progress of one stop string: how many of its bytes the text ends with.
  struct Matcher {
    std::vector<size_t> fallback;
    size_t length = 0;
  };

  void AppendText(std::string_view text, Honour honour, std::string* out);
  size_t LongestPrefix() const;

  StopStrings stop_;
  std::vector<Matcher> matchers_;
  std::string bytes_;  // start of a code point
  std::string held_;   // text that ends with the start of a stop string
  std::optional<std::string> matched_;
};

}  // namespace skein::coordinator
