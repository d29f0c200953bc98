// Thread: the listener's, but for ParseApiKeys.
// Must never: put a secret, or what may be one, into a message.
#include "coordinator/api/api_keys.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <set>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "protocol/base/log.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"
#include "protocol/config/name_suggestion.h"
#include "protocol/config/yaml_reader.h"

namespace skein::coordinator {

using protocol::Concat;

namespace {

constexpr size_t kNameBytesMax = 64;  // of ids and tenants
constexpr size_t kSentBytesMax = 512;
constexpr size_t kProblemsMax = 20;
constexpr int64_t kTokensMax = 1'000'000'000'000;
constexpr std::chrono::seconds kLookPeriod{1};
constexpr std::string_view kSource = "server.api_key_file (--api-key-file)";
constexpr std::string_view kKeysPrefix = "keys.";
constexpr std::string_view kRightNames[kNumKeyRights] = {"chat",     "completions", "messages",
                                                         "tokenize", "models",      "metrics"};

bool IsName(std::string_view text) {
  return !text.empty() && text.size() <= kNameBytesMax &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '-';
         });
}

template <typename T>
std::optional<T> ParseWhole(std::string_view text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || parsed != end || text.empty()) return std::nullopt;
  return value;
}

// Each reads a value into the key, or says what would be right.
using Reader = std::optional<std::string> (*)(std::string_view, ApiKey&);

std::optional<std::string> ReadHmac(std::string_view text, ApiKey& key) {
  const std::optional<KeyDigest> digest = FromHex(text);
  if (!digest) return "give the 64 hexadecimal digits that skein keygen --api ID prints";
  key.digest = *digest;
  return std::nullopt;
}

std::optional<std::string> ReadTenant(std::string_view text, ApiKey& key) {
  if (!IsName(text)) return "give 1 to 64 of A-Z, a-z, 0-9, _ and -";
  key.tenant = text;
  return std::nullopt;
}

template <auto Field>
std::optional<std::string> ReadInteger(std::string_view text, int64_t min, int64_t max,
                                       ApiKey& key) {
  const std::optional<int64_t> value = ParseWhole<int64_t>(text);
  if (!value || *value < min || *value > max) {
    return Concat("give an integer from ", min, " to ", max);
  }
  using Type = std::decay_t<decltype(key.*Field)>;
  key.*Field = static_cast<Type>(*value);
  return std::nullopt;
}

template <auto Field>
std::optional<std::string> ReadLimit(std::string_view text, ApiKey& key) {
  const std::optional<int64_t> value = ParseWhole<int64_t>(text);
  if (!value || *value < 1 || *value > kTokensMax) {
    return Concat("give an integer from 1 to ", kTokensMax, ", or leave it out for no limit");
  }
  key.limits.*Field = *value;
  return std::nullopt;
}

std::optional<std::string> ReadRate(std::string_view text, ApiKey& key) {
  const std::optional<double> value = ParseWhole<double>(text);
  if (!value || !(*value >= 0.001 && *value <= 1e6)) {
    return "give a number from 0.001 to 1000000, or leave it out for no limit";
  }
  key.limits.requests_per_second = *value;
  return std::nullopt;
}

std::optional<std::string> ReadRoutes(std::string_view text, ApiKey& key) {
  key.rights = 0;
  for (const absl::string_view part : absl::StrSplit(protocol::ToAbsl(text), ',')) {
    const auto* found =
        std::find(std::begin(kRightNames), std::end(kRightNames), protocol::ToStd(part));
    if (found == std::end(kRightNames)) {
      return "give some of chat,completions,messages,tokenize,models,metrics, separated by commas";
    }
    key.rights = static_cast<uint8_t>(key.rights | 1 << (found - kRightNames));
  }
  return std::nullopt;
}

std::optional<std::string> ReadDeadline(std::string_view text, ApiKey& key) {
  const std::optional<double> value = ParseWhole<double>(text);
  if (!value || !(*value >= 0.001 && *value <= 86'400)) {
    return "give seconds from 0.001 to 86400, or leave it out for none";
  }
  key.deadline_s = *value;
  return std::nullopt;
}

std::optional<std::string> ReadExpiry(std::string_view text, ApiKey& key) {
  absl::Time time;
  std::string why;
  const absl::string_view form = text.size() == 10 ? "%Y-%m-%d" : "%Y-%m-%dT%H:%M:%SZ";
  if (!absl::ParseTime(form, protocol::ToAbsl(text), &time, &why)) {
    return "give a day, as 2027-01-31, or a time, as 2027-01-31T18:00:00Z; both are UTC";
  }
  key.expires = absl::ToUnixSeconds(time);
  return std::nullopt;
}

struct Field {
  std::string_view name;
  Reader read;
};

constexpr Field kFields[] = {
    {"hmac", &ReadHmac},
    {"tenant", &ReadTenant},
    {"weight", [](std::string_view text,
                  ApiKey& key) { return ReadInteger<&ApiKey::weight>(text, 1, 1000, key); }},
    {"routes", &ReadRoutes},
    {"special_ids", [](std::string_view text,
                       ApiKey& key) { return ReadInteger<&ApiKey::special_ids>(text, 0, 1, key); }},
    {"priority_min",
     [](std::string_view text, ApiKey& key) {
       return ReadInteger<&ApiKey::priority_min>(text, -100, 100, key);
     }},
    {"priority_max",
     [](std::string_view text, ApiKey& key) {
       return ReadInteger<&ApiKey::priority_max>(text, -100, 100, key);
     }},
    {"deadline", &ReadDeadline},
    {"expires", &ReadExpiry},
    {"requests_per_second", &ReadRate},
    {"prompt_tokens_per_minute", &ReadLimit<&KeyLimits::prompt_tokens_per_minute>},
    {"output_tokens_per_minute", &ReadLimit<&KeyLimits::output_tokens_per_minute>},
    {"concurrency", &ReadLimit<&KeyLimits::concurrency>},
};

// The keys of a file as its entries come.
class KeyFileReader {
 public:
  explicit KeyFileReader(std::string_view file_name) : file_name_(file_name) {}

  void Take(const protocol::YamlEntry& entry) {
    if (entry.path == "keys") {
      // A file without a key under it lets nobody in.
      if (entry.kind != protocol::YamlKind::kSection && entry.kind != protocol::YamlKind::kNull) {
        Complain(entry, "must be a section with an id in each line below it");
      }
      return;
    }
    if (!entry.path.starts_with(kKeysPrefix)) {
      return Complain(entry, "unknown; the file has one section, keys");
    }
    const std::string_view path = std::string_view(entry.path).substr(kKeysPrefix.size());
    const size_t dot = path.find('.');
    if (dot == std::string_view::npos) return BeginKey(entry, path);
    if (path.substr(0, dot) != id_) {
      // It may be a whole key, with its secret.
      return Complain(entry.line, "keys", "an id has no dot: write what stands before the secret");
    }
    if (good_) TakeField(entry, path.substr(dot + 1));
  }

  absl::StatusOr<std::vector<ApiKey>> Finish() {
    EndKey();
    if (!problems_.empty()) return absl::InvalidArgumentError(absl::StrJoin(problems_, "\n"));
    return std::move(keys_);
  }

 private:
  void Complain(const protocol::YamlEntry& entry, std::string_view what) {
    Complain(entry.line, entry.path, what);
  }
  void Complain(int line, std::string_view path, std::string_view what) {
    if (problems_.size() >= kProblemsMax) return;
    problems_.push_back(Concat(file_name_, ":", line, ": ", path, ": ", what));
  }

  void BeginKey(const protocol::YamlEntry& entry, std::string_view id) {
    EndKey();
    given_.clear();
    begin_ = entry;
    id_ = id;
    good_ = IsName(id);
    if (!good_) return Complain(entry, "is no id: 1 to 64 of A-Z, a-z, 0-9, _ and -");
    if (entry.kind != protocol::YamlKind::kSection) {
      good_ = false;
      return Complain(entry, "has no fields; write hmac below it, as skein keygen --api ID does");
    }
    ApiKey& key = keys_.emplace_back();
    key.id = id;
    key.tenant = id;
    key.priority_min = 0;  // to go before other keys' requests is granted, not taken
  }

  void TakeField(const protocol::YamlEntry& entry, std::string_view name) {
    const auto* field = std::find_if(std::begin(kFields), std::end(kFields),
                                     [&](const Field& f) { return f.name == name; });
    if (field == std::end(kFields)) {
      std::vector<std::string> names;
      for (const Field& known : kFields) names.emplace_back(known.name);
      return Complain(entry, Concat("unknown", protocol::NameSuggestion(name, names, "")));
    }
    given_.insert(std::string(name));
    const bool single =
        entry.kind == protocol::YamlKind::kPlain || entry.kind == protocol::YamlKind::kQuoted;
    if (!single) return Complain(entry, "must be a single value");
    const std::optional<std::string> wanted = field->read(entry.text, keys_.back());
    if (!wanted) return;
    // A secret may have been written in the place of its HMAC.
    Complain(entry, name == "hmac" ? *wanted : Concat("\"", entry.text, "\"; ", *wanted));
  }

  void EndKey() {
    if (!good_) return;
    good_ = false;
    if (!given_.contains("hmac")) {
      Complain(begin_, "has no hmac; skein keygen --api ID makes a key and its hmac");
    }
    if (keys_.back().priority_min > keys_.back().priority_max) {
      Complain(begin_, "priority_min is above priority_max");
    }
  }

  const std::string file_name_;
  std::vector<ApiKey> keys_;
  std::string id_;                            // of the key that is being read, or of what is none
  protocol::YamlEntry begin_;                 // of the key that is being read
  std::set<std::string, std::less<>> given_;  // its fields
  bool good_ = false;
  std::vector<std::string> problems_;
};

// The id of "id.secret"; empty when there is none.
std::string_view IdOf(std::string_view sent) {
  const size_t dot = sent.find('.');
  return dot == std::string_view::npos ? std::string_view() : sent.substr(0, dot);
}

bool IsExpired(const ApiKey& key, int64_t unix_seconds) {
  return key.expires.has_value() && *key.expires <= unix_seconds;
}

}  // namespace

std::string_view KeyRightName(KeyRight right) { return kRightNames[static_cast<size_t>(right)]; }

// The secret has 256 bits: no file of such digests gives it away.
KeyDigest ApiKeyDigest(std::string_view id, std::string_view secret) {
  return HmacSha256(secret, Concat("skein api key ", id));
}

absl::StatusOr<NewApiKey> MakeApiKey(std::string_view id) {
  // YAML reads some words as no text at all: their entry would be refused.
  if (!IsName(id) || id == "null" || id == "Null" || id == "NULL") {
    return absl::InvalidArgumentError(
        Concat("keygen --api: \"", id,
               "\" is no id; give 1 to 64 of A-Z, a-z, 0-9, _ and -, but not null"));
  }
  const std::string secret = ToHex(RandomDigest());
  return NewApiKey{Concat(id, ".", secret),
                   Concat("  ", id, ":\n    hmac: \"", ToHex(ApiKeyDigest(id, secret)), "\"\n")};
}

absl::StatusOr<std::vector<ApiKey>> ParseApiKeys(std::string_view text,
                                                 std::string_view file_name) {
  SKEIN_ASSIGN_OR_RETURN(const std::vector<protocol::YamlEntry> entries,
                         protocol::ReadYaml(text, file_name));
  KeyFileReader reader(file_name);
  for (const protocol::YamlEntry& entry : entries) reader.Take(entry);
  return reader.Finish();
}

ApiKeys::ApiKeys(std::string_view literal, std::string file) : file_(std::move(file)) {
  if (literal.empty()) return;
  ApiKey key;
  key.digest = HmacSha256(BytesOf(blinding_), literal);
  key.special_ids = true;
  literal_ = std::make_shared<const ApiKey>(std::move(key));
}

absl::StatusOr<std::unique_ptr<ApiKeys>> ApiKeys::Load(std::string_view literal, std::string file) {
  if (literal.size() > kSentBytesMax ||
      std::any_of(literal.begin(), literal.end(), [](char c) { return c <= 0x20 || c > 0x7E; })) {
    return absl::InvalidArgumentError(Concat("server.api_key (--api-key): give 1 to ",
                                             kSentBytesMax, " visible characters without spaces"));
  }
  std::unique_ptr<ApiKeys> keys(new ApiKeys(literal, std::move(file)));
  if (keys->file_.empty()) return keys;
  keys->read_ = protocol::MarkOf(keys->file_);
  SKEIN_RETURN_IF_ERROR(keys->Read());
  return keys;
}

absl::Status ApiKeys::Read() {
  std::ifstream stream(file_, std::ios::binary);
  std::string text(protocol::kYamlBytesMax + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad() || (stream.fail() && !stream.eof())) {
    return absl::InvalidArgumentError(
        Concat(kSource, ": ", file_, " cannot be read; name a file that can"));
  }
  text.resize(static_cast<size_t>(stream.gcount()));
  absl::StatusOr<std::vector<ApiKey>> parsed = ParseApiKeys(text, file_);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(Concat(kSource, ": ", protocol::StatusText(parsed.status())));
  }
  by_id_.clear();
  for (ApiKey& key : *parsed) {
    std::string id = key.id;
    by_id_.emplace(std::move(id), std::make_shared<const ApiKey>(std::move(key)));
  }
  if (by_id_.empty() && literal_ == nullptr) {
    SKEIN_LOG(
        kError,
        "nobody may use the API: the file of API keys has none; skein keygen --api ID makes one")
        .Field("file", file_);
  }
  return absl::OkStatus();
}

void ApiKeys::ReadIfChanged(Clock::time_point now) {
  if (file_.empty() || now - looked_ < kLookPeriod) return;
  looked_ = now;
  const protocol::FileMark mark = protocol::MarkOf(file_);
  if (mark == read_) return;
  read_ = mark;
  if (const absl::Status status = Read(); !status.ok()) {
    SKEIN_LOG(kError, "the old API keys stay in force")
        .Field("reason", protocol::StatusText(status));
    return;
  }
  SKEIN_LOG(kInfo, "API keys read").Field("file", file_).Field("keys", by_id_.size());
}

std::shared_ptr<const ApiKey> ApiKeys::Find(std::string_view sent, int64_t unix_seconds,
                                            Clock::time_point now) {
  ReadIfChanged(now);
  sent = sent.substr(0, kSentBytesMax + 1);
  const std::string_view id = IdOf(sent);
  const auto found = by_id_.find(id);
  const std::string_view secret = sent.substr(std::min(sent.size(), id.size() + 1));
  static const ApiKey kNobody;
  const ApiKey& known = found == by_id_.end() ? kNobody : *found->second;
  const bool is_known = SameDigest(ApiKeyDigest(id, secret), known.digest) && &known != &kNobody;
  const KeyDigest blinded = HmacSha256(BytesOf(blinding_), sent);
  const bool is_literal =
      SameDigest(blinded, literal_ == nullptr ? kNobody.digest : literal_->digest) &&
      literal_ != nullptr;
  if (is_known && !IsExpired(known, unix_seconds)) return found->second;
  return is_literal ? literal_ : nullptr;
}

}  // namespace skein::coordinator
