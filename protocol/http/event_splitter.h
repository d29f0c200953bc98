// Cuts the body of a text/event-stream answer into events.
// Owns: the bytes of the event that is not whole yet.
// Thread: one object is used by one thread.
// Must never: hand out half an event, or copy one that came whole.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace skein::protocol {

class EventSplitter {
 public:
  // Gives the text after "data: " of each whole event to `on_event`, in order; comments are
  // skipped. False when `on_event` returned false: the rest of `bytes` is dropped then.
  bool Feed(std::string_view bytes, const std::function<bool(std::string_view)>& on_event);

  // Bytes that wait for the end of their event.
  size_t waiting_bytes() const { return text_.size(); }
  void Clear() { text_.clear(); }

 private:
  std::string text_;
};

}  // namespace skein::protocol
