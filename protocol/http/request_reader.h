// Bytes of a connection to whole requests.
// Owns: the unparsed bytes, the body being read and the requests not yet taken.
// Thread: one object is used by one thread.
// Must never: look at a byte after the first refusal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "protocol/http/http_message.h"
#include "protocol/http/request_admission.h"

namespace skein::protocol {

class RequestReader {
 public:
  enum class Phase { kIdle, kHead, kBody };

  // Looks at an admitted head; an answer refuses it.
  using HeadCheck = std::function<std::optional<HttpResponse>(HttpRequest& head)>;

  explicit RequestReader(const HttpLimits& limits, HeadCheck check_head = nullptr)
      : limits_(limits), check_head_(std::move(check_head)) {}

  // Takes the next bytes. Whole requests wait to be taken, in order.
  void Feed(std::string_view bytes);

  bool has_request() const { return !requests_.empty(); }
  HttpRequest TakeRequest();
  // The first thing that was wrong; nothing after it becomes a request.
  const std::optional<HttpRefusal>& refusal() const { return refusal_; }
  // True once for each head whose client waits for "100 Continue".
  bool TakeContinue();

  Phase phase() const;
  // Bytes of the body being read that have arrived.
  size_t body_bytes() const { return request_.body.size(); }
  // Bytes held: unparsed ones and bodies.
  size_t held_bytes() const;

 private:
  enum class Body { kNone, kLength, kChunkHeader, kChunkData, kChunkEnd, kLastEnd };

  // Each consumes what it can; false when it needs more bytes or has refused.
  bool ReadHead();
  bool ReadLength();
  bool ReadChunkHeader();
  bool ReadChunkData();
  bool ReadChunkEnd();
  bool Refuse(HttpRefusal refusal);
  bool AppendBody(uint64_t* remaining);
  bool ParseHead(std::string_view head);
  void FinishRequest();
  std::string_view unread() const { return std::string_view(bytes_).substr(position_); }

  const HttpLimits& limits_;
  const HeadCheck check_head_;
  std::string bytes_;
  size_t position_ = 0;
  HeadScanner scanner_;
  Body body_ = Body::kNone;
  uint64_t remaining_ = 0;
  size_t extension_bytes_ = 0;
  bool wants_continue_ = false;
  HttpRequest request_;
  std::deque<HttpRequest> requests_;
  std::optional<HttpRefusal> refusal_;
};

}  // namespace skein::protocol
