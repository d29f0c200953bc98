// Messages of a peer: the first byte is the type, the rest its body. What is read is written and
// read again as the same message; a refusal names the type.
// Thread: one.
// Must never: depend on anything but the input.
#include "protocol/base/strings.h"
#include "protocol/codec/codec.h"
#include "tests/fuzz/fuzz_target.h"

namespace skein::tests {
namespace {

using protocol::MessageType;

void Check(std::string_view text) {
  if (text.empty()) return;
  const auto type = static_cast<MessageType>(static_cast<uint8_t>(text[0]));
  text.remove_prefix(1);
  const auto message =
      protocol::DecodeMessage(type, {reinterpret_cast<const std::byte*>(text.data()), text.size()});
  if (!message.ok()) {
    Require(absl::IsInvalidArgument(message.status()), "a refusal is about the bytes");
    const std::string_view reason = protocol::StatusText(message.status());
    const std::string_view name = protocol::MessageTypeName(type);
    return Require(name == "unknown" || reason.find(name) != std::string_view::npos,
                   "a refusal names the type", reason);
  }
  Require(protocol::TypeOf(*message) == type, "the type is that of the frame");
  const auto written = protocol::EncodeMessage(*message);
  Require(written.ok(), "what is read can be written", protocol::StatusText(written.status()));
  const auto again = protocol::DecodeMessage(type, *written);
  Require(again.ok(), "what is written can be read", protocol::StatusText(again.status()));
  // Bits, not values: a score that is no number is equal to nothing.
  const auto rewritten = protocol::EncodeMessage(*again);
  Require(rewritten.ok() && *rewritten == *written, "it is the same message");
}

}  // namespace
}  // namespace skein::tests

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  skein::tests::Check(skein::tests::TextOf(data, size));
  return 0;
}
