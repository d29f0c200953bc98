// Byte-level BPE of a tokenizer.json.
// Owns: vocabulary, merges, patterns and added tokens of one model.
// Thread: const after Create; every call may run on many threads.
// Must never: give text of users a special id, or run a pattern without limits.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/text/byte_pair_merger.h"
#include "coordinator/text/pretokenizer.h"
#include "coordinator/text/special_token_trie.h"
#include "protocol/json/json.h"

namespace skein::coordinator {

// kParse: added tokens in the text become their ids. kPlain: no text becomes a special id.
enum class SpecialTokens { kParse, kPlain };

class Tokenizer {
 public:
  // Largest vocabulary that is accepted.
  static constexpr int32_t kVocabularyMax = 1 << 20;

  // Reads a file. Errors name the file.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& path);
  // Parses the text of a tokenizer.json. InvalidArgument names what is wrong with it;
  // Unimplemented names a feature that this tokenizer does not have.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(std::string_view tokenizer_json);

  // Ids of valid UTF-8 text; no BOS is added. InvalidArgument for other bytes, ResourceExhausted
  // when a pre-tokenizer pattern exceeds its limits.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, SpecialTokens special) const;

  // Bytes of the ids, special ones as their text. InvalidArgument for an id without a token.
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids) const;

  // The token's own bytes, which may be part of a character; empty for an id without a token.
  std::string_view TokenBytes(int32_t id) const;

  // True for every id in added_tokens, whatever its flags.
  bool IsSpecial(int32_t id) const;
  bool IsToken(int32_t id) const;
  // Id of the added token with that text.
  std::optional<int32_t> FindSpecial(std::string_view text) const;

  // One more than the largest id.
  int32_t vocab_size() const { return static_cast<int32_t>(tokens_.size()); }
  // Bytes of the longest token; a text of n bytes has at least n / longest_token_bytes() tokens.
  size_t longest_token_bytes() const { return longest_token_bytes_; }

 private:
  struct Token {
    std::string bytes;
    bool is_present = false;
    bool is_special = false;
  };
  using Vocabulary = absl::flat_hash_map<std::string, int32_t>;  // byte alphabet -> id

  Tokenizer() = default;
  absl::Status ReadPretokenizer(const protocol::JsonValue& file);
  absl::Status ReadAddedTokens(const protocol::JsonValue& file);
  absl::Status ReadVocabulary(const protocol::JsonValue& model, Vocabulary* vocabulary);
  absl::Status ReadMerges(const protocol::JsonValue& model, const Vocabulary& vocabulary);
  absl::Status Place(int32_t id, std::string bytes, bool is_special);
  absl::Status EncodePlain(std::string_view text, std::vector<int32_t>* ids) const;
  absl::Status EncodeWith(std::span<const SpecialTokenTrie* const> tries, std::string_view text,
                          std::vector<int32_t>* ids) const;

  std::vector<Token> tokens_;
  size_t longest_token_bytes_ = 1;
  std::unique_ptr<Pretokenizer> pretokenizer_;
  BytePairMerger merger_;
  // Matched in this order, each on what the one before left over.
  SpecialTokenTrie verbatim_specials_;
  SpecialTokenTrie normalized_specials_;
  absl::flat_hash_map<std::string, int32_t> special_ids_;
};

}  // namespace skein::coordinator
