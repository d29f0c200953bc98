// How far the children have come in their start: one line at the bottom of a terminal, drawn anew
// below whatever else is written there; elsewhere a plain line now and then.
// Owns nothing: the descriptor is the caller's. Supervisor's thread.
// Must never wait for a reader.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "absl/time/time.h"

namespace skein::worker {

class ProgressBar {
 public:
  // Between two plain lines of a child, and before its first.
  static constexpr absl::Duration kPlainEvery = absl::Seconds(5);

  struct Options {
    int fd = 2;                                        // of the terminal
    bool is_terminal = false;                          // it can be drawn on
    std::function<void(std::string_view text)> plain;  // writes a line without its newline
  };

  explicit ProgressBar(Options options) : options_(std::move(options)) {}
  ~ProgressBar() { Hide(); }

  // A child has done so much of a phase of its start. Words that are none are left out.
  void Update(std::string_view child, std::string_view phase, int percent, absl::Time now);
  // The child has started, or ended.
  void Done(std::string_view child);

  // Something else is about to be written to the terminal; it has been.
  void Hide();
  void Show();

 private:
  struct Part {
    std::string phase;
    int percent = 0;
    absl::Time said;  // its last plain line, or its begin
  };

  std::string Line() const;
  void Draw(std::string_view text) const;

  const Options options_;
  std::map<std::string, Part, std::less<>> parts_;  // by child
  bool is_shown_ = false;
};

// Reads "PHASE PERCENT" as a child reports it; false when it is nothing of the kind.
bool ReadProgress(std::string_view text, std::string_view& phase, int& percent);

}  // namespace skein::worker
