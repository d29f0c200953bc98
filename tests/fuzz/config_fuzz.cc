// Configuration: a YAML file, or flags, one a line, when the input begins with a dash. What is
// accepted is written and read again as the same values; every problem names file and line or flag.
// Thread: one.
// Must never: read a file that the input names.
#include "protocol/base/strings.h"
#include "protocol/config/config.h"
#include "protocol/config/yaml_reader.h"
#include "tests/fuzz/fuzz_target.h"

namespace skein::tests {
namespace {

using protocol::LoadConfig;
using protocol::LoadedConfig;
using protocol::LoadOptions;
using protocol::StatusText;

LoadOptions Options() {
  LoadOptions options;
  options.allow_auto_backend = true;
  options.positional_max = 1;
  options.program_flags = {"supervisor-fd"};
  return options;
}

std::vector<std::string> Lines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  return lines;
}

void CheckLoaded(const LoadedConfig& loaded) {
  Require(ValidateConfig(loaded.config, Options()).ok(), "what was accepted is valid");
  const std::string yaml = protocol::ConfigYaml(loaded.config);
  const MemoryFile file(yaml);
  const auto again = LoadConfig(std::vector<std::string>{"--config", file.path()}, Options());
  Require(again.ok(), "the configuration that is written can be read", StatusText(again.status()));
  Require(protocol::ConfigYaml(again->config) == yaml, "it has the same values", yaml);
  Require(protocol::ConfigHash(again->config) == protocol::ConfigHash(loaded.config),
          "and their hash");
  Require(!protocol::ConfigDump(loaded).empty(), "it can be shown");
}

void CheckProblems(const absl::Status& status, std::string_view begin) {
  const std::vector<std::string> problems = Lines(StatusText(status));
  Require(!problems.empty(), "a refusal has a reason");
  for (const std::string& problem : problems) {
    Require(problem.starts_with(begin) || problem.find(": ") != std::string::npos,
            "a problem says where it is", problem);
  }
}

void CheckYaml(std::string_view text) {
  const auto entries = protocol::ReadYaml(text, "f.yaml");
  if (!entries.ok()) return CheckProblems(entries.status(), "f.yaml:");
  Require(entries->size() <= protocol::kYamlEntriesMax, "entries are bounded");
  for (size_t i = 0; i < entries->size(); ++i) {
    const protocol::YamlEntry& entry = (*entries)[i];
    for (size_t j = 0; j < i; ++j) {
      Require((*entries)[j].path != entry.path, "a key stands once", entry.path);
    }
    if (entry.kind != protocol::YamlKind::kPlain && entry.kind != protocol::YamlKind::kQuoted) {
      continue;
    }
    const auto quoted = protocol::ReadYaml("a: " + protocol::QuoteYaml(entry.text) + "\n", "q");
    Require(quoted.ok() && quoted->size() == 1 && (*quoted)[0].text == entry.text,
            "a quoted scalar reads back", entry.text);
  }
}

void Check(std::string_view text) {
  if (text.starts_with("-")) {
    const std::vector<std::string> arguments = Lines(text);
    for (const std::string& argument : arguments) {
      if (argument.starts_with("--conf")) return;
    }
    const auto loaded = LoadConfig(arguments, Options());
    return loaded.ok() ? CheckLoaded(*loaded) : CheckProblems(loaded.status(), "--");
  }
  CheckYaml(text);
  const MemoryFile file(text);
  const auto loaded = LoadConfig(std::vector<std::string>{"--config", file.path()}, Options());
  return loaded.ok() ? CheckLoaded(*loaded) : CheckProblems(loaded.status(), file.path() + ":");
}

}  // namespace
}  // namespace skein::tests

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  skein::tests::Check(skein::tests::TextOf(data, size));
  return 0;
}
