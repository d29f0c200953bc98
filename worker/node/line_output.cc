// Writing without waiting.
// Supervisor's thread. Must never log from Write: it is the sink of the log.
#include "worker/node/line_output.h"

#include <algorithm>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/base/strings.h"

namespace skein::worker {
namespace {

// A pipe that is ready takes a piece of this size whole.
constexpr size_t kPieceBytes = 4096;

// A description of its own of the terminal, if it is one. A poll says nothing of how much a
// terminal takes, and to make the shared one not wait would change it for the shell, too.
Descriptor OpenTerminal(int fd) {
  if (::isatty(fd) != 1) return Descriptor();
  return Descriptor(::open(protocol::Concat("/proc/self/fd/", fd).c_str(),
                           O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace

LineOutput::LineOutput(int fd, std::unique_ptr<LogFiles> files)
    : terminal_(OpenTerminal(fd)),
      fd_(terminal_.valid() ? terminal_.get() : fd),
      files_(std::move(files)) {}

bool LineOutput::WriteToDescriptor(std::string_view text) {
  if (bar_ == nullptr) return WritePieces(text);
  bar_->Hide();
  const bool is_whole = WritePieces(text);
  bar_->Show();
  return is_whole;
}

bool LineOutput::WritePieces(std::string_view text) const {
  while (!text.empty()) {
    pollfd wait{fd_, POLLOUT, 0};
    const std::string_view piece = text.substr(0, kPieceBytes);
    if (::poll(&wait, 1, 0) != 1 || (wait.revents & POLLOUT) == 0) return false;
    const ssize_t count = ::write(fd_, piece.data(), piece.size());
    if (count <= 0) return false;
    text.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

void LineOutput::Write(std::string_view lines) {
  if (lines.empty()) return;
  works_again_ =
      files_ != nullptr ? files_->Write(lines, protocol::MonotonicNow()) : WriteToDescriptor(lines);
  if (works_again_) {
    is_told_ = false;
    return;
  }
  lines_lost_ += static_cast<uint64_t>(std::count(lines.begin(), lines.end(), '\n'));
  if (files_ != nullptr && !is_told_) TellFailure();
}

void LineOutput::TellFailure() {
  is_told_ = true;
  WriteToDescriptor(
      protocol::Concat("skein: log.directory (--log-directory): ", files_->directory(), ": ",
                       files_->problem(), "; lines are lost until there is room\n"));
}

void LineOutput::Tick(absl::Time now) {
  if (now < check_at_) return;
  check_at_ = now + kCheckEvery;
  if (files_ != nullptr) files_->CheckDisk();
  if (lines_lost_ == lines_told_) return;
  const uint64_t lost = lines_lost_;
  SKEIN_LOG(kWarn, "lines were lost: the log could not be written")
      .Field("lines", lost - lines_told_)
      .Field("lines_in_all", lost);
  if (works_again_) lines_told_ = lost;  // the line itself came through
}

}  // namespace skein::worker
