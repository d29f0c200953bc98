// Texts of messages, for the codec's files. Any thread.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "protocol/codec/codec.h"
#include "protocol/codec/list_limits.h"
#include "protocol/schema/control.capnp.h"

namespace skein::protocol {

// Copies the text of a message, cut to what a message may hold: texts are only for people.
template <typename Setter>
void WriteText(std::string_view text, Setter set) {
  const std::string cut(text.substr(0, kTextBytesMax));
  set(capnp::Text::Reader(cut.c_str(), cut.size()));
}

inline absl::Status ReadText(capnp::Text::Reader text, std::string_view field, std::string& out) {
  if (text.size() > kTextBytesMax) {
    return Malformed(field, Concat(text.size(), " bytes; at most ", kTextBytesMax));
  }
  out.assign(text.begin(), text.size());
  return absl::OkStatus();
}

}  // namespace skein::protocol
