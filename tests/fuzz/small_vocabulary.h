// A vocabulary of all single bytes, a few merges and the special tokens of the chat encoding, for
// targets that need a tokenizer and should not spend their time loading one.
// Owns: the one tokenizer and its chat encoding, for ever.
// Thread: one.
// Must never: need a file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/text/chat_template.h"
#include "coordinator/text/tokenizer.h"

namespace skein::tests {

// Its tokenizer.json, with `"BYTES":0` in the place of the 256 single bytes.
inline constexpr std::string_view kBytesEntry = "\"BYTES\":0";
std::string_view SmallVocabularyJson();
// `text` with the 256 entries of a vocabulary, ids 0 to 255, for each `"BYTES":0`.
std::string WithBytes(std::string_view text);

const coordinator::Tokenizer& SmallTokenizer();
// With wording for tools, response formats and effort.
const coordinator::ChatTemplate& SmallChat();

// The tokens of `text` in which the texts of special tokens are those, as the merges give them and
// with one token for each other byte.
enum class Spelling { kMerged, kBytes };
std::vector<int32_t> Spell(std::string_view text, Spelling spelling);

}  // namespace skein::tests
