// Text under the demo model's tokenizer: it decodes to itself, plain text has no special id, a
// special token's text becomes its id only when it is asked for, and other bytes are refused.
// Thread: one.
// Must never: depend on anything but the input and the demo model.
#include "coordinator/text/tokenizer.h"
#include "protocol/json/utf8.h"
#include "tests/fuzz/fuzz_target.h"

namespace skein::tests {
namespace {

using coordinator::SpecialTokens;
using coordinator::Tokenizer;

const Tokenizer& Demo() {
  static const Tokenizer* const tokenizer =
      Tokenizer::Load("deploy/models/tiny-v41/tokenizer.json").value().release();
  return *tokenizer;
}

void Check(std::string_view text) {
  const auto plain = Demo().Encode(text, SpecialTokens::kPlain);
  const auto parsed = Demo().Encode(text, SpecialTokens::kParse);
  if (!protocol::IsValidUtf8(text)) {
    return Require(!plain.ok() && !parsed.ok(), "bytes that are no text are refused");
  }
  Require(plain.ok() && parsed.ok(), "text is encoded");
  Require(Demo().Decode(*plain).value() == text, "plain text decodes to itself");
  Require(Demo().Decode(*parsed).value() == text, "text with special tokens, too");
  bool has_special = false;
  for (const int32_t id : *plain) {
    Require(!Demo().IsSpecial(id), "plain text has no special id");
  }
  for (const int32_t id : *parsed) has_special |= Demo().IsSpecial(id);
  Require(has_special || *plain == *parsed, "without special tokens both are the same");
  Require(plain->size() * Demo().longest_token_bytes() >= text.size(), "tokens are not too long");
  Require(!Demo().Decode(std::vector<int32_t>{static_cast<int32_t>(text.size()) + 5000}).ok(),
          "an id without a token is refused");
}

}  // namespace
}  // namespace skein::tests

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  skein::tests::Check(skein::tests::TextOf(data, size));
  return 0;
}
