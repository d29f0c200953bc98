// The one JSON writer of the tree.
// Owns: commas, escapes and number forms; the text belongs to the caller.
// Thread: one writer is used by one thread.
// Must never: write bytes that are not valid UTF-8 or not JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/json/json.h"

namespace skein::protocol {

// kCompact has no white space; kSpaced writes ", " and ": " between items.
enum class JsonStyle { kCompact, kSpaced };

// Appends JSON text to a string that must outlive it. The caller keeps begin and end balanced;
// commas and colons are its own work. Output is always valid UTF-8: broken bytes become U+FFFD.
class JsonWriter {
 public:
  explicit JsonWriter(std::string* out, JsonStyle style = JsonStyle::kCompact)
      : out_(out), style_(style) {}

  void BeginObject();
  void EndObject();
  void BeginArray();
  void EndArray();
  void Key(std::string_view key);
  void Null();
  void Bool(bool value);  // NOLINT: a JSON boolean is a boolean
  void Int(int64_t value);
  void Uint(uint64_t value);
  // Shortest form that reads back as the same double, always with a point or exponent.
  // A value that is not finite is written as null.
  void Double(double value);
  void String(std::string_view value);
  // Text that is already one JSON value.
  void Raw(std::string_view json);
  void Value(const JsonValue& value);

 private:
  void BeforeValue();

  std::string* out_;
  JsonStyle style_;
  bool needs_comma_ = false;
  bool after_key_ = false;
};

// One JSON text of a value.
std::string WriteJson(const JsonValue& value, JsonStyle style = JsonStyle::kCompact);

// Appends `text` to `out` as a JSON string with its quotes.
void AppendJsonString(std::string_view text, std::string* out);

// Shortest decimal form that reads back as the same finite double, with a point or exponent.
std::string FormatJsonDouble(double value);

}  // namespace skein::protocol
