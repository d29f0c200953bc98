// The JSON writer.
// Owns: escapes and number forms.
// Thread: one writer is used by one thread.
// Must never: write bytes that are not valid UTF-8 or not JSON.
#include "protocol/json/json_writer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "protocol/json/utf8.h"

namespace skein::protocol {

std::string FormatJsonDouble(double value) {
  std::array<char, 40> buffer{};
  auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                              std::chars_format::scientific);
  std::string text(buffer.data(), result.ptr);
  const size_t exponent_at = text.find('e');
  int exponent = 0;
  const char* digits = text.data() + exponent_at + 1;
  if (*digits == '+') ++digits;
  std::from_chars(digits, text.data() + text.size(), exponent);
  if (exponent < -4 || exponent >= 16) return text;
  result =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::fixed);
  text.assign(buffer.data(), result.ptr);
  if (text.find('.') == std::string::npos) text += ".0";
  return text;
}

namespace {

// How many bytes from the begin on stand in a JSON string as they are: ASCII without escapes.
size_t PlainLength(std::string_view text) {
  const auto* const end = std::find_if(text.data(), text.data() + text.size(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte >= 0x80 || c == '"' || c == '\\';
  });
  return static_cast<size_t>(end - text.data());
}

}  // namespace

void AppendJsonString(std::string_view text, std::string* out) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out->push_back('"');
  while (!text.empty()) {
    const size_t plain = PlainLength(text);
    out->append(text.substr(0, plain));
    text.remove_prefix(plain);
    if (text.empty()) break;
    const size_t length = Utf8SequenceLength(text);
    const unsigned char c = static_cast<unsigned char>(text[0]);
    if (length == 0) {
      out->append("\xEF\xBF\xBD");
    } else if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(static_cast<char>(c));
    } else if (c < 0x20) {
      constexpr std::string_view kNamed = "btn.fr";
      if (c >= 8 && c <= 13 && c != 11) {
        out->push_back('\\');
        out->push_back(kNamed[c - 8u]);
      } else {
        out->append("\\u00");
        out->push_back(kHex[c >> 4]);
        out->push_back(kHex[c & 15]);
      }
    } else {
      out->append(text.substr(0, length));
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  out->push_back('"');
}

void JsonWriter::BeforeValue() {
  if (needs_comma_ && !after_key_) out_->append(style_ == JsonStyle::kSpaced ? ", " : ",");
  after_key_ = false;
  needs_comma_ = true;
}

void JsonWriter::BeginObject() {
  BeforeValue();
  out_->push_back('{');
  needs_comma_ = false;
}

void JsonWriter::EndObject() {
  out_->push_back('}');
  needs_comma_ = true;
}

void JsonWriter::BeginArray() {
  BeforeValue();
  out_->push_back('[');
  needs_comma_ = false;
}

void JsonWriter::EndArray() {
  out_->push_back(']');
  needs_comma_ = true;
}

void JsonWriter::Key(std::string_view key) {
  BeforeValue();
  AppendJsonString(key, out_);
  out_->append(style_ == JsonStyle::kSpaced ? ": " : ":");
  after_key_ = true;
}

void JsonWriter::Null() { Raw("null"); }

void JsonWriter::Bool(bool value) { Raw(value ? "true" : "false"); }

void JsonWriter::Int(int64_t value) {
  std::array<char, 24> digits;
  Raw({digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr});
}

void JsonWriter::Uint(uint64_t value) {
  std::array<char, 24> digits;
  Raw({digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr});
}

void JsonWriter::Double(double value) {
  Raw(std::isfinite(value) ? FormatJsonDouble(value) : "null");
}

void JsonWriter::String(std::string_view value) {
  BeforeValue();
  AppendJsonString(value, out_);
}

void JsonWriter::Raw(std::string_view json) {
  BeforeValue();
  out_->append(json);
}

void JsonWriter::Value(const JsonValue& value) {
  switch (value.kind()) {
    case JsonKind::kNull:
    case JsonKind::kBool:
    case JsonKind::kInt64:
    case JsonKind::kUint64:
    case JsonKind::kDouble:
      return Raw(value.Describe());
    case JsonKind::kString:
      return String(value.string());
    case JsonKind::kArray:
      BeginArray();
      for (const JsonValue& element : value.elements()) Value(element);
      return EndArray();
    case JsonKind::kObject:
      BeginObject();
      for (const JsonMember& member : value.members()) {
        Key(member.key);
        Value(member.value);
      }
      return EndObject();
  }
}

std::string WriteJson(const JsonValue& value, JsonStyle style) {
  std::string out;
  JsonWriter(&out, style).Value(value);
  return out;
}

}  // namespace skein::protocol
