// Members of --speculative-config to configuration keys. A JSON object is a YAML flow map, so the
// strict reader of the configuration file reads it. Any thread.
// Must never accept a method that drafts with something else than the checkpoint's own head.
#include "protocol/config/speculative_config.h"

#include "absl/status/status.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"
#include "protocol/config/yaml_reader.h"

namespace skein::protocol {
namespace {

constexpr std::string_view kExample =
    R"({"method": "dspark", "num_speculative_tokens": 5} or {"method": "none"})";

absl::Status Bad(std::string text) { return absl::InvalidArgumentError(text); }

absl::StatusOr<KeyValue> ReadMethod(const YamlEntry& entry) {
  if (entry.kind != YamlKind::kQuoted) {
    return Bad(Concat("method is not a string; give \"dspark\" or \"none\""));
  }
  if (entry.text != "dspark" && entry.text != "none") {
    return Bad(Concat("method is \"", entry.text,
                      "\"; this server drafts with the checkpoint's own head alone: give "
                      "\"dspark\", or \"none\" to decode without drafts"));
  }
  return KeyValue{"speculation.method", entry.text};
}

absl::StatusOr<KeyValue> ReadNumber(const YamlEntry& entry) {
  if (entry.kind != YamlKind::kPlain ||
      entry.text.find_first_not_of("0123456789-") != std::string::npos) {
    return Bad("num_speculative_tokens is not an integer; give a number without quotes");
  }
  return KeyValue{"speculation.num_speculative_tokens", entry.text};
}

}  // namespace

absl::StatusOr<std::vector<KeyValue>> ReadSpeculativeConfig(std::string_view json) {
  const size_t first = json.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || json[first] != '{') {
    return Bad(Concat("\"", json, "\" is not a JSON object; give ", kExample));
  }
  const absl::StatusOr<std::vector<YamlEntry>> entries = ReadYaml(json, "line");
  if (!entries.ok()) {
    return Bad(Concat("not a JSON object: ", StatusText(entries.status()), "; give ", kExample));
  }
  if (entries->empty()) return Bad(Concat("sets nothing; give ", kExample));
  std::vector<KeyValue> values;
  for (const YamlEntry& entry : *entries) {
    if (entry.path == "method") {
      SKEIN_ASSIGN_OR_RETURN(KeyValue value, ReadMethod(entry));
      values.push_back(std::move(value));
    } else if (entry.path == "num_speculative_tokens") {
      SKEIN_ASSIGN_OR_RETURN(KeyValue value, ReadNumber(entry));
      values.push_back(std::move(value));
    } else {
      return Bad(Concat("unknown member \"", entry.path,
                        "\"; leave it out: there are method and num_speculative_tokens, and the "
                        "draft head is part of the checkpoint"));
    }
  }
  return values;
}

}  // namespace skein::protocol
