// Where messages end in the bytes of one direction of a ZeroMQ connection (ZMTP 3): a greeting of
// 64 bytes, then frames of flags, size and body. Thread: one object is used by one thread. Must
// never: look into a body.
#pragma once

#include <cstddef>
#include <string_view>

namespace skein::tests {

class MessageSplitter {
 public:
  // kGreeting: bytes of the greeting, in whatever pieces they come. kCommand: of ZeroMQ itself.
  // kMessage: all frames of one message.
  enum class Kind { kNone, kGreeting, kCommand, kMessage };
  struct Unit {
    Kind kind = Kind::kNone;
    size_t size = 0;  // bytes from the begin on
    size_t body = 0;  // where the body of the last frame begins
  };

  // What `bytes` begin with; kNone: more must come. The caller then takes `size` bytes away.
  Unit Next(std::string_view bytes);

 private:
  size_t greeting_left_ = 64;
};

}  // namespace skein::tests
