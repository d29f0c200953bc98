// Strict JSON: what is read is written and read again as the same value, in both styles; members
// with their source text agree with it; a refusal says where.
// Thread: one.
// Must never: depend on anything but the input.
#include "protocol/base/strings.h"
#include "protocol/json/json.h"
#include "protocol/json/json_writer.h"
#include "protocol/json/utf8.h"
#include "tests/fuzz/fuzz_target.h"

namespace skein::tests {
namespace {

using protocol::JsonStyle;
using protocol::JsonValue;
using protocol::ParseJson;
using protocol::StatusText;
using protocol::WriteJson;

// An accessor gives a value of the kind, or an error that names the path.
template <typename T>
void CheckAccess(const absl::StatusOr<T>& got, bool is_kind) {
  if (got.ok()) return Require(is_kind, "a value of another kind is refused");
  Require(StatusText(got.status()).find("$.x") != std::string_view::npos, "an error names the path",
          StatusText(got.status()));
}

void CheckAccessors(const JsonValue& value) {
  CheckAccess(value.AsBool("$.x"), value.kind() == protocol::JsonKind::kBool);
  CheckAccess(value.AsInt64("$.x", -1000, 1000), value.IsInteger());
  CheckAccess(value.AsUint64("$.x", 1), value.IsInteger());
  CheckAccess(value.AsDouble("$.x", -2, 2), value.IsNumber());
  CheckAccess(value.AsString("$.x"), value.IsString());
  CheckAccess(value.AsArray("$.x"), value.IsArray());
  CheckAccess(value.AsObject("$.x"), value.IsObject());
  CheckAccess(value.Require("a", "$.x"), value.Find("a") != nullptr);
  Require(protocol::IsValidUtf8(value.Describe()), "a description is text");
}

void CheckMembers(std::string_view text, const JsonValue& value) {
  const auto raw = protocol::ParseRawMembers(text);
  Require(raw.ok() == value.IsObject(), "an object has members with their source");
  if (!raw.ok()) return;
  Require(raw->size() == value.members().size(), "as many of them");
  for (size_t i = 0; i < raw->size(); ++i) {
    const protocol::RawJsonMember& member = (*raw)[i];
    const protocol::JsonMember& same = value.members()[i];
    Require(member.key == same.key, "in the same order");
    Require(value.Find(same.key) == &same.value, "found by their keys");
    const auto parsed = ParseJson(member.raw);
    Require(parsed.ok() && WriteJson(*parsed) == WriteJson(same.value),
            "the source of a member is its value", member.raw);
    Require(member.is_string == same.value.IsString() && member.text == same.value.string(),
            "its text is that of the string");
  }
}

void Check(std::string_view text) {
  const auto value = ParseJson(text);
  if (!value.ok()) {
    Require(absl::IsInvalidArgument(value.status()) || absl::IsResourceExhausted(value.status()),
            "a refusal is about the text");
    Require(
        !StatusText(value.status()).empty() && protocol::IsValidUtf8(StatusText(value.status())),
        "a refusal has a reason");
    return Require(!protocol::ParseRawMembers(text).ok(), "what is no JSON has no members");
  }
  const std::string written = WriteJson(*value);
  for (const JsonStyle style : {JsonStyle::kCompact, JsonStyle::kSpaced}) {
    const std::string again = WriteJson(*value, style);
    const auto reread = ParseJson(again);
    Require(reread.ok(), "what is written is JSON", again);
    Require(WriteJson(*reread) == written, "it is the same value", again);
  }
  CheckAccessors(*value);
  for (const JsonValue& element : value->elements()) CheckAccessors(element);
  for (const protocol::JsonMember& member : value->members()) CheckAccessors(member.value);
  CheckMembers(text, *value);
}

}  // namespace
}  // namespace skein::tests

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  skein::tests::Check(skein::tests::TextOf(data, size));
  return 0;
}
