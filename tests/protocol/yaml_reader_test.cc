// Tests of protocol/config/yaml_reader: the flat list, and hostile text that must end in a status.
#include "protocol/config/yaml_reader.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

using ::testing::HasSubstr;

TEST(YamlReaderTest, FlattensSectionsInOrderWithLines) {
  const auto entries = ReadYaml("# comment\na:\n  b: 1\n  c: \"x y\"\n\nd: [1, 2]\ne:\n", "f.yaml");
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 5u);
  const auto expect = [&](size_t index, std::string_view path, YamlKind kind, std::string_view text,
                          int line) {
    EXPECT_EQ((*entries)[index].path, path);
    EXPECT_EQ((*entries)[index].kind, kind) << path;
    EXPECT_EQ((*entries)[index].text, text) << path;
    EXPECT_EQ((*entries)[index].line, line) << path;
  };
  expect(0, "a", YamlKind::kSection, "", 2);
  expect(1, "a.b", YamlKind::kPlain, "1", 3);
  expect(2, "a.c", YamlKind::kQuoted, "x y", 4);
  expect(3, "d", YamlKind::kList, "", 6);
  expect(4, "e", YamlKind::kNull, "", 7);
}

TEST(YamlReaderTest, EmptyFilesAreEmpty) {
  for (const std::string_view text : {"", "\n\n", "# only a comment\n", "---\n"}) {
    const auto entries = ReadYaml(text, "f");
    ASSERT_TRUE(entries.ok()) << entries.status() << " for " << text;
    EXPECT_TRUE(entries->empty()) << text;
  }
}

TEST(YamlReaderTest, QuotingRoundTrips) {
  const std::string text = "a\"b\\c\n\t\x01 # : {x";
  const auto entries = ReadYaml(Concat("k: ", QuoteYaml(text), "\n"), "f");
  ASSERT_TRUE(entries.ok()) << entries.status();
  EXPECT_EQ((*entries)[0].text, text);
}

TEST(YamlReaderTest, BoundsAreEnforced) {
  const auto large = ReadYaml(std::string(kYamlBytesMax + 1, ' '), "f");
  EXPECT_THAT(std::string(StatusText(large.status())), HasSubstr("has at most 1048576"));
  std::string many;
  for (size_t i = 0; i <= kYamlEntriesMax; ++i) many += Concat("k", i, ": 1\n");
  EXPECT_THAT(std::string(StatusText(ReadYaml(many, "f").status())),
              HasSubstr("f:4097: more than 4096 keys"));
  EXPECT_FALSE(ReadYaml(std::string(100'000, '['), "f").ok());
  EXPECT_FALSE(ReadYaml(std::string(100'000, '{'), "f").ok());
}

TEST(YamlReaderTest, EveryTruncationAndByteFlipEndsInAStatusOrAList) {
  const std::string good = "a:\n  b: \"x\\n\"\n  c: [1, {d: 2}]\n'e': |\n  text\nf: {g: ~}\n";
  size_t refused = 0;
  for (size_t length = 0; length <= good.size(); ++length) {
    refused += ReadYaml(good.substr(0, length), "f").ok() ? 0 : 1;
  }
  for (size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[at] = static_cast<char>(static_cast<unsigned char>(bad[at]) ^ (1u << bit));
      refused += ReadYaml(bad, "f").ok() ? 0 : 1;
    }
  }
  EXPECT_GT(refused, 100u);
}

// The parser would guess UTF-16 or UTF-32 and find an empty file.
TEST(YamlReaderTest, TextThatIsNoUtf8IsRefused) {
  const std::pair<std::string, int> cases[] = {{std::string("\xFF\xFE\x00", 3), 1},
                                               {std::string("\xFE\xFF\x00"
                                                            "a",
                                                            4),
                                                1},
                                               {std::string("a: 1\0", 5), 5},
                                               {std::string("\0\0\xFE\xFF", 4), 1}};
  for (const auto& [text, byte] : cases) {
    const auto entries = ReadYaml(text, "f.yaml");
    ASSERT_FALSE(entries.ok()) << byte;
    EXPECT_EQ(StatusText(entries.status()),
              Concat("f.yaml: byte ", byte, " is no UTF-8 text; save the file as UTF-8"));
  }
  EXPECT_TRUE(ReadYaml("\xEF\xBB\xBF"
                       "a: 1\n",
                       "f.yaml")
                  .ok())
      << "a mark of UTF-8 is none";
}

}  // namespace
}  // namespace skein::protocol
