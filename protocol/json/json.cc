// Strict JSON on the event parser of Boost.JSON.
// Owns: the handler that builds values, and the limits.
// Thread: functions are pure.
// Must never: let an exception of the package leave this file.
#include "protocol/json/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <exception>
#include <optional>

#include <boost/json/basic_parser_impl.hpp>

#include "protocol/json/json_writer.h"
#include "protocol/json/utf8.h"

namespace skein::protocol {
namespace {

constexpr size_t kLinearSearchMax = 16;
constexpr size_t kShownBytesMax = 64;

// Index of the first duplicate key of `members` in document order, and the sorted order.
std::optional<size_t> FindDuplicate(const std::vector<JsonMember>& members,
                                    std::vector<uint32_t>* by_key) {
  by_key->resize(members.size());
  for (size_t i = 0; i < members.size(); ++i) (*by_key)[i] = static_cast<uint32_t>(i);
  std::sort(by_key->begin(), by_key->end(), [&](uint32_t a, uint32_t b) {
    const int order = members[a].key.compare(members[b].key);
    return order != 0 ? order < 0 : a < b;
  });
  std::optional<size_t> duplicate;
  for (size_t i = 1; i < by_key->size(); ++i) {
    const size_t later = (*by_key)[i];
    if (members[(*by_key)[i - 1]].key == members[later].key) {
      duplicate = std::min(duplicate.value_or(later), later);
    }
  }
  return duplicate;
}

std::string Shortened(std::string_view text) {
  if (text.size() <= kShownBytesMax) return std::string(text);
  size_t cut = kShownBytesMax;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
  return std::string(text.substr(0, cut)) + "...";
}

absl::Status OutOfRange(std::string_view path, const std::string& value, const std::string& low,
                        const std::string& high) {
  return absl::InvalidArgumentError(std::string(path) + " is " + value + "; accepted: " + low +
                                    " to " + high);
}

}  // namespace

// Receives the parser's events and builds one JsonValue.
class JsonBuilder {
 public:
  using error_code = boost::json::error_code;
  using string_view = boost::json::string_view;
  static constexpr size_t max_object_size = static_cast<size_t>(-1);
  static constexpr size_t max_array_size = static_cast<size_t>(-1);
  static constexpr size_t max_key_size = static_cast<size_t>(-1);
  static constexpr size_t max_string_size = static_cast<size_t>(-1);

  explicit JsonBuilder(const JsonLimits& limits) : limits_(limits) {}

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_array_begin(error_code& ec) { return Open(Frame(false), ec); }
  bool on_array_end(size_t, error_code& ec) {
    JsonValue value(std::move(frames_.back().elements));
    frames_.pop_back();
    return Add(std::move(value), ec);
  }
  bool on_object_begin(error_code& ec) { return Open(Frame(true), ec); }
  bool on_object_end(size_t, error_code& ec) {
    std::vector<uint32_t> by_key;
    const auto duplicate = FindDuplicate(frames_.back().members, &by_key);
    if (duplicate.has_value()) {
      frames_.back().key = frames_.back().members[*duplicate].key;
      return Fail("duplicate key", ec);
    }
    JsonValue value(std::move(frames_.back().members));
    frames_.pop_back();
    return Add(std::move(value), ec);
  }
  bool on_string_part(string_view part, size_t, error_code& ec) { return AppendText(part, ec); }
  bool on_string(string_view part, size_t, error_code& ec) {
    if (!AppendText(part, ec) || !Count(ec)) return false;
    return Add(JsonValue(std::exchange(text_, {})), ec);
  }
  bool on_key_part(string_view part, size_t, error_code& ec) { return AppendText(part, ec); }
  bool on_key(string_view part, size_t, error_code& ec) {
    if (!AppendText(part, ec)) return false;
    frames_.back().key = std::exchange(text_, {});
    return true;
  }
  bool on_number_part(string_view part, error_code& ec) { return AppendText(part, ec); }
  bool on_int64(int64_t value, string_view, error_code& ec) { return Number(value, ec); }
  bool on_uint64(uint64_t value, string_view, error_code& ec) { return Number(value, ec); }
  bool on_double(double rough, string_view part, error_code& ec) {
    if (!AppendText(part, ec)) return false;
    const std::string digits = std::exchange(text_, {});
    double value = 0;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (result.ec == std::errc::result_out_of_range && !(std::abs(rough) < 1)) {
      return Fail("number beyond the range of a double", ec);
    }
    return Number(value, ec);
  }
  bool on_bool(bool value, error_code& ec) { return Number(value, ec); }
  bool on_null(error_code& ec) { return Count(ec) && Add(JsonValue(), ec); }
  bool on_comment_part(string_view, error_code&) { return false; }
  bool on_comment(string_view, error_code&) { return false; }

  const std::string& message() const { return message_; }
  bool over_limit() const { return over_limit_; }
  JsonValue TakeRoot() { return std::move(root_); }

  std::string Path() const {
    std::string path = "$";
    for (const Frame& frame : frames_) {
      if (frame.is_object) {
        if (!frame.key.empty() || !frame.members.empty()) path += "." + Shortened(frame.key);
      } else {
        path += "[" + std::to_string(frame.elements.size()) + "]";
      }
    }
    return path;
  }

 private:
  struct Frame {
    explicit Frame(bool object) : is_object(object) {}
    bool is_object = false;
    std::string key;
    std::vector<JsonMember> members;
    std::vector<JsonValue> elements;
  };

  template <typename T>
  bool Number(T value, error_code& ec) {
    text_.clear();
    return Count(ec) && Add(JsonValue(value), ec);
  }
  bool Open(Frame frame, error_code& ec) {
    if (!Count(ec)) return false;
    if (frames_.size() >= limits_.depth_max) {
      over_limit_ = true;
      return Fail("nesting deeper than " + std::to_string(limits_.depth_max), ec);
    }
    frames_.push_back(std::move(frame));
    return true;
  }
  bool Count(error_code& ec) {
    if (++values_ <= limits_.values_max) return true;
    over_limit_ = true;
    return Fail("more than " + std::to_string(limits_.values_max) + " values", ec);
  }
  bool AppendText(string_view part, error_code& ec) {
    if (text_.size() + part.size() > limits_.string_bytes_max) {
      over_limit_ = true;
      return Fail("string longer than " + std::to_string(limits_.string_bytes_max) + " bytes", ec);
    }
    text_.append(part.data(), part.size());
    return true;
  }
  bool Add(JsonValue value, error_code&) {
    if (frames_.empty()) {
      root_ = std::move(value);
    } else if (frames_.back().is_object) {
      frames_.back().members.push_back({std::move(frames_.back().key), std::move(value)});
      frames_.back().key.clear();
    } else {
      frames_.back().elements.push_back(std::move(value));
    }
    return true;
  }
  bool Fail(std::string message, error_code& ec) {
    message_ = std::move(message);
    ec = boost::json::make_error_code(boost::json::error::extra_data);
    return false;
  }

  const JsonLimits limits_;
  JsonValue root_;
  std::vector<Frame> frames_;
  std::string text_;
  std::string message_;
  size_t values_ = 0;
  bool over_limit_ = false;
};

namespace {

absl::Status ParseError(std::string_view what, size_t offset, const std::string& path) {
  return absl::InvalidArgumentError("invalid JSON at byte " + std::to_string(offset) + " (" + path +
                                    "): " + std::string(what));
}

std::string_view SyntaxMessage(const boost::json::error_code& ec) {
  using boost::json::error;
  if (ec == error::incomplete) return "the text ends inside a value";
  if (ec == error::extra_data) return "text after the end of the value";
  if (ec == error::exponent_overflow) return "number beyond the range of a double";
  if (ec == error::illegal_leading_surrogate || ec == error::illegal_trailing_surrogate ||
      ec == error::expected_utf16_escape) {
    return "unpaired surrogate in an escape";
  }
  return "syntax error";
}

}  // namespace

std::string_view JsonKindName(JsonKind kind) {
  switch (kind) {
    case JsonKind::kNull:
      return "null";
    case JsonKind::kBool:
      return "a boolean";
    case JsonKind::kInt64:
    case JsonKind::kUint64:
      return "an integer";
    case JsonKind::kDouble:
      return "a number";
    case JsonKind::kString:
      return "a string";
    case JsonKind::kArray:
      return "an array";
    case JsonKind::kObject:
      return "an object";
  }
  return "unknown";
}

JsonValue::JsonValue(uint64_t value) {
  if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    value_ = static_cast<int64_t>(value);
  } else {
    value_ = value;
  }
}

JsonValue::JsonValue(std::vector<JsonMember> members) {
  Object object{std::move(members), {}};
  if (object.members.size() > kLinearSearchMax) FindDuplicate(object.members, &object.by_key);
  value_ = std::move(object);
}

absl::Status JsonValue::WrongKind(std::string_view path, std::string_view expected) const {
  return absl::InvalidArgumentError(std::string(path) + " is " + Describe() + "; expected " +
                                    std::string(expected));
}

absl::StatusOr<bool> JsonValue::AsBool(std::string_view path) const {
  if (const bool* value = std::get_if<bool>(&value_)) return *value;
  return WrongKind(path, "true or false");
}

absl::StatusOr<int64_t> JsonValue::AsInt64(std::string_view path, int64_t min, int64_t max) const {
  if (!IsInteger()) return WrongKind(path, "an integer");
  const int64_t* value = std::get_if<int64_t>(&value_);
  if (value == nullptr || *value < min || *value > max) {
    return OutOfRange(path, Describe(), std::to_string(min), std::to_string(max));
  }
  return *value;
}

absl::StatusOr<uint64_t> JsonValue::AsUint64(std::string_view path, uint64_t min,
                                             uint64_t max) const {
  if (!IsInteger()) return WrongKind(path, "an integer");
  uint64_t value = 0;
  bool fits = true;
  if (const uint64_t* large = std::get_if<uint64_t>(&value_)) {
    value = *large;
  } else {
    const int64_t small = std::get<int64_t>(value_);
    fits = small >= 0;
    value = static_cast<uint64_t>(small);
  }
  if (!fits || value < min || value > max) {
    return OutOfRange(path, Describe(), std::to_string(min), std::to_string(max));
  }
  return value;
}

absl::StatusOr<double> JsonValue::AsDouble(std::string_view path, double min, double max) const {
  constexpr int64_t kExact = int64_t{1} << 53;
  double value = 0;
  if (const double* number = std::get_if<double>(&value_)) {
    value = *number;
  } else if (const int64_t* integer = std::get_if<int64_t>(&value_)) {
    if (*integer > kExact || *integer < -kExact) {
      return OutOfRange(path, Describe(), FormatJsonDouble(std::max(min, -0x1p53)),
                        FormatJsonDouble(std::min(max, 0x1p53)));
    }
    value = static_cast<double>(*integer);
  } else if (std::holds_alternative<uint64_t>(value_)) {
    return OutOfRange(path, Describe(), FormatJsonDouble(std::max(min, -0x1p53)),
                      FormatJsonDouble(std::min(max, 0x1p53)));
  } else {
    return WrongKind(path, "a number");
  }
  if (!(value >= min && value <= max)) {
    return OutOfRange(path, Describe(), FormatJsonDouble(min), FormatJsonDouble(max));
  }
  return value;
}

absl::StatusOr<std::string_view> JsonValue::AsString(std::string_view path) const {
  if (!IsString()) return WrongKind(path, "a string");
  return string();
}

absl::StatusOr<std::span<const JsonValue>> JsonValue::AsArray(std::string_view path) const {
  if (!IsArray()) return WrongKind(path, "an array");
  return elements();
}

absl::StatusOr<std::span<const JsonMember>> JsonValue::AsObject(std::string_view path) const {
  if (!IsObject()) return WrongKind(path, "an object");
  return members();
}

std::span<const JsonValue> JsonValue::elements() const {
  const auto* elements = std::get_if<std::vector<JsonValue>>(&value_);
  return elements == nullptr ? std::span<const JsonValue>() : std::span<const JsonValue>(*elements);
}

std::span<const JsonMember> JsonValue::members() const {
  const Object* object = std::get_if<Object>(&value_);
  return object == nullptr ? std::span<const JsonMember>()
                           : std::span<const JsonMember>(object->members);
}

std::string_view JsonValue::string() const {
  const std::string* text = std::get_if<std::string>(&value_);
  return text == nullptr ? std::string_view() : std::string_view(*text);
}

const JsonValue* JsonValue::Find(std::string_view key) const {
  const Object* object = std::get_if<Object>(&value_);
  if (object == nullptr) return nullptr;
  if (object->by_key.empty()) {
    for (const JsonMember& member : object->members) {
      if (member.key == key) return &member.value;
    }
    return nullptr;
  }
  const auto at = std::lower_bound(
      object->by_key.begin(), object->by_key.end(), key,
      [&](uint32_t index, std::string_view wanted) { return object->members[index].key < wanted; });
  if (at == object->by_key.end() || object->members[*at].key != key) return nullptr;
  return &object->members[*at].value;
}

absl::StatusOr<const JsonValue*> JsonValue::Require(std::string_view key,
                                                    std::string_view path) const {
  if (!IsObject()) return WrongKind(path, "an object");
  const JsonValue* value = Find(key);
  if (value == nullptr) {
    return absl::InvalidArgumentError(std::string(path) + " lacks the required key \"" +
                                      std::string(key) + "\"");
  }
  return value;
}

std::string JsonValue::Describe() const {
  switch (kind()) {
    case JsonKind::kNull:
      return "null";
    case JsonKind::kBool:
      return std::get<bool>(value_) ? "true" : "false";
    case JsonKind::kInt64:
      return std::to_string(std::get<int64_t>(value_));
    case JsonKind::kUint64:
      return std::to_string(std::get<uint64_t>(value_));
    case JsonKind::kDouble:
      return FormatJsonDouble(std::get<double>(value_));
    case JsonKind::kString: {
      std::string text;
      AppendJsonString(Shortened(string()), &text);
      return text;
    }
    case JsonKind::kArray:
      return "an array of " + std::to_string(elements().size());
    case JsonKind::kObject:
      return "an object of " + std::to_string(members().size());
  }
  return "unknown";
}

absl::StatusOr<JsonValue> ParseJson(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.bytes_max) {
    return absl::ResourceExhaustedError("JSON text of " + std::to_string(text.size()) +
                                        " bytes; at most " + std::to_string(limits.bytes_max) +
                                        " are accepted");
  }
  if (!IsValidUtf8(text)) {
    size_t offset = 0;
    for (size_t length = 0; (length = Utf8SequenceLength(text.substr(offset))) != 0;) {
      offset += length;
    }
    return ParseError("invalid UTF-8", offset, "$");
  }
  try {
    boost::json::parse_options options;
    options.max_depth = 1024;  // the handler has the real bound and the better message
    boost::json::basic_parser<JsonBuilder> parser(options, limits);
    boost::json::error_code ec;
    const size_t used = parser.write_some(false, text.data(), text.size(), ec);
    const JsonBuilder& builder = parser.handler();
    if (ec || used < text.size()) {
      const std::string path = builder.Path();
      if (!builder.message().empty()) return ParseError(builder.message(), used, path);
      return ParseError(ec ? SyntaxMessage(ec) : "text after the end of the value", used, path);
    }
    return parser.handler().TakeRoot();
  } catch (const std::exception& error) {
    return absl::InternalError(std::string("JSON parser failed: ") + error.what());
  }
}

namespace {

// End of the JSON value that starts at `at`; the text was validated before.
size_t ValueEnd(std::string_view text, size_t at) {
  size_t depth = 0;
  bool in_string = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string) {
      if (c == '\\') {
        ++at;
      } else if (c == '"') {
        in_string = false;
      }
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '{' || c == '[') ++depth;
    if ((c == ',' || c == '}' || c == ']') && depth == 0) return at;
    if (c == '}' || c == ']') --depth;
  }
  return at;
}

}  // namespace

absl::StatusOr<std::vector<RawJsonMember>> ParseRawMembers(std::string_view text,
                                                           const JsonLimits& limits) {
  absl::StatusOr<JsonValue> value = ParseJson(text, limits);
  if (!value.ok()) return value.status();
  if (!value->IsObject()) {
    return absl::InvalidArgumentError("the text is " + value->Describe() +
                                      "; expected a JSON object");
  }
  constexpr std::string_view kSpace = " \t\r\n";
  std::vector<RawJsonMember> members;
  size_t at = text.find('{') + 1;
  for (const JsonMember& member : value->members()) {
    at = text.find('"', at) + 1;
    while (text[at] != '"') at += text[at] == '\\' ? 2 : 1;
    at = text.find_first_not_of(kSpace, text.find(':', at) + 1);
    const size_t end = ValueEnd(text, at);
    const size_t last = text.find_last_not_of(kSpace, end - 1);
    members.push_back({member.key, text.substr(at, last + 1 - at), member.value.IsString(),
                       std::string(member.value.string())});
    at = end + 1;
  }
  return members;
}

}  // namespace skein::protocol
