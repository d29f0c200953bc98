// The check of every raw request head and chunk header, before any parser sees it.
// Owns: the framing rules of reliability.md section 6.
// Thread: functions are pure.
// Must never: accept bytes that two parsers could read in two ways.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>

#include "protocol/http/http_message.h"

namespace skein::protocol {

// How the body of an admitted head is framed.
struct AdmittedHead {
  int minor_version = 1;
  bool is_chunked = false;
  uint64_t content_length = 0;
  bool expects_continue = false;
};

// Finds the end of a head in bytes that arrive piece by piece.
class HeadScanner {
 public:
  // Looks at `bytes`, the head so far, from where the last call ended. The end is one past the
  // empty line. A bare CR or LF is refused as soon as it is seen.
  std::variant<std::monostate, size_t, HttpRefusal> Scan(std::string_view bytes,
                                                         const HttpLimits& limits);

 private:
  size_t scanned_ = 0;
  size_t line_start_ = 0;
  size_t num_lines_ = 0;
};

// Checks a whole head, empty line included.
std::variant<AdmittedHead, HttpRefusal> AdmitHead(std::string_view head, const HttpLimits& limits);

struct ChunkHeader {
  uint64_t size = 0;
  size_t extension_bytes = 0;
};

// Checks one chunk header line without its CRLF.
std::variant<ChunkHeader, HttpRefusal> AdmitChunkHeader(std::string_view line);

}  // namespace skein::protocol
