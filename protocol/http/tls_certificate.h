// The listener's certificate as it is now: read again when its files changed, for the connections
// that come after. Those that are open keep what they have.
// Owns: the newest context that could be made.
// Thread: one object is used by one thread, the listener's.
// Must never: give up a certificate that works for one that does not.
#pragma once

#include <chrono>
#include <memory>

#include "absl/status/statusor.h"
#include "protocol/base/file_mark.h"
#include "protocol/http/tls_session.h"

namespace skein::protocol {

class TlsCertificate {
 public:
  using Clock = std::chrono::steady_clock;

  // As TlsContext::Load.
  static absl::StatusOr<std::shared_ptr<TlsCertificate>> Load(TlsContext::Files files);

  // What a connection that comes now speaks with. Looks at most once a second whether a file
  // changed. Files that cannot be used, or do not belong together yet, leave the old certificate in
  // force, with an error in the log; they are tried again when one of them changed.
  std::shared_ptr<TlsContext> Current(Clock::time_point now);

 private:
  struct Marks {
    FileMark certificate, key;
    friend bool operator==(const Marks&, const Marks&) = default;
  };
  TlsCertificate(TlsContext::Files files, Marks marks, std::shared_ptr<TlsContext> context);
  static Marks MarksOf(const TlsContext::Files& files);

  const TlsContext::Files files_;
  Marks read_;
  std::shared_ptr<TlsContext> context_;
  Clock::time_point looked_;
};

}  // namespace skein::protocol
