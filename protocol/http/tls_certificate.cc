// Thread: the listener's.
// Must never: give up a certificate that works for one that does not.
#include "protocol/http/tls_certificate.h"

#include <utility>

#include "protocol/base/log.h"
#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

constexpr std::chrono::seconds kLookPeriod{1};

}  // namespace

TlsCertificate::TlsCertificate(TlsContext::Files files, Marks marks,
                               std::shared_ptr<TlsContext> context)
    : files_(std::move(files)), read_(marks), context_(std::move(context)) {}

TlsCertificate::Marks TlsCertificate::MarksOf(const TlsContext::Files& files) {
  return {MarkOf(files.certificate), MarkOf(files.key)};
}

absl::StatusOr<std::shared_ptr<TlsCertificate>> TlsCertificate::Load(TlsContext::Files files) {
  // Marked first: what changes while it is read is read again.
  const Marks marks = MarksOf(files);
  absl::StatusOr<std::shared_ptr<TlsContext>> context = TlsContext::Load(files);
  if (!context.ok()) return context.status();
  return std::shared_ptr<TlsCertificate>(
      new TlsCertificate(std::move(files), marks, *std::move(context)));
}

std::shared_ptr<TlsContext> TlsCertificate::Current(Clock::time_point now) {
  if (now - looked_ < kLookPeriod) return context_;
  looked_ = now;
  const Marks marks = MarksOf(files_);
  if (marks == read_) return context_;
  read_ = marks;
  absl::StatusOr<std::shared_ptr<TlsContext>> context = TlsContext::Load(files_);
  if (!context.ok()) {
    SKEIN_LOG(kError, "the old certificate stays in force")
        .Field("reason", StatusText(context.status()));
    return context_;
  }
  context_ = *std::move(context);
  SKEIN_LOG(kInfo, "certificate read").Field("file", files_.certificate);
  return context_;
}

}  // namespace skein::protocol
