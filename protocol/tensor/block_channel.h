// Moves cache blocks between workers of different groups: one lends memory under the name of a
// transfer, another fetches it, once. Every piece has a checksum, every transfer a deadline and an
// endpoint of its own. One thread owns a channel and makes its calls; Wake alone comes from any.
// Must never touch memory whose end was reported: a transfer is over when its event is given out,
// which is after the endpoint that could read or write its memory is closed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "protocol/base/transfer_id.h"

namespace skein::protocol {

// The end of a transfer on one side: its memory is its owner's again. OK: all pieces were there and
// their checksums right, or the one who fetched them says so. DeadlineExceeded: time ran out.
// Unavailable: the other side is gone. DataLoss: a checksum was wrong, as it may be of what breaks
// off. FailedPrecondition: the sides mean pieces of different sizes, or nothing is lent under the
// name. Cancelled: it was.
struct ChannelEvent {
  TransferId transfer;
  absl::Status status;
};

// Transfers of a channel at a time, on either side.
inline constexpr size_t kTransfersMax = 32;
// Pieces of a transfer.
inline constexpr size_t kPiecesMax = 131'072;

class BlockChannel {
 public:
  virtual ~BlockChannel() = default;

  // Where other workers reach it: "ADDRESS:PORT".
  virtual const std::string& address() const = 0;

  // The pieces may be read by whoever knows the name, until the end is reported: at the deadline at
  // the latest, and sooner when nobody asks for them: a fetch may be refused by who was to make it,
  // and a deadline for many pieces is far.
  // ResourceExhausted: too many transfers or pieces; AlreadyExists: the name is in use.
  virtual absl::Status Lend(TransferId transfer, std::vector<std::span<const std::byte>> pieces,
                            absl::Time deadline) = 0;
  // Fills the pieces with those that are lent at `address` under the name. What they hold before an
  // OK end is undefined. Errors as Lend; InvalidArgument: no address.
  virtual absl::Status Fetch(TransferId transfer, const std::string& address,
                             std::vector<std::span<std::byte>> pieces, absl::Time deadline) = 0;
  // Ends a transfer; its end is still reported. Unknown ones are ignored.
  virtual void Cancel(TransferId transfer) = 0;

  // Carries transfers on and waits until one has ended, Wake was called or the time has come. The
  // ends since the last call. An error means that the channel is of no use any more.
  virtual absl::StatusOr<std::vector<ChannelEvent>> Poll(absl::Time until) = 0;
  // Ends a Poll. Any thread.
  virtual void Wake() = 0;
};

}  // namespace skein::protocol
