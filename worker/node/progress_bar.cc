// Drawing over the line in which the cursor is.
// Supervisor's thread. Must never log: it stands in the way of the log's output.
#include "worker/node/progress_bar.h"

#include <algorithm>

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "protocol/base/strings.h"

namespace skein::worker {
namespace {

using protocol::Concat;

constexpr int kBarCells = 20;
constexpr size_t kColumnsUnknown = 80;
constexpr size_t kPhaseBytesMax = 20;
constexpr std::string_view kErase = "\r\033[K";

size_t Columns(int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kColumnsUnknown;
  return size.ws_col;
}

std::string Bar(int percent) {
  const auto cells = static_cast<size_t>(percent * kBarCells / 100);
  return Concat("[", std::string(cells, '#'), std::string(kBarCells - cells, '.'), "]");
}

}  // namespace

bool ReadProgress(std::string_view text, std::string_view& phase, int& percent) {
  const size_t space = text.find(' ');
  if (space == std::string_view::npos) return false;
  phase = text.substr(0, space);
  const bool is_word = !phase.empty() && phase.size() <= kPhaseBytesMax &&
                       std::all_of(phase.begin(), phase.end(),
                                   [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; });
  return is_word && absl::SimpleAtoi(protocol::ToAbsl(text.substr(space + 1)), &percent) &&
         percent >= 0 && percent <= 100;
}

void ProgressBar::Draw(std::string_view text) const {
  pollfd wait{options_.fd, POLLOUT, 0};
  if (::poll(&wait, 1, 0) != 1 || (wait.revents & POLLOUT) == 0) return;
  [[maybe_unused]] const ssize_t count = ::write(options_.fd, text.data(), text.size());
}

// "worker.0 weights [#####...............]  27 %   worker.1 ...", cut at the edge.
std::string ProgressBar::Line() const {
  std::string line;
  for (const auto& [child, part] : parts_) {
    const std::string percent = std::to_string(part.percent);
    line += Concat(line.empty() ? "" : "   ", child, " ", part.phase, " ", Bar(part.percent), " ",
                   std::string(3 - percent.size(), ' '), percent, " %");
  }
  return line.substr(0, Columns(options_.fd) - 1);
}

void ProgressBar::Hide() {
  if (is_shown_) Draw(kErase);
  is_shown_ = false;
}

void ProgressBar::Show() {
  if (!options_.is_terminal || parts_.empty()) return;
  Draw(Concat(kErase, Line()));
  is_shown_ = true;
}

void ProgressBar::Update(std::string_view child, std::string_view phase, int percent,
                         absl::Time now) {
  auto found = parts_.find(child);
  if (found == parts_.end()) found = parts_.emplace(child, Part{{}, 0, now}).first;
  Part& part = found->second;
  part.phase = phase;
  part.percent = percent;
  if (options_.is_terminal) return Show();
  if (now - part.said < kPlainEvery || !options_.plain) return;
  part.said = now;
  options_.plain(Concat(child, ": ", phase, " ", percent, " %"));
}

void ProgressBar::Done(std::string_view child) {
  const auto found = parts_.find(child);
  if (found == parts_.end()) return;
  parts_.erase(found);
  Hide();
  Show();
}

}  // namespace skein::worker
