#include "tests/fuzz/small_vocabulary.h"

#include "protocol/json/json_writer.h"
#include "protocol/json/utf8.h"
#include "tests/fuzz/fuzz_target.h"

namespace skein::tests {
namespace {

using coordinator::ChatTemplate;
using coordinator::SpecialTokens;
using coordinator::Tokenizer;

constexpr std::string_view kJson =
    R"({"added_tokens":[)"
    R"({"id":300,"content":"<｜begin▁of▁sentence｜>","special":true,"normalized":false},)"
    R"({"id":301,"content":"<｜end▁of▁sentence｜>","special":true,"normalized":false},)"
    R"({"id":302,"content":"<｜System｜>","special":false,"normalized":true},)"
    R"({"id":303,"content":"<｜User｜>","special":false,"normalized":true},)"
    R"({"id":304,"content":"<｜Assistant｜>","special":false,"normalized":true},)"
    R"({"id":305,"content":"<think>","special":false,"normalized":true},)"
    R"({"id":306,"content":"</think>","special":false,"normalized":true},)"
    R"({"id":307,"content":"｜DSML｜","special":false,"normalized":true},)"
    R"({"id":308,"content":"<｜latest_reminder｜>","special":false,"normalized":true}],)"
    R"("normalizer":{"type":"Sequence","normalizers":[]},)"
    R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[)"
    R"({"type":"Split","pattern":{"Regex":"\\p{N}{1,3}"},"behavior":"Isolated","invert":false},)"
    R"({"type":"Split","pattern":{"Regex":"\\s?\\p{L}+|\\s+(?!\\S)|\\s+"},)"
    R"("behavior":"Isolated","invert":false},)"
    R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]},)"
    R"("decoder":{"type":"ByteLevel"},"model":{"type":"BPE","dropout":null,"unk_token":null,)"
    R"("vocab":{"BYTES":0,"na":256,"me":257,"name":258,"ĊĊ":259,"</":260,"\">":261,"in":262,)"
    R"("ame":263,"Ġin":264},"merges":["n a","m e","na me","Ċ Ċ","< /","\" >","i n",)"
    R"("a me","Ġ in"]}})";

constexpr std::string_view kWording =
    R"({"format":1,"generation":"v4.1","templates":{"tools":"T <｜DSML｜ calls> {tool_schemas}\n",)"
    R"("response_format":"R {schema}","effort":"E {effort}\n"}})";

// A byte as the vocabulary writes it: printable ones as they are, the others from U+0100 on.
std::string Alphabet(int byte, int* next) {
  const bool printable =
      (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
  const int code_point = printable ? byte : (*next)++;
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xC0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3F))};
}

std::string BytesEntries() {
  std::string entries;
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    if (byte > 0) entries += ',';
    protocol::AppendJsonString(Alphabet(byte, &next), &entries);
    entries += ':' + std::to_string(byte);
  }
  return entries;
}

}  // namespace

std::string_view SmallVocabularyJson() { return kJson; }

std::string WithBytes(std::string_view text) {
  static const auto* const entries = new std::string(BytesEntries());
  std::string out;
  for (size_t at = 0; (at = text.find(kBytesEntry)) != std::string_view::npos;) {
    out += text.substr(0, at);
    out += *entries;
    text.remove_prefix(at + kBytesEntry.size());
  }
  return out += text;
}

const Tokenizer& SmallTokenizer() {
  static const Tokenizer* const tokenizer = Tokenizer::Create(WithBytes(kJson)).value().release();
  return *tokenizer;
}

const ChatTemplate& SmallChat() {
  static const ChatTemplate* const chat =
      ChatTemplate::Create(SmallTokenizer(), kWording).value().release();
  return *chat;
}

std::vector<int32_t> Spell(std::string_view text, Spelling spelling) {
  const Tokenizer& tokenizer = SmallTokenizer();
  if (spelling == Spelling::kMerged && protocol::IsValidUtf8(text)) {
    return tokenizer.Encode(text, SpecialTokens::kParse).value();
  }
  std::vector<int32_t> ids;
  while (!text.empty()) {
    int32_t found = static_cast<uint8_t>(text[0]);
    for (int32_t id = 300; id < tokenizer.vocab_size(); ++id) {
      if (text.starts_with(tokenizer.TokenBytes(id))) found = id;
    }
    ids.push_back(found);
    text.remove_prefix(tokenizer.TokenBytes(found).size());
  }
  return ids;
}

}  // namespace skein::tests
