// tokenizer.json, in which "BYTES":0 stands for the 256 single bytes. A tokenizer that is accepted
// gives every text one meaning: what it encodes decodes to the same bytes.
// Thread: one.
// Must never: depend on anything but the input.
#include "coordinator/text/tokenizer.h"
#include "protocol/base/strings.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/small_vocabulary.h"

namespace skein::tests {
namespace {

using coordinator::SpecialTokens;
using coordinator::Tokenizer;

void Check(std::string_view text) {
  const auto tokenizer = Tokenizer::Create(WithBytes(text));
  if (!tokenizer.ok()) {
    return Require(absl::IsInvalidArgument(tokenizer.status()) ||
                       absl::IsUnimplemented(tokenizer.status()) ||
                       absl::IsResourceExhausted(tokenizer.status()),
                   "a refusal is about the file", protocol::StatusText(tokenizer.status()));
  }
  const Tokenizer& made = **tokenizer;
  Require(made.vocab_size() <= Tokenizer::kVocabularyMax, "the vocabulary is bounded");
  for (const std::string_view sample : {text, std::string_view("name  in 1234\n\nnaïve")}) {
    for (const SpecialTokens special : {SpecialTokens::kPlain, SpecialTokens::kParse}) {
      const auto ids = made.Encode(sample, special);
      if (!ids.ok()) continue;  // no text, or too much for a pattern
      Require(made.Decode(*ids).value() == sample, "what is encoded decodes", sample);
      for (const int32_t id : *ids) {
        Require(special == SpecialTokens::kParse || !made.IsSpecial(id),
                "plain text has no special id");
      }
    }
  }
}

}  // namespace
}  // namespace skein::tests

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  skein::tests::Check(skein::tests::TextOf(data, size));
  return 0;
}
