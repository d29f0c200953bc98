// Reads recorded encodings and compares.
// Thread: main.
// Must never: pass when a file has no cases.
#include "tests/conformance/tokenizer_cases.h"

#include <fstream>
#include <vector>

#include "coordinator/text/tokenizer.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"
#include "protocol/json/json.h"

namespace skein::tests {
namespace {

using protocol::JsonValue;

struct Case {
  std::string name;
  std::string text;
  std::vector<int32_t> ids;
};

absl::StatusOr<Case> ReadCase(const std::string& line) {
  SKEIN_ASSIGN_OR_RETURN(const JsonValue value, protocol::ParseJson(line));
  SKEIN_ASSIGN_OR_RETURN(const JsonValue* id, value.Require("id", "case"));
  SKEIN_ASSIGN_OR_RETURN(const JsonValue* kind, value.Require("kind", "case"));
  SKEIN_ASSIGN_OR_RETURN(const JsonValue* text, value.Require("text", "case"));
  SKEIN_ASSIGN_OR_RETURN(const JsonValue* ids, value.Require("ids", "case"));
  SKEIN_ASSIGN_OR_RETURN(const auto list, ids->AsArray("case.ids"));
  SKEIN_ASSIGN_OR_RETURN(const std::string_view bytes, text->AsString("case.text"));
  Case result{id->Describe() + " " + std::string(kind->string()), std::string(bytes), {}};
  for (const JsonValue& element : list) {
    SKEIN_ASSIGN_OR_RETURN(const int64_t token, element.AsInt64("case.ids", 0, INT32_MAX));
    result.ids.push_back(static_cast<int32_t>(token));
  }
  return result;
}

}  // namespace

absl::StatusOr<TokenizerCaseCounts> RunTokenizerCases(const std::string& tokenizer,
                                                      const std::string& encodings,
                                                      std::ostream& out) {
  SKEIN_ASSIGN_OR_RETURN(const auto loaded, coordinator::Tokenizer::Load(tokenizer));
  std::ifstream file(encodings);
  if (!file) return absl::NotFoundError("cannot read encodings file " + encodings);
  TokenizerCaseCounts counts;
  for (std::string line; std::getline(file, line);) {
    if (line.empty()) continue;
    SKEIN_ASSIGN_OR_RETURN(const Case expected, ReadCase(line));
    ++counts.num_cases;
    const auto ids = loaded->Encode(expected.text, coordinator::SpecialTokens::kParse);
    const bool encoded = ids.ok() && *ids == expected.ids;
    const auto text = loaded->Decode(expected.ids);
    const bool restored = text.ok() && *text == expected.text;
    counts.num_encoded += encoded ? 1 : 0;
    counts.num_restored += restored ? 1 : 0;
    if (!encoded) out << "FAIL encode " << expected.name << "\n";
    if (!restored) out << "FAIL decode " << expected.name << "\n";
  }
  out << "tokenizer " << tokenizer << ": " << counts.num_encoded << "/" << counts.num_cases
      << " encodings, " << counts.num_restored << "/" << counts.num_cases << " round trips\n";
  return counts;
}

}  // namespace skein::tests
