// Flattens numbers and prints them in columns.
// Main thread. Must never compare different cases.
#include "worker/node/commands/bench_compare.h"

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"
#include "protocol/json/json.h"

namespace skein::worker {
namespace {

using protocol::Concat;
using protocol::JsonValue;
using Numbers = std::vector<std::pair<std::string, double>>;

struct Case {
  std::string name;
  Numbers numbers;
};

void Flatten(const JsonValue& value, const std::string& path, Numbers& numbers) {
  if (value.IsNumber()) {
    numbers.emplace_back(path, value.AsDouble(path).value_or(0));
    return;
  }
  for (const protocol::JsonMember& member : value.members()) {
    Flatten(member.value, path.empty() ? member.key : Concat(path, ".", member.key), numbers);
  }
}

std::string TextAt(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.Find(key);
  return value == nullptr ? "" : std::string(value->string());
}

absl::StatusOr<std::vector<Case>> CasesOf(const BenchFile& file) {
  std::vector<Case> cases;
  std::string_view rest = file.text;
  for (size_t number = 1; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(rest.size(), end + 1));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto parsed = protocol::ParseJson(line);
    if (!parsed.ok() || !parsed->IsObject()) {
      return absl::InvalidArgumentError(Concat(file.name, ":", number, ": no JSON object",
                                               parsed.ok() ? "" : ": ",
                                               protocol::StatusText(parsed.status())));
    }
    Case found;
    const std::string name = TextAt(*parsed, "case");
    found.name = Concat(TextAt(*parsed, "bench"), name.empty() ? "" : " ", name);
    Flatten(*parsed, "", found.numbers);
    cases.push_back(std::move(found));
  }
  if (cases.empty()) return absl::InvalidArgumentError(Concat(file.name, ": the file is empty"));
  return cases;
}

const double* Find(const std::vector<Case>& cases, std::string_view name, std::string_view metric) {
  for (const Case& candidate : cases) {
    if (candidate.name != name) continue;
    for (const auto& [key, value] : candidate.numbers) {
      if (key == metric) return &value;
    }
  }
  return nullptr;
}

std::string Cell(const double* value, const char* format) {
  if (value == nullptr) return "-";
  char text[64];
  std::snprintf(text, sizeof text, format, *value);
  return text;
}

std::string Padded(std::string text, size_t width) {
  if (text.size() < width) text.insert(0, width - text.size(), ' ');
  return text;
}

std::string Row(std::string_view name, std::string_view metric,
                std::span<const std::vector<Case>> all) {
  std::string row(metric);
  row.resize(std::max<size_t>(36, row.size() + 1), ' ');
  const double* first = Find(all[0], name, metric);
  row += Padded(Cell(first, "%.3f"), 14);
  for (const std::vector<Case>& cases : all.subspan(1)) {
    const double* value = Find(cases, name, metric);
    row += Padded(Cell(value, "%.3f"), 14);
    if (value == nullptr || first == nullptr || *first == 0) {
      row += Padded("-", 9);
    } else {
      const double ratio = *value / *first;
      row += Padded(Cell(&ratio, "%.3fx"), 9);
    }
  }
  return row + "\n";
}

}  // namespace

absl::StatusOr<std::string> CompareResults(std::span<const BenchFile> files) {
  std::vector<std::vector<Case>> all;
  std::string out;
  for (size_t i = 0; i < files.size(); ++i) {
    SKEIN_ASSIGN_OR_RETURN(std::vector<Case> cases, CasesOf(files[i]));
    all.push_back(std::move(cases));
    out += Concat("[", i, "] ", files[i].name, "\n");
  }
  for (const Case& first : all[0]) {
    out += Concat("\n", first.name, "\n");
    for (const auto& [metric, value] : first.numbers) out += Row(first.name, metric, all);
  }
  return out;
}

}  // namespace skein::worker
