// Text from the bytes of tokens: however they are cut the same text comes out, it is UTF-8, and it
// ends at the first stop string.
// Thread: one.
// Must never: depend on anything but the input.
#include "coordinator/text/detokenizer.h"
#include "protocol/json/utf8.h"
#include "tests/fuzz/fuzz_target.h"

namespace skein::tests {
namespace {

using coordinator::Detokenizer;
using coordinator::StopStrings;

const std::vector<std::string> kStops = {"END", "DEN", "NDED", "\n\n", "é", "aab"};

struct Result {
  std::string text;
  std::string stop;  // that matched; empty: none
  friend bool operator==(const Result&, const Result&) = default;
};

Result Read(std::string_view bytes, Cut cut, const StopStrings& stop) {
  Detokenizer detokenizer(stop);
  Result result;
  for (const std::string_view piece : Pieces(bytes, cut)) {
    const std::string part = detokenizer.Append(piece);
    Require(protocol::IsValidUtf8(part), "no character is cut", part);
    result.text += part;
  }
  result.text += detokenizer.Finish();
  result.stop = detokenizer.matched().value_or("");
  return result;
}

// By a search in the whole text: the stop string that ends first, and of those the longest.
Result Expected(const std::string& text, bool include) {
  for (size_t end = 1; end <= text.size(); ++end) {
    const std::string_view head = std::string_view(text).substr(0, end);
    std::string_view longest;
    for (const std::string& stop : kStops) {
      if (head.ends_with(stop) && stop.size() > longest.size()) longest = stop;
    }
    if (longest.empty()) continue;
    return {text.substr(0, include ? end : end - longest.size()), std::string(longest)};
  }
  return {text, ""};
}

void Check(std::string_view bytes) {
  const Result plain = Read(bytes, Cut::kWhole, {});
  Require(!protocol::IsValidUtf8(bytes) || plain.text == bytes, "text stays as it is");
  for (const bool include : {false, true}) {
    const Result expected = Expected(plain.text, include);
    for (const Cut cut : kCuts) {
      Require(Read(bytes, cut, {}) == plain, "cuts do not matter", plain.text);
      Require(Read(bytes, cut, {kStops, include}) == expected, "it ends at the first stop string",
              expected.text);
    }
  }
}

}  // namespace
}  // namespace skein::tests

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  skein::tests::Check(skein::tests::TextOf(data, size));
  return 0;
}
