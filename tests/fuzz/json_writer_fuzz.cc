// Text of any bytes as a JSON string, and any double as a number: what is written reads back, and
// broken bytes become U+FFFD. In a log line no control character stays.
// Thread: one.
// Must never: depend on anything but the input.
#include <cmath>
#include <cstring>

#include "protocol/base/control_bytes.h"
#include "protocol/json/json_writer.h"
#include "protocol/json/utf8.h"
#include "tests/fuzz/fuzz_target.h"

namespace skein::tests {
namespace {

using protocol::JsonWriter;
using protocol::ParseJson;

void CheckString(std::string_view text) {
  std::string written;
  protocol::AppendJsonString(text, &written);
  const auto value = ParseJson(written);
  Require(value.ok() && value->IsString(), "a string is written as one", written);
  if (protocol::IsValidUtf8(text)) Require(value->string() == text, "text reads back", written);
}

void CheckNumber(std::string_view text) {
  Bytes bytes(text);
  const uint64_t bits = bytes.Number(8);
  double number = 0;
  std::memcpy(&number, &bits, sizeof number);
  std::string written;
  JsonWriter writer(&written,
                    bits % 2 == 0 ? protocol::JsonStyle::kCompact : protocol::JsonStyle::kSpaced);
  writer.BeginObject();
  writer.Key(bytes.Rest());
  writer.BeginArray();
  writer.Double(number);
  writer.Int(static_cast<int64_t>(bits));
  writer.Uint(bits);
  writer.Bool(bits % 3 == 0);
  writer.Null();
  writer.Raw("[1]");
  writer.EndArray();
  writer.EndObject();
  const auto value = ParseJson(written);
  Require(value.ok() && value->members().size() == 1, "it is JSON", written);
  const auto elements = value->members()[0].value.elements();
  if (std::isfinite(number)) {
    Require(elements[0].AsDouble("$").value() == number, "a double reads back", written);
  } else {
    Require(elements[0].IsNull(), "what is no number is null", written);
  }
  const auto again = ParseJson(protocol::WriteJson(*value, protocol::JsonStyle::kSpaced));
  Require(again.ok() && protocol::WriteJson(*again) == protocol::WriteJson(*value),
          "a value is written and reads back", written);
  Require(elements[1].AsInt64("$").value() == static_cast<int64_t>(bits), "an integer reads back");
  Require(elements[2].AsUint64("$").value() == bits, "a large one, too");
}

void CheckLine(std::string_view text) {
  const std::string line = protocol::EscapeControls(text, "\t");
  for (size_t i = 0; i < line.size(); ++i) {
    Require(line[i] == '\t' || protocol::ControlBytes(std::string_view(line).substr(i)) == 0,
            "no control character stays", line);
  }
}

void Check(std::string_view text) {
  CheckString(text);
  CheckNumber(text);
  CheckLine(text);
}

}  // namespace
}  // namespace skein::tests

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  skein::tests::Check(skein::tests::TextOf(data, size));
  return 0;
}
