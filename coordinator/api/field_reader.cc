// Typed fields of a request object.
// Thread: one object is used by one thread.
// Must never: show the text of a prompt in an error.
#include "coordinator/api/field_reader.h"

#include <algorithm>
#include <utility>

#include "protocol/base/strings.h"
#include "protocol/http/http_message.h"

namespace skein::coordinator {

using protocol::Concat;
using protocol::JsonValue;

bool IsJsonType(std::string_view content_type) {
  std::string_view type = content_type.substr(0, content_type.find(';'));
  while (!type.empty() && type.back() == ' ') type.remove_suffix(1);
  return type.empty() || protocol::HeaderNameEquals(type, "application/json");
}

const JsonValue* FieldReader::Find(std::string_view name) {
  known_.emplace_back(name);
  const JsonValue* value = object_.Find(name);
  return value == nullptr || value->IsNull() ? nullptr : value;
}

template <typename T>
std::optional<T> FieldReader::Take(std::string_view name, const absl::StatusOr<T>& value) {
  if (value.ok()) return *value;
  Keep(InvalidValue(Path(name), std::string(protocol::StatusText(value.status()))));
  return std::nullopt;
}

std::optional<bool> FieldReader::Bool(std::string_view name) {
  const JsonValue* value = Find(name);
  if (value == nullptr) return std::nullopt;
  return Take<bool>(name, value->AsBool(Path(name)));
}

std::optional<int64_t> FieldReader::Int(std::string_view name, int64_t min, int64_t max) {
  const JsonValue* value = Find(name);
  if (value == nullptr) return std::nullopt;
  return Take<int64_t>(name, value->AsInt64(Path(name), min, max));
}

std::optional<double> FieldReader::Double(std::string_view name, double min, double max) {
  const JsonValue* value = Find(name);
  if (value == nullptr) return std::nullopt;
  return Take<double>(name, value->AsDouble(Path(name), min, max));
}

std::optional<std::string_view> FieldReader::String(std::string_view name) {
  const JsonValue* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->IsString()) return value->string();
  WrongKind(name, *value, "a string");
  return std::nullopt;
}

std::optional<size_t> FieldReader::Choice(std::string_view name,
                                          const std::vector<std::string_view>& names) {
  const std::optional<std::string_view> text = String(name);
  if (!text.has_value()) return std::nullopt;
  const auto at = std::find(names.begin(), names.end(), *text);
  if (at != names.end()) return static_cast<size_t>(at - names.begin());
  std::string list;
  for (std::string_view known : names) list += Concat(list.empty() ? "" : ", ", known);
  Invalid(name, Concat("is ", JsonValue(std::string(*text)).Describe(), "; accepted: ", list));
  return std::nullopt;
}

void FieldReader::Invalid(std::string_view name, std::string_view what) {
  Keep(InvalidValue(Path(name), Concat(Path(name), " ", what)));
}

void FieldReader::Unsupported(std::string_view name, std::string_view what) {
  Keep(UnsupportedParameter(Path(name), Concat(Path(name), " ", what)));
}

void FieldReader::WrongKind(std::string_view name, const JsonValue& value,
                            std::string_view expected) {
  Invalid(name, Concat("is ", protocol::JsonKindName(value.kind()), "; expected ", expected));
}

void FieldReader::Keep(ApiError error) {
  if (!error_.has_value()) error_ = std::move(error);
}

std::vector<std::string> FieldReader::UnknownNames() const {
  std::vector<std::string> unknown;
  for (const protocol::JsonMember& member : object_.members()) {
    if (std::find(known_.begin(), known_.end(), member.key) == known_.end()) {
      unknown.push_back(member.key);
    }
  }
  return unknown;
}

}  // namespace skein::coordinator
