// Short names of contents, to tell two files or settings apart: FNV-1a of 64 bits in hexadecimal.
// Pure but for reading the file. Any thread. Must never: serve where somebody gains by a collision.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace skein::protocol {

// 16 hexadecimal digits over the bytes.
std::string Fingerprint(std::string_view bytes);

// The same over a file. NotFound names the path and why it cannot be read.
absl::StatusOr<std::string> FileFingerprint(const std::string& path);

}  // namespace skein::protocol
