// Bytes of a connection to one answer after the other, for clients that hold many connections.
// Owns: the unparsed bytes of a head or chunk line.
// Thread: one object is used by one thread.
// Must never: report a cut body as whole, or hold body bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace skein::protocol {

class ResponseReader {
 public:
  // Takes the next bytes. `on_body` gets the bytes of the body without framing as they come; they
  // are borrowed for the call. Stops behind the end of the answer. Returns how many bytes were
  // used, which is all of them while the answer is not whole. DataLoss says what is malformed.
  absl::Status Feed(std::string_view bytes, const std::function<void(std::string_view)>& on_body,
                    size_t* used);
  // The peer closed the connection: DataLoss unless that ends the body.
  absl::Status Close();
  // Forgets the answer; the next one may be read.
  void Reset();

  bool has_head() const { return body_ != Body::kHead; }
  bool is_whole() const { return body_ == Body::kDone; }
  // Of the answer whose head was read.
  int status() const { return status_; }
  bool is_event_stream() const { return is_event_stream_; }
  bool keeps_alive() const { return keeps_alive_; }

 private:
  enum class Body { kHead, kLength, kToClose, kChunkLine, kChunkData, kChunkEnd, kTrailer, kDone };

  absl::Status ReadHead(std::string_view head);
  absl::Status ReadField(std::string_view name, std::string_view value);
  absl::Status ReadLine(std::string_view line);
  // Takes bytes up to and with `end` into text_; false while it has not come.
  bool Collect(std::string_view end, std::string_view* bytes);

  Body body_ = Body::kHead;
  std::string text_;
  uint64_t remaining_ = 0;
  int status_ = 0;
  bool is_chunked_ = false;
  bool has_length_ = false;
  bool is_event_stream_ = false;
  bool keeps_alive_ = true;
};

}  // namespace skein::protocol
