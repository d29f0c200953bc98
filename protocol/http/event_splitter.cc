// Events end with an empty line.
// Thread: one object is used by one thread.
// Must never: look at a byte twice more than needed to find the empty line.
#include "protocol/http/event_splitter.h"

namespace skein::protocol {
namespace {

constexpr std::string_view kEnd = "\n\n";
constexpr std::string_view kData = "data: ";

bool Tell(std::string_view event, const std::function<bool(std::string_view)>& on_event) {
  return !event.starts_with(kData) || on_event(event.substr(kData.size()));
}

}  // namespace

bool EventSplitter::Feed(std::string_view bytes,
                         const std::function<bool(std::string_view)>& on_event) {
  if (!text_.empty()) {
    // The end may lie across the border.
    const size_t before = text_.size();
    text_.append(bytes);
    const size_t end = text_.find(kEnd, before - 1);
    if (end == std::string::npos) return true;
    const std::string event = text_.substr(0, end);
    bytes.remove_prefix(end + kEnd.size() - before);
    text_.clear();
    if (!Tell(event, on_event)) return false;
  }
  size_t end = 0;
  while ((end = bytes.find(kEnd)) != std::string_view::npos) {
    const std::string_view event = bytes.substr(0, end);
    bytes.remove_prefix(end + kEnd.size());
    if (!Tell(event, on_event)) return false;
  }
  text_.assign(bytes);
  return true;
}

}  // namespace skein::protocol
