// Whether a directory can be used, tried by using it: made when it is missing, a file written
// there, nothing left behind. Any thread. Must never touch a file that was there.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace skein::protocol {

enum class Durability {
  kNone,   // what is written may be lost with the power
  kFsync,  // file and directory must reach the disk
};

// Unavailable says what failed and why, without the path: "cannot be made: Permission denied".
absl::Status TryDirectory(const std::string& path, Durability durability);

}  // namespace skein::protocol
