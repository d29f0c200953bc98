// The one JSON reader of the tree.
// Owns: strict parsing of untrusted text into JsonValue.
// Thread: values are plain data; a const value may be read from many threads.
// Must never: keep the last of duplicate keys, narrow a number silently, or expose the package
// it is built on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace skein::protocol {

// Bounds of one document. The defaults are those of an HTTP body.
struct JsonLimits {
  size_t bytes_max = size_t{8} << 20;
  size_t string_bytes_max = size_t{8} << 20;
  size_t depth_max = 64;  // at most 64
  size_t values_max = 200'000;
};

enum class JsonKind { kNull, kBool, kInt64, kUint64, kDouble, kString, kArray, kObject };

// "null", "a boolean", "an integer", "a number", "a string", "an array", "an object".
std::string_view JsonKindName(JsonKind kind);

struct JsonMember;

// One JSON value. Integers that fit int64 are kInt64, larger ones that fit uint64 are kUint64,
// every other number is kDouble. Objects keep the order of their keys.
// The As functions return InvalidArgument that names `path`, the value found and what was
// expected.
class JsonValue {
 public:
  JsonValue() = default;
  explicit JsonValue(bool value);
  explicit JsonValue(int64_t value);
  // A value above the int64 range stays unsigned; any other becomes kInt64.
  explicit JsonValue(uint64_t value);
  explicit JsonValue(double value);
  explicit JsonValue(std::string value);
  explicit JsonValue(std::vector<JsonValue> elements);
  // Keys must be distinct; ParseJson guarantees it.
  explicit JsonValue(std::vector<JsonMember> members);

  JsonKind kind() const { return static_cast<JsonKind>(value_.index()); }
  bool IsNull() const { return kind() == JsonKind::kNull; }
  bool IsString() const { return kind() == JsonKind::kString; }
  bool IsArray() const { return kind() == JsonKind::kArray; }
  bool IsObject() const { return kind() == JsonKind::kObject; }
  bool IsInteger() const { return kind() == JsonKind::kInt64 || kind() == JsonKind::kUint64; }
  bool IsNumber() const { return IsInteger() || kind() == JsonKind::kDouble; }

  absl::StatusOr<bool> AsBool(std::string_view path) const;
  // An integer without fraction or exponent within [min, max].
  absl::StatusOr<int64_t> AsInt64(std::string_view path,
                                  int64_t min = std::numeric_limits<int64_t>::min(),
                                  int64_t max = std::numeric_limits<int64_t>::max()) const;
  absl::StatusOr<uint64_t> AsUint64(std::string_view path, uint64_t min = 0,
                                    uint64_t max = std::numeric_limits<uint64_t>::max()) const;
  // Any number within [min, max]; an integer that a double cannot hold exactly is refused.
  absl::StatusOr<double> AsDouble(std::string_view path,
                                  double min = std::numeric_limits<double>::lowest(),
                                  double max = std::numeric_limits<double>::max()) const;
  // The view lives as long as this value.
  absl::StatusOr<std::string_view> AsString(std::string_view path) const;
  absl::StatusOr<std::span<const JsonValue>> AsArray(std::string_view path) const;
  absl::StatusOr<std::span<const JsonMember>> AsObject(std::string_view path) const;

  // The elements or members; empty when this is not an array or object.
  std::span<const JsonValue> elements() const;
  std::span<const JsonMember> members() const;
  // The string; empty when this is not a string.
  std::string_view string() const;

  // The member of that name, or null when there is none or this is not an object.
  const JsonValue* Find(std::string_view key) const;
  // Same, with an error that names `path` and the key.
  absl::StatusOr<const JsonValue*> Require(std::string_view key, std::string_view path) const;

  // The value as an error message shows it: short, strings cut after 64 bytes.
  std::string Describe() const;

 private:
  struct Object {
    std::vector<JsonMember> members;
    std::vector<uint32_t> by_key;  // member indices in key order, for large objects only
  };
  absl::Status WrongKind(std::string_view path, std::string_view expected) const;

  std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string, std::vector<JsonValue>,
               Object>
      value_;
};

struct JsonMember {
  std::string key;
  JsonValue value;
};

// Here, since a member is complete from here on.
inline JsonValue::JsonValue(bool value) : value_(value) {}
inline JsonValue::JsonValue(int64_t value) : value_(value) {}
inline JsonValue::JsonValue(double value) : value_(value) {}
inline JsonValue::JsonValue(std::string value) : value_(std::move(value)) {}
inline JsonValue::JsonValue(std::vector<JsonValue> elements) : value_(std::move(elements)) {}

// Parses one document. InvalidArgument names the byte offset and the path ("$.messages[2].role").
// ResourceExhausted when the text is longer than bytes_max.
absl::StatusOr<JsonValue> ParseJson(std::string_view text, const JsonLimits& limits = {});

// A member of an object and the exact text its value has in the document.
struct RawJsonMember {
  std::string key;
  std::string_view raw;  // without surrounding white space; points into the parsed text
  bool is_string = false;
  std::string text;  // the unescaped value of a string, otherwise empty
};

// Parses an object and returns its members with their source text, in order.
absl::StatusOr<std::vector<RawJsonMember>> ParseRawMembers(std::string_view text,
                                                           const JsonLimits& limits = {});

}  // namespace skein::protocol
