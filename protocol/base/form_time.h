// How long forming a group of several ranks may take, part by part. Values.
#pragma once

#include "absl/time/time.h"

namespace skein::protocol {

// What a rank gives each part: until the others are there, until NCCL has its connections, until
// the decode steps are recorded. A rank that is out of time ends the epoch itself.
inline constexpr absl::Duration kFormMeetTime = absl::Seconds(10);
inline constexpr absl::Duration kFormConnectTime = absl::Seconds(20);
inline constexpr absl::Duration kFormRecordTime = absl::Seconds(180);
// Before, where an epoch places experts: until a rank has loaded those that it lacks. Those that
// lack none wait for it.
inline constexpr absl::Duration kFormLoadTime = absl::Seconds(600);
// A rank begins when the step that it is in has ended, and its word has a way to go.
inline constexpr absl::Duration kFormMargin = absl::Seconds(5);

// What the coordinator gives all of it: the error of a rank, which knows why, comes first.
inline absl::Duration FormTime() {
  return kFormMeetTime + kFormConnectTime + kFormRecordTime + kFormMargin;
}

}  // namespace skein::protocol
