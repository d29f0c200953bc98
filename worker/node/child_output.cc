// Reading, cutting and escaping.
// Supervisor's thread. Must never buffer more than one unfinished line.
#include "worker/node/child_output.h"

#include <unistd.h>

#include "protocol/base/control_bytes.h"
#include "protocol/base/log.h"

namespace skein::worker {
namespace {

constexpr size_t kPieceBytes = 32 << 10;
constexpr int kReadsMax = 8;
constexpr size_t kLineBytesMax = 4096;
constexpr std::string_view kShown = "\n\t";

}  // namespace

bool ChildOutput::Read(int fd, absl::Time now) {
  char text[kPieceBytes];
  for (int reads = 0; reads < kReadsMax; ++reads) {
    const ssize_t count = ::read(fd, text, sizeof text);
    if (count <= 0) return count != 0;
    const std::string_view piece(text, static_cast<size_t>(count));
    const size_t end = piece.rfind('\n');
    if (end == std::string_view::npos) {
      line_ += piece;
    } else if (line_.empty()) {  // the usual way: nothing is copied
      PassOn(piece.substr(0, end + 1), now);
      line_ = piece.substr(end + 1);
    } else {
      line_ += piece.substr(0, end + 1);
      PassOn(line_, now);
      line_ = piece.substr(end + 1);
    }
    if (line_.size() >= kLineBytesMax) {
      line_ += '\n';
      PassOn(line_, now);
      line_.clear();
    }
  }
  return true;
}

void ChildOutput::PassOn(std::string_view lines, absl::Time now) {
  std::string passed;
  gate_.Pass(lines, now, passed);
  Notice(now);
  if (!passed.empty()) to_->Write(protocol::EscapeControls(passed, kShown));
}

void ChildOutput::Notice(absl::Time now) {
  const uint64_t count = gate_.TakeNotice(now);
  if (count == 0) return;
  SKEIN_LOG(kWarn, "lines of a child suppressed: it prints too many")
      .Field("child", child_)
      .Field("lines", count)
      .Field("lines_in_all", gate_.suppressed());
}

void ChildOutput::Settle(absl::Time now) {
  if (now < gate_.quiet_at()) return;
  Notice(now);
  const std::string last = gate_.TakeLast(now);
  if (!last.empty()) to_->Write(protocol::EscapeControls(last, kShown));
}

void ChildOutput::End(absl::Time now) {
  if (!line_.empty()) {
    line_ += '\n';
    PassOn(line_, now);
    line_.clear();
  }
  if (gate_.quiet_at() != absl::InfiniteFuture()) Settle(gate_.quiet_at());
}

}  // namespace skein::worker
