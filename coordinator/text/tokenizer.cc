// Loading of tokenizer.json and byte-level BPE.
// Thread: const after Create.
// Must never: accept a file that could give two meanings to a text.
#include "coordinator/text/tokenizer.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <utility>

#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"
#include "protocol/json/utf8.h"

namespace skein::coordinator {
namespace {

using protocol::Concat;
using protocol::JsonMember;
using protocol::JsonValue;

constexpr size_t kFileBytesMax = size_t{64} << 20;
constexpr size_t kFileValuesMax = size_t{8} << 20;
constexpr size_t kTokenBytesMax = 1024;

// The byte behind each code point of the GPT-2 alphabet: printable bytes stand for themselves,
// the others follow from U+0100 in order.
std::array<int16_t, 512> MakeByteOfCodePoint() {
  std::array<int16_t, 512> byte_of;
  byte_of.fill(-1);
  size_t next = 256;
  for (size_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    byte_of[printable ? byte : next++] = static_cast<int16_t>(byte);
  }
  return byte_of;
}

// Bytes of a token written in the byte alphabet; nullopt when a character is not in it.
std::optional<std::string> AlphabetToBytes(std::string_view text) {
  static const std::array<int16_t, 512> byte_of = MakeByteOfCodePoint();
  std::string bytes;
  while (!text.empty()) {
    const size_t length = protocol::Utf8SequenceLength(text);
    const unsigned lead = static_cast<unsigned char>(text[0]);
    if (length == 0 || length > 2) return std::nullopt;
    const unsigned code_point =
        length == 1 ? lead : ((lead & 0x1F) << 6) | (static_cast<unsigned char>(text[1]) & 0x3F);
    if (code_point >= byte_of.size() || byte_of[code_point] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte_of[code_point]));
    text.remove_prefix(length);
  }
  return bytes;
}

absl::Status Unsupported(std::string_view path, const JsonValue& value,
                         std::string_view supported) {
  return absl::UnimplementedError(
      Concat(path, " is ", value.Describe(), "; supported: ", supported));
}

// Checks that `key` of `object` is absent, null, false or an empty string.
absl::Status RequireUnset(const JsonValue& object, std::string_view path, std::string_view key) {
  const JsonValue* value = object.Find(key);
  if (value == nullptr || value->IsNull()) return absl::OkStatus();
  if (value->IsString() && value->string().empty()) return absl::OkStatus();
  const absl::StatusOr<bool> flag = value->AsBool(key);
  if (flag.ok() && !*flag) return absl::OkStatus();
  return Unsupported(Concat(path, ".", key), *value, "unset");
}

absl::Status RequireType(const JsonValue& object, std::string_view path, std::string_view type) {
  SKEIN_ASSIGN_OR_RETURN(const JsonValue* value, object.Require("type", path));
  if (value->string() == type) return absl::OkStatus();
  return Unsupported(Concat(path, ".type"), *value, type);
}

absl::Status CheckNormalizer(const JsonValue& file) {
  const JsonValue* normalizer = file.Find("normalizer");
  if (normalizer == nullptr || normalizer->IsNull()) return absl::OkStatus();
  SKEIN_RETURN_IF_ERROR(RequireType(*normalizer, "normalizer", "Sequence"));
  SKEIN_ASSIGN_OR_RETURN(const JsonValue* steps, normalizer->Require("normalizers", "normalizer"));
  if (steps->IsArray() && steps->elements().empty()) return absl::OkStatus();
  return Unsupported("normalizer.normalizers", *steps, "an empty array");
}

// The pattern of one Split step.
absl::StatusOr<std::string> ReadSplit(const JsonValue& step, const std::string& path) {
  SKEIN_ASSIGN_OR_RETURN(const JsonValue* behavior, step.Require("behavior", path));
  if (behavior->string() != "Isolated") {
    return Unsupported(path + ".behavior", *behavior, "Isolated");
  }
  SKEIN_RETURN_IF_ERROR(RequireUnset(step, path, "invert"));
  SKEIN_ASSIGN_OR_RETURN(const JsonValue* pattern, step.Require("pattern", path));
  SKEIN_ASSIGN_OR_RETURN(const JsonValue* regex, pattern->Require("Regex", path + ".pattern"));
  SKEIN_ASSIGN_OR_RETURN(const std::string_view text, regex->AsString(path + ".pattern.Regex"));
  return std::string(text);
}

// The two halves of a merge, written "a b" or ["a", "b"].
absl::StatusOr<std::pair<std::string_view, std::string_view>> MergeHalves(const JsonValue& merge,
                                                                          size_t rank) {
  std::string_view left;
  std::string_view right;
  if (merge.IsString()) {
    const std::string_view text = merge.string();
    const size_t space = text.find(' ');
    if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
      left = text.substr(0, space);
      right = text.substr(space + 1);
    }
  } else if (merge.elements().size() == 2) {
    left = merge.elements()[0].string();
    right = merge.elements()[1].string();
  }
  if (left.empty() || right.empty()) {
    return absl::InvalidArgumentError(
        Concat("model.merges[", rank, "] is ", merge.Describe(), "; expected two tokens"));
  }
  return std::pair(left, right);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::NotFoundError(Concat("cannot read tokenizer file ", path,
                                      "; the model directory must contain tokenizer.json"));
  }
  std::string text(kFileBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Create(text);
  if (tokenizer.ok()) return tokenizer;
  return absl::Status(tokenizer.status().code(),
                      Concat(path, ": ", protocol::StatusText(tokenizer.status())));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(std::string_view tokenizer_json) {
  SKEIN_ASSIGN_OR_RETURN(const JsonValue file,
                         protocol::ParseJson(tokenizer_json, {.bytes_max = kFileBytesMax,
                                                              .string_bytes_max = 1 << 16,
                                                              .depth_max = 16,
                                                              .values_max = kFileValuesMax}));
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer());
  SKEIN_ASSIGN_OR_RETURN(const JsonValue* model, file.Require("model", "tokenizer.json"));
  SKEIN_RETURN_IF_ERROR(RequireType(*model, "model", "BPE"));
  for (std::string_view key : {"dropout", "unk_token", "continuing_subword_prefix",
                               "end_of_word_suffix", "byte_fallback", "ignore_merges"}) {
    SKEIN_RETURN_IF_ERROR(RequireUnset(*model, "model", key));
  }
  SKEIN_RETURN_IF_ERROR(CheckNormalizer(file));
  SKEIN_ASSIGN_OR_RETURN(const JsonValue* decoder, file.Require("decoder", "tokenizer.json"));
  SKEIN_RETURN_IF_ERROR(RequireType(*decoder, "decoder", "ByteLevel"));
  SKEIN_RETURN_IF_ERROR(tokenizer->ReadPretokenizer(file));
  SKEIN_RETURN_IF_ERROR(tokenizer->ReadAddedTokens(file));
  Vocabulary vocabulary;
  SKEIN_RETURN_IF_ERROR(tokenizer->ReadVocabulary(*model, &vocabulary));
  SKEIN_RETURN_IF_ERROR(tokenizer->ReadMerges(*model, vocabulary));
  for (const Token& token : tokenizer->tokens_) {
    tokenizer->longest_token_bytes_ = std::max(tokenizer->longest_token_bytes_, token.bytes.size());
  }
  std::vector<std::string_view> words(tokenizer->tokens_.size());  // views: tokens_ grows no more
  for (size_t id = 0; id < words.size(); ++id) {
    const Token& token = tokenizer->tokens_[id];
    if (!token.is_special) words[id] = token.bytes;
  }
  tokenizer->merger_.IndexWords(words);
  return tokenizer;
}

absl::Status Tokenizer::ReadPretokenizer(const JsonValue& file) {
  SKEIN_ASSIGN_OR_RETURN(const JsonValue* sequence,
                         file.Require("pre_tokenizer", "tokenizer.json"));
  SKEIN_RETURN_IF_ERROR(RequireType(*sequence, "pre_tokenizer", "Sequence"));
  SKEIN_ASSIGN_OR_RETURN(const JsonValue* list,
                         sequence->Require("pretokenizers", "pre_tokenizer"));
  const std::span<const JsonValue> steps = list->elements();
  std::vector<std::string> patterns;
  for (size_t i = 0; i < steps.size(); ++i) {
    const std::string path = Concat("pre_tokenizer.pretokenizers[", i, "]");
    if (i + 1 == steps.size()) {
      SKEIN_RETURN_IF_ERROR(RequireType(steps[i], path, "ByteLevel"));
      SKEIN_RETURN_IF_ERROR(RequireUnset(steps[i], path, "add_prefix_space"));
      const JsonValue* use_regex = steps[i].Find("use_regex");
      if (use_regex == nullptr) return Unsupported(path + ".use_regex", JsonValue(true), "false");
      SKEIN_RETURN_IF_ERROR(RequireUnset(steps[i], path, "use_regex"));
    } else {
      SKEIN_RETURN_IF_ERROR(RequireType(steps[i], path, "Split"));
      SKEIN_ASSIGN_OR_RETURN(std::string pattern, ReadSplit(steps[i], path));
      patterns.push_back(std::move(pattern));
    }
  }
  if (steps.empty()) return Unsupported("pre_tokenizer.pretokenizers", *list, "Split, ByteLevel");
  SKEIN_ASSIGN_OR_RETURN(pretokenizer_, Pretokenizer::Create(patterns));
  return absl::OkStatus();
}

absl::Status Tokenizer::Place(int32_t id, std::string bytes, bool is_special) {
  if (bytes.empty() || bytes.size() > kTokenBytesMax) {
    return absl::InvalidArgumentError(
        Concat("token ", id, " has ", bytes.size(), " bytes; accepted: 1 to ", kTokenBytesMax));
  }
  const size_t index = static_cast<size_t>(id);
  if (index >= tokens_.size()) tokens_.resize(index + 1);
  if (tokens_[index].is_present) {
    return absl::InvalidArgumentError(Concat("token id ", id, " is used twice"));
  }
  tokens_[index] = {std::move(bytes), true, is_special};
  return absl::OkStatus();
}

absl::Status Tokenizer::ReadAddedTokens(const JsonValue& file) {
  SKEIN_ASSIGN_OR_RETURN(const JsonValue* list, file.Require("added_tokens", "tokenizer.json"));
  SKEIN_ASSIGN_OR_RETURN(const std::span<const JsonValue> entries, list->AsArray("added_tokens"));
  for (size_t i = 0; i < entries.size(); ++i) {
    const std::string path = Concat("added_tokens[", i, "]");
    SKEIN_ASSIGN_OR_RETURN(const JsonValue* id_value, entries[i].Require("id", path));
    SKEIN_ASSIGN_OR_RETURN(const int64_t id,
                           id_value->AsInt64(path + ".id", 0, kVocabularyMax - 1));
    SKEIN_ASSIGN_OR_RETURN(const JsonValue* content, entries[i].Require("content", path));
    SKEIN_ASSIGN_OR_RETURN(const std::string_view text, content->AsString(path + ".content"));
    for (std::string_view key : {"single_word", "lstrip", "rstrip"}) {
      SKEIN_RETURN_IF_ERROR(RequireUnset(entries[i], path, key));
    }
    const bool normalized = !RequireUnset(entries[i], path, "normalized").ok();
    SKEIN_RETURN_IF_ERROR(Place(static_cast<int32_t>(id), std::string(text), true));
    if (!special_ids_.emplace(std::string(text), static_cast<int32_t>(id)).second) {
      return absl::InvalidArgumentError(
          Concat(path, ".content ", content->Describe(), " occurs twice"));
    }
    (normalized ? normalized_specials_ : verbatim_specials_).Add(text, static_cast<int32_t>(id));
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::ReadVocabulary(const JsonValue& model, Vocabulary* vocabulary) {
  SKEIN_ASSIGN_OR_RETURN(const JsonValue* map, model.Require("vocab", "model"));
  SKEIN_ASSIGN_OR_RETURN(const std::span<const JsonMember> entries, map->AsObject("model.vocab"));
  vocabulary->reserve(entries.size());
  for (const JsonMember& entry : entries) {
    const std::string path = Concat("model.vocab[", JsonValue(entry.key).Describe(), "]");
    SKEIN_ASSIGN_OR_RETURN(const int64_t wide, entry.value.AsInt64(path, 0, kVocabularyMax - 1));
    const int32_t id = static_cast<int32_t>(wide);
    if (IsSpecial(id)) {  // listed in both places: it must be the same token
      if (tokens_[static_cast<size_t>(id)].bytes != entry.key) {
        return absl::InvalidArgumentError(
            Concat(path, " has id ", id, ", which added_tokens gives to another text"));
      }
      continue;
    }
    if (special_ids_.contains(entry.key)) {
      return absl::InvalidArgumentError(
          Concat(path, " has id ", id, "; added_tokens gives it another id"));
    }
    std::optional<std::string> bytes = AlphabetToBytes(entry.key);
    if (!bytes.has_value()) {
      return absl::InvalidArgumentError(
          Concat(path, " has a character outside the byte alphabet and is not in added_tokens"));
    }
    if (bytes->size() == 1) merger_.SetByteId(static_cast<uint8_t>(bytes->front()), id);
    SKEIN_RETURN_IF_ERROR(Place(id, *std::move(bytes), false));
    vocabulary->emplace(entry.key, id);
  }
  if (merger_.CoversAllBytes()) return absl::OkStatus();
  return absl::InvalidArgumentError("model.vocab lacks a token for at least one single byte");
}

absl::Status Tokenizer::ReadMerges(const JsonValue& model, const Vocabulary& vocabulary) {
  SKEIN_ASSIGN_OR_RETURN(const JsonValue* list, model.Require("merges", "model"));
  SKEIN_ASSIGN_OR_RETURN(const std::span<const JsonValue> merges, list->AsArray("model.merges"));
  std::vector<bool> is_made(tokens_.size());  // single bytes and results of earlier merges
  for (size_t id = 0; id < tokens_.size(); ++id) is_made[id] = tokens_[id].bytes.size() == 1;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    SKEIN_ASSIGN_OR_RETURN(const auto halves, MergeHalves(merges[rank], rank));
    std::array<int32_t, 3> ids{};  // left, right, result
    const std::array<std::string, 3> texts = {std::string(halves.first), std::string(halves.second),
                                              Concat(halves.first, halves.second)};
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto at = vocabulary.find(texts[i]);
      if (at == vocabulary.end()) {
        return absl::InvalidArgumentError(Concat("model.merges[", rank, "]: token ",
                                                 JsonValue(texts[i]).Describe(),
                                                 " is not in model.vocab"));
      }
      ids[i] = at->second;
      if (i < 2 && !is_made[static_cast<size_t>(ids[i])]) {
        return absl::InvalidArgumentError(Concat("model.merges[", rank, "]: token ",
                                                 JsonValue(texts[i]).Describe(),
                                                 " is used before a merge makes it"));
      }
    }
    SKEIN_RETURN_IF_ERROR(merger_.AddMerge(ids[0], ids[1], ids[2]));
    is_made[static_cast<size_t>(ids[2])] = true;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text,
                                                       SpecialTokens special) const {
  if (!protocol::IsValidUtf8(text)) {
    return absl::InvalidArgumentError("the text to encode is not valid UTF-8");
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 8);
  if (special == SpecialTokens::kPlain) {
    SKEIN_RETURN_IF_ERROR(EncodePlain(text, &ids));
  } else {
    const std::array tries = {&verbatim_specials_, &normalized_specials_};
    SKEIN_RETURN_IF_ERROR(EncodeWith(tries, text, &ids));
  }
  return ids;
}

absl::Status Tokenizer::EncodeWith(std::span<const SpecialTokenTrie* const> tries,
                                   std::string_view text, std::vector<int32_t>* ids) const {
  if (tries.empty()) return EncodePlain(text, ids);
  size_t done = 0;
  while (const auto match = tries.front()->FindFirst(text, done)) {
    SKEIN_RETURN_IF_ERROR(
        EncodeWith(tries.subspan(1), text.substr(done, match->begin - done), ids));
    ids->push_back(match->id);
    done = match->end;
  }
  return EncodeWith(tries.subspan(1), text.substr(done), ids);
}

absl::Status Tokenizer::EncodePlain(std::string_view text, std::vector<int32_t>* ids) const {
  SKEIN_ASSIGN_OR_RETURN(const std::vector<std::string_view> pieces, pretokenizer_->Split(text));
  for (std::string_view piece : pieces) merger_.Append(piece, ids);
  return absl::OkStatus();
}

absl::StatusOr<std::string> Tokenizer::Decode(std::span<const int32_t> ids) const {
  std::string text;
  for (int32_t id : ids) {
    if (!IsToken(id)) {
      return absl::InvalidArgumentError(
          Concat("token id ", id, " is not in the vocabulary of ", vocab_size()));
    }
    text += TokenBytes(id);
  }
  return text;
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  return IsToken(id) ? std::string_view(tokens_[static_cast<size_t>(id)].bytes)
                     : std::string_view();
}

bool Tokenizer::IsSpecial(int32_t id) const {
  return IsToken(id) && tokens_[static_cast<size_t>(id)].is_special;
}

bool Tokenizer::IsToken(int32_t id) const {
  return id >= 0 && id < vocab_size() && tokens_[static_cast<size_t>(id)].is_present;
}

std::optional<int32_t> Tokenizer::FindSpecial(std::string_view text) const {
  const auto at = special_ids_.find(std::string(text));
  if (at == special_ids_.end()) return std::nullopt;
  return at->second;
}

}  // namespace skein::coordinator
