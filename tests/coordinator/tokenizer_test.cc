// Tests of the tokenizer: goldens, special tokens, limits and hostile files.
// Thread: single.
// Must never: need a file outside the tree.
#include "coordinator/text/tokenizer.h"

#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/json/json_writer.h"
#include "tests/conformance/tokenizer_cases.h"

namespace skein::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kTinyFile[] = "deploy/models/tiny-v41/tokenizer.json";

const Tokenizer& Tiny() {
  static const Tokenizer* const tokenizer = Tokenizer::Load(kTinyFile).value().release();
  return *tokenizer;
}

std::vector<int32_t> Ids(std::string_view text, SpecialTokens special = SpecialTokens::kPlain) {
  const auto ids = Tiny().Encode(text, special);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.value_or(std::vector<int32_t>());
}

// rule: E7
TEST(TokenizerTest, ReproducesEveryRecordedEncoding) {
  std::ostringstream out;
  const auto counts =
      tests::RunTokenizerCases(kTinyFile, "tests/data/tokenizer-goldens/tiny_encodings.jsonl", out);
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_EQ(counts->num_cases, 277);
  EXPECT_EQ(counts->num_encoded, 277) << out.str();
  EXPECT_EQ(counts->num_restored, 277) << out.str();
}

TEST(TokenizerTest, CasesFailWhenAnIdDiffersOrTheFileIsEmpty) {
  const std::string path = ::testing::TempDir() + "/cases.jsonl";
  std::ofstream(path) << R"({"id":1,"kind":"x","text":"the","ids":[3]})"
                      << "\n";
  std::ostringstream out;
  auto counts = tests::RunTokenizerCases(kTinyFile, path, out);
  ASSERT_TRUE(counts.ok());
  EXPECT_FALSE(counts->AllPass());
  EXPECT_THAT(out.str(), HasSubstr("FAIL encode 1 x\nFAIL decode 1 x\n"));
  std::ofstream(path).close();
  counts = tests::RunTokenizerCases(kTinyFile, path, out);
  ASSERT_TRUE(counts.ok());
  EXPECT_FALSE(counts->AllPass());
  EXPECT_FALSE(tests::RunTokenizerCases(kTinyFile, "/nonexistent", out).ok());
}

// rule: E3
TEST(TokenizerTest, TextNeverBecomesASpecialIdWhenPlain) {
  std::string everything;
  for (int32_t id = 0; id < Tiny().vocab_size(); ++id) {
    if (Tiny().IsSpecial(id)) everything += std::string(Tiny().TokenBytes(id)) + "x";
  }
  for (int32_t id : Ids(everything)) EXPECT_FALSE(Tiny().IsSpecial(id)) << id;
  EXPECT_EQ(*Tiny().Decode(Ids(everything)), everything);
  int num_special = 0;
  for (int32_t id : Ids(everything, SpecialTokens::kParse)) num_special += Tiny().IsSpecial(id);
  EXPECT_EQ(num_special, 35);
}

TEST(TokenizerTest, NamesSpecialTokens) {
  EXPECT_EQ(Tiny().FindSpecial("</think>"), 4071);
  EXPECT_EQ(Tiny().FindSpecial("the"), std::nullopt);
  EXPECT_EQ(Tiny().vocab_size(), 4096);
  EXPECT_TRUE(Tiny().IsSpecial(4064));
  EXPECT_FALSE(Tiny().IsSpecial(100));
  EXPECT_FALSE(Tiny().IsSpecial(-1));
  EXPECT_FALSE(Tiny().IsToken(4096));
  EXPECT_EQ(Tiny().TokenBytes(4070), "<think>");
  EXPECT_EQ(Tiny().TokenBytes(4096), "");
  EXPECT_THAT(Ids("<think>", SpecialTokens::kParse), ElementsAre(4070));
}

TEST(TokenizerTest, RefusesBadBytesAndUnknownIds) {
  EXPECT_EQ(Tiny().Encode("a\xff", SpecialTokens::kPlain).status().message(),
            "the text to encode is not valid UTF-8");
  const std::vector<int32_t> ids = {3, 5000};
  EXPECT_EQ(Tiny().Decode(ids).status().message(),
            "token id 5000 is not in the vocabulary of 4096");
}

// rule: E7
TEST(TokenizerTest, LongRunsRoundTripWithinTheLimits) {
  for (std::string_view unit : {" ", "a", "\n", "7", ".", "中", "<", "\xCC\x81", "ab ", "=\r\n"}) {
    std::string text;
    while (text.size() < 300'000) text += unit;
    EXPECT_EQ(*Tiny().Decode(Ids(text)), text) << unit;
    EXPECT_EQ(*Tiny().Decode(Ids(text, SpecialTokens::kParse)), text) << unit;
  }
}

// A small valid file; `edit` changes its text before it is loaded.
std::string SmallFile(std::string_view vocab_extra, std::string_view merges,
                      std::string_view added = "", std::string_view pattern = "\\\\s+",
                      std::string_view model_extra = "") {
  std::string vocab;
  int id = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    static int next = 256;
    if (byte == 0) next = 256;
    const int point = printable ? byte : next++;
    std::string text;
    if (point < 0x80) {
      text = static_cast<char>(point);
    } else {
      text = {static_cast<char>(0xC0 | (point >> 6)), static_cast<char>(0x80 | (point & 0x3F))};
    }
    if (!vocab.empty()) vocab += ",";
    protocol::AppendJsonString(text, &vocab);
    vocab += ":" + std::to_string(id++);
  }
  return "{\"added_tokens\":[" + std::string(added) +
         "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
         "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" +
         std::string(pattern) +
         "\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\","
         "\"add_prefix_space\":false,\"use_regex\":false}]},\"decoder\":{\"type\":\"ByteLevel\"},"
         "\"model\":{\"type\":\"BPE\"" +
         std::string(model_extra) + ",\"vocab\":{" + vocab + std::string(vocab_extra) +
         "},\"merges\":[" + std::string(merges) + "]}}";
}

std::string Refusal(const std::string& file) {
  const auto tokenizer = Tokenizer::Create(file);
  EXPECT_FALSE(tokenizer.ok());
  return std::string(tokenizer.status().message());
}

TEST(TokenizerFileTest, SmallFileWorksInBothMergeForms) {
  for (const char* merges : {R"("a b","ab c")", R"(["a","b"],["ab","c"])"}) {
    const auto tokenizer = Tokenizer::Create(SmallFile(R"(,"ab":300,"abc":301)", merges));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_THAT(*(*tokenizer)->Encode("abcab", SpecialTokens::kPlain), ElementsAre(301, 300));
    EXPECT_EQ((*tokenizer)->vocab_size(), 302);
    EXPECT_EQ((*tokenizer)->longest_token_bytes(), 3u);
  }
}

TEST(TokenizerFileTest, RefusesHostileMerges) {
  EXPECT_EQ(Refusal(SmallFile(R"(,"ab":300)", R"("a b","a b")")),
            "merge 1 repeats merge 0; each pair may occur once");
  EXPECT_EQ(Refusal(SmallFile(R"(,"ab":300,"abc":301)", R"("ab c","a b")")),
            "model.merges[0]: token \"ab\" is used before a merge makes it");
  EXPECT_EQ(Refusal(SmallFile("", R"("a b")")),
            "model.merges[0]: token \"ab\" is not in model.vocab");
  EXPECT_EQ(Refusal(SmallFile("", R"("a ")")), "model.merges[0] is \"a \"; expected two tokens");
  EXPECT_EQ(Refusal(SmallFile("", R"("a b c")")),
            "model.merges[0] is \"a b c\"; expected two tokens");
  EXPECT_EQ(Refusal(SmallFile("", "7")), "model.merges[0] is 7; expected two tokens");
}

TEST(TokenizerFileTest, RefusesIdsOutOfRangeOrTwice) {
  EXPECT_EQ(Refusal(SmallFile(R"(,"ab":1048576)", "")),
            "model.vocab[\"ab\"] is 1048576; accepted: 0 to 1048575");
  EXPECT_THAT(Refusal(SmallFile(R"(,"ab":-1)", "")), HasSubstr("is -1; accepted: 0 to 1048575"));
  EXPECT_EQ(Refusal(SmallFile(R"(,"ab":5)", "")), "token id 5 is used twice");
  EXPECT_THAT(Refusal(SmallFile(R"(,"ab":300,"ab":301)", "")), HasSubstr("duplicate key"));
  EXPECT_EQ(Refusal(SmallFile("", "", R"({"id":4294967296,"content":"<x>"})")),
            "added_tokens[0].id is 4294967296; accepted: 0 to 1048575");
  EXPECT_EQ(Refusal(SmallFile("", "", R"({"id":400,"content":"<x>"},{"id":401,"content":"<x>"})")),
            "added_tokens[1].content \"<x>\" occurs twice");
  EXPECT_EQ(Refusal(SmallFile(R"(,"ab":300)", "", R"({"id":300,"content":"<x>"})")),
            "model.vocab[\"ab\"] has id 300, which added_tokens gives to another text");
  EXPECT_EQ(Refusal(SmallFile(R"(,"ab":300)", "", R"({"id":301,"content":"ab"})")),
            "model.vocab[\"ab\"] has id 300; added_tokens gives it another id");
  EXPECT_EQ(Refusal(SmallFile(R"(,"中":300)", "")),
            "model.vocab[\"中\"] has a character outside the byte alphabet and is not in "
            "added_tokens");
}

TEST(TokenizerFileTest, RefusesBadPatternsAndUnknownFeatures) {
  EXPECT_THAT(Refusal(SmallFile("", "", "", "(a")),
              HasSubstr("pre-tokenizer pattern 0 is refused"));
  EXPECT_EQ(Refusal(SmallFile("", "", "", std::string(5000, 'a'))),
            "pre-tokenizer pattern 0 has 5000 bytes; at most 4096 are accepted");
  EXPECT_EQ(Refusal(SmallFile("", "", "", "a", R"(,"byte_fallback":true)")),
            "model.byte_fallback is true; supported: unset");
  EXPECT_EQ(Refusal(SmallFile("", "", R"({"id":400,"content":"<x>","lstrip":true})")),
            "added_tokens[0].lstrip is true; supported: unset");
  EXPECT_EQ(Refusal("{}"), "tokenizer.json lacks the required key \"model\"");
  EXPECT_EQ(Refusal(R"({"model":{"type":"Unigram"}})"),
            "model.type is \"Unigram\"; supported: BPE");
  EXPECT_THAT(Refusal(R"({"model":{"type":"BPE"},"normalizer":{"type":"NFC"}})"),
              HasSubstr("normalizer.type is \"NFC\"; supported: Sequence"));
}

TEST(TokenizerFileTest, CatastrophicPatternEndsAtItsLimit) {
  const auto tokenizer = Tokenizer::Create(SmallFile("", "", "", "(a|aa)+[xy]"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto ids = (*tokenizer)->Encode(std::string(200, 'a'), SpecialTokens::kPlain);
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(ids.status().message()), HasSubstr("match limit exceeded"));
}

TEST(TokenizerFileTest, LoadNamesTheFile) {
  EXPECT_EQ(Tokenizer::Load("/nonexistent/tokenizer.json").status().message(),
            "cannot read tokenizer file /nonexistent/tokenizer.json; the model directory must "
            "contain tokenizer.json");
  const std::string path = ::testing::TempDir() + "/tokenizer.json";
  std::ofstream(path) << "{";
  EXPECT_THAT(std::string(Tokenizer::Load(path).status().message()),
              HasSubstr(path + ": invalid JSON at byte 1"));
}

}  // namespace
}  // namespace skein::coordinator
