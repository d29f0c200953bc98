// Prints the corpus of the present protocol: per message its type number, name and bytes in
// hexadecimal. Its output is committed under tests/data/messages/MAJOR.MINOR.txt whenever the minor
// rises, and decoded by message_corpus_test from then on.
#include <cstdio>

#include "protocol/codec/codec.h"
#include "tests/protocol/message_samples.h"

int main() {
  using namespace skein;
  for (const protocol::Message& message : tests::SampleMessages()) {
    const auto bytes = protocol::EncodeMessage(message);
    if (!bytes.ok()) return 1;
    const protocol::MessageType type = protocol::TypeOf(message);
    std::printf("%u %s ", static_cast<unsigned>(type),
                std::string(protocol::MessageTypeName(type)).c_str());
    for (const std::byte byte : *bytes) std::printf("%02x", static_cast<unsigned>(byte));
    std::printf("\n");
  }
  return 0;
}
