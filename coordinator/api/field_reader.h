// Reads the fields of a request object, range-checked, and keeps the first error.
// Owns: the error and the set of names that were asked for.
// Thread: one object is used by one thread.
// Must never: show the text of a prompt in an error.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/api/api_error.h"
#include "protocol/json/json.h"

namespace skein::coordinator {

// True for "application/json", with or without parameters; no header counts as JSON.
bool IsJsonType(std::string_view content_type);

class FieldReader {
 public:
  // `object` outlives the reader. `prefix` is put before names in errors: "messages[0].".
  explicit FieldReader(const protocol::JsonValue& object, std::string prefix = {})
      : object_(object), prefix_(std::move(prefix)) {}

  // The field, or null when it is absent or null. The name counts as known from now on.
  const protocol::JsonValue* Find(std::string_view name);

  // Each returns the value when the field is there and right; otherwise nullopt, with an error
  // kept when it is there and wrong.
  std::optional<bool> Bool(std::string_view name);
  std::optional<int64_t> Int(std::string_view name, int64_t min, int64_t max);
  std::optional<double> Double(std::string_view name, double min, double max);
  // The view lives as long as the object.
  std::optional<std::string_view> String(std::string_view name);
  // Index of the string among `names`.
  std::optional<size_t> Choice(std::string_view name, const std::vector<std::string_view>& names);

  // Keeps an error about a field unless there is one already.
  void Invalid(std::string_view name, std::string_view what);
  void Unsupported(std::string_view name, std::string_view what);
  void Keep(ApiError error);
  // A type error that names the kind of the value, not the value.
  void WrongKind(std::string_view name, const protocol::JsonValue& value,
                 std::string_view expected);

  const std::optional<ApiError>& error() const { return error_; }
  // Names in the object that nobody asked for.
  std::vector<std::string> UnknownNames() const;
  std::string Path(std::string_view name) const { return prefix_ + std::string(name); }

 private:
  template <typename T>
  std::optional<T> Take(std::string_view name, const absl::StatusOr<T>& value);

  const protocol::JsonValue& object_;
  const std::string prefix_;
  std::vector<std::string> known_;
  std::optional<ApiError> error_;
};

}  // namespace skein::coordinator
