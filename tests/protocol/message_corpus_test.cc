// The committed bytes of every protocol version that this build speaks: each message still decodes,
// and those of the present minor are what this build writes. A change of the wire without a new
// minor fails here.
#include <charconv>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "protocol/base/strings.h"
#include "protocol/codec/codec.h"
#include "tests/protocol/message_samples.h"

namespace skein::tests {
namespace {

using protocol::Concat;

struct Recorded {
  protocol::MessageType type;
  std::vector<std::byte> bytes;
};

std::map<std::string, Recorded> ReadCorpus(uint32_t minor) {
  const std::string path =
      Concat("tests/data/messages/", protocol::kProtocolMajor, ".", minor, ".txt");
  std::map<std::string, Recorded> corpus;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    unsigned type = 0;
    std::string name, hex;
    words >> type >> name >> hex;
    Recorded& recorded = corpus[name];
    recorded.type = static_cast<protocol::MessageType>(type);
    for (size_t i = 0; i + 1 < hex.size(); i += 2) {
      unsigned byte = 0;
      std::from_chars(hex.data() + i, hex.data() + i + 2, byte, 16);
      recorded.bytes.push_back(static_cast<std::byte>(byte));
    }
  }
  EXPECT_FALSE(corpus.empty()) << path << " is missing: message_corpus writes it";
  return corpus;
}

TEST(MessageCorpusTest, ThePresentVersionWritesItsCorpus) {
  const auto corpus = ReadCorpus(protocol::kProtocolMinor);
  const auto samples = SampleMessages();
  EXPECT_EQ(corpus.size(), samples.size());
  for (const protocol::Message& sample : samples) {
    const protocol::MessageType type = protocol::TypeOf(sample);
    const std::string name(protocol::MessageTypeName(type));
    const auto found = corpus.find(name);
    ASSERT_NE(found, corpus.end()) << name;
    EXPECT_EQ(found->second.type, type) << name;
    const auto written = protocol::EncodeMessage(sample);
    ASSERT_TRUE(written.ok()) << name;
    EXPECT_EQ(*written, found->second.bytes) << name << ": the wire changed, raise the minor";
    const auto read = protocol::DecodeMessage(type, found->second.bytes);
    ASSERT_TRUE(read.ok()) << name << read.status();
    EXPECT_EQ(*read, sample) << name;
  }
}

// What 1.5 wrote reads with the fields of 1.6 at their defaults.
TEST(MessageCorpusTest, TheMinorBeforeStillReads) {
  const auto corpus = ReadCorpus(protocol::kProtocolMinor - 1);
  ASSERT_EQ(corpus.size(), 11u);
  for (protocol::Message sample : SampleMessages()) {
    if (auto* form = std::get_if<protocol::FormGroup>(&sample)) form->placement.clear();
    if (auto* result = std::get_if<protocol::StepResult>(&sample)) result->expert_load = {};
    const std::string name(protocol::MessageTypeName(protocol::TypeOf(sample)));
    ASSERT_TRUE(corpus.contains(name)) << name;
    const Recorded& recorded = corpus.at(name);
    const auto read = protocol::DecodeMessage(recorded.type, recorded.bytes);
    ASSERT_TRUE(read.ok()) << name << read.status();
    EXPECT_EQ(*read, sample) << name;
  }
}

TEST(MessageCorpusTest, AMessageThatWasDroppedIsNotKnown) {
  const auto corpus = ReadCorpus(0);
  const auto dropped = protocol::DecodeMessage(corpus.at("Drain").type, corpus.at("Drain").bytes);
  EXPECT_EQ(dropped.status().message(), "message type 9 is not known to this build");
}

}  // namespace
}  // namespace skein::tests
