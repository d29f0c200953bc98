// Strict YAML and flags into the sections of config.h, by the table of config_keys.cc.
// Pure functions, any thread. Must never guess: what is not exactly a value of the key's type is an
// error with its place.
#include "protocol/config/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "protocol/base/control_bytes.h"
#include "protocol/base/exit_codes.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"
#include "protocol/config/config_combinations.h"
#include "protocol/config/name_suggestion.h"
#include "protocol/config/speculative_config.h"
#include "protocol/config/yaml_reader.h"

namespace skein::protocol {
namespace {

constexpr size_t kProblemsMax = 50;

// A flag that vLLM users give and that changes nothing here.
struct UselessFlag {
  std::string_view name;
  bool takes_value;
  std::string_view reason;
};

constexpr UselessFlag kUselessFlags[] = {
    {"trust-remote-code", false, "no code of a model is ever loaded"},
    {"enable-auto-tool-choice", false, "the model's own tool syntax is the only one"},
    {"tool-call-parser", true, "the model's own tool syntax is always used"},
    {"reasoning-parser", true, "the model's own reasoning syntax is always used"},
    {"tokenizer-mode", true, "there is one tokenizer"},
    {"enable-prompt-tokens-details", false, "the details are always sent"},
    {"enable-chunked-prefill", false, "prefill is always chunked"},
};

// Everything wrong so far; loading goes on to list as much as possible at once.
class Problems {
 public:
  // Of a flag or argument.
  void Add(std::string text) {
    if (texts_.size() < kProblemsMax) texts_.push_back(std::move(text));
  }
  // Of the file, or of values that do not go together.
  void AddConfiguration(std::string text) {
    Add(std::move(text));
    only_usage_ = false;
  }
  absl::Status ToStatus() const {
    if (texts_.empty()) return absl::OkStatus();
    const std::string text = absl::StrJoin(texts_, "\n");
    return only_usage_ ? absl::InvalidArgumentError(text) : absl::FailedPreconditionError(text);
  }

 private:
  std::vector<std::string> texts_;
  bool only_usage_ = true;
};

std::string_view Leaf(std::string_view path) { return path.substr(path.rfind('.') + 1); }

std::string_view SectionOf(std::string_view path) { return path.substr(0, path.find('.')); }

std::string SuggestPath(std::string_view path) {
  std::vector<std::string> paths;
  std::string moved;
  for (const ConfigKey& key : ConfigKeys()) {
    paths.emplace_back(key.path);
    if (Leaf(key.path) == Leaf(path)) moved = Concat("; did you mean ", key.path, "?");
    const std::string section(SectionOf(key.path));
    if (paths.empty() || paths.back() != section) paths.push_back(section);
  }
  return moved.empty() ? NameSuggestion(path, paths, "") : moved;
}

const ConfigKey* FindPath(std::string_view path) {
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.path == path) return &key;
  }
  return nullptr;
}

const ConfigKey* FindFlag(std::string_view flag) {
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.flag == flag) return &key;
  }
  return nullptr;
}

bool IsSection(std::string_view path) {
  for (const ConfigKey& key : ConfigKeys()) {
    if (SectionOf(key.path) == path) return true;
  }
  return false;
}

std::string FormatNumber(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.15g", value);
  return buffer;
}

std::string_view TypeName(const ConfigKey& key) {
  if (std::holds_alternative<int64_t& (*)(Config&)>(key.access)) return "integer";
  if (std::holds_alternative<double& (*)(Config&)>(key.access)) return "number";
  if (std::holds_alternative<absl::Duration& (*)(Config&)>(key.access)) return "number of seconds";
  return key.choices.empty() ? "text" : "choice";
}

// "an integer from 0 to 65535", for messages and help.
std::string Expectation(const ConfigKey& key) {
  if (!key.choices.empty()) {
    return Concat("one of ", absl::StrJoin(absl::StrSplit(ToAbsl(key.choices), '|'), ", "));
  }
  if (TypeName(key) == "text") return "text";
  return Concat(TypeName(key) == "integer" ? "an " : "a ", TypeName(key), " from ",
                FormatNumber(key.min), " to ", FormatNumber(key.max));
}

template <typename T>
std::optional<T> ParseWhole(std::string_view text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || parsed != end || text.empty()) return std::nullopt;
  return value;
}

bool InChoices(const ConfigKey& key, std::string_view text) {
  for (const absl::string_view choice : absl::StrSplit(ToAbsl(key.choices), '|')) {
    if (ToStd(choice) == text) return true;
  }
  return false;
}

// Stores `text` under `key`, or returns what is wrong with it (empty: nothing).
std::string Store(const ConfigKey& key, std::string_view text, Config& config) {
  if (const auto* integer = std::get_if<int64_t& (*)(Config&)>(&key.access)) {
    const std::optional<int64_t> value = ParseWhole<int64_t>(text);
    if (!value.has_value()) {
      return Concat("\"", text, "\" is not an integer; give ", Expectation(key));
    }
    (*integer)(config) = *value;
    if (static_cast<double>(*value) < key.min || static_cast<double>(*value) > key.max) {
      return Concat(*value, " is out of range; give ", Expectation(key));
    }
    return "";
  }
  if (NumberOf(key, config)) {
    const std::optional<double> value = ParseWhole<double>(text);
    if (!value.has_value() || !std::isfinite(*value)) {
      return Concat("\"", text, "\" is not a number; give ", Expectation(key));
    }
    SetNumber(key, *value, config);
    if (*value < key.min || *value > key.max) {
      return Concat(text, " is out of range; give ", Expectation(key));
    }
    return "";
  }
  if (!key.choices.empty() && !InChoices(key, text)) {
    return Concat("\"", text, "\" is not a choice; give ", Expectation(key));
  }
  // Children read the value from a file.
  if (text.find_first_of(kYamlBytesNever) != std::string_view::npos) {
    return Concat("is no UTF-8 text; give ", Expectation(key));
  }
  std::get<std::string& (*)(Config&)>(key.access)(config) = std::string(text);
  return "";
}

// What is wrong with the form of `entry` for `key` (empty: nothing), before its value is looked at.
std::string FormProblem(const YamlEntry& entry, const ConfigKey& key) {
  switch (entry.kind) {
    case YamlKind::kSection:
      return Concat("is a single value, not a section; give ", Expectation(key));
    case YamlKind::kList:
      return Concat("is a single value, not a list; give ", Expectation(key));
    case YamlKind::kNull:
      return Concat("has no value; give ", Expectation(key), " or remove the key");
    case YamlKind::kQuoted:
      if (TypeName(key) == "text" || TypeName(key) == "choice") return "";
      return Concat("\"", entry.text, "\" is quoted text; give ", Expectation(key));
    case YamlKind::kPlain:
      if (TypeName(key) != "text") return "";
      if (entry.text == "true" || entry.text == "false" || ParseWhole<double>(entry.text)) {
        if (key.secret) return "is not text; write it in quotes";
        return Concat(entry.text, " is not text; write \"", entry.text, "\"");
      }
      return "";
  }
  return "";
}

void ApplyEntry(const YamlEntry& entry, std::string_view file_name, LoadedConfig& loaded,
                Problems& problems) {
  const std::string place = Concat(file_name, ":", entry.line, ": ", entry.path);
  const ConfigKey* key = FindPath(entry.path);
  if (key == nullptr) {
    if (!IsSection(entry.path)) {
      // A key below an unknown section was reported with the section.
      const bool inside_known =
          entry.path.find('.') == std::string::npos || IsSection(SectionOf(entry.path));
      if (inside_known && !FindPath(entry.path.substr(0, entry.path.rfind('.')))) {
        problems.AddConfiguration(Concat(place, ": unknown key", SuggestPath(entry.path)));
      }
    } else if (entry.kind == YamlKind::kNull) {
      problems.AddConfiguration(
          Concat(place, ": has no value; give its keys or remove the section"));
    } else if (entry.kind != YamlKind::kSection) {
      problems.AddConfiguration(Concat(place, ": is a section; write its keys indented below it"));
    }
    return;
  }
  std::string problem = FormProblem(entry, *key);
  if (problem.empty()) problem = Store(*key, entry.text, loaded.config);
  if (!problem.empty()) return problems.AddConfiguration(Concat(place, ": ", problem));
  loaded.origins[entry.path] = ConfigOrigin::kFile;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::NotFoundError(
        Concat(path, ": cannot be opened; give --config an existing YAML file"));
  }
  std::string text(kYamlBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return absl::NotFoundError(Concat(path, ": cannot be read"));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

absl::Status ApplyFile(const std::string& path, LoadedConfig& loaded, Problems& problems) {
  SKEIN_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const absl::StatusOr<std::vector<YamlEntry>> entries = ReadYaml(text, path);
  if (!entries.ok()) return absl::FailedPreconditionError(entries.status().message());
  for (const YamlEntry& entry : *entries) ApplyEntry(entry, path, loaded, problems);
  return absl::OkStatus();
}

// vLLM's flag for the section `speculation`.
constexpr std::string_view kSpeculativeConfig = "speculative-config";

// Short forms that vLLM has.
struct ShortFlag {
  std::string_view text;  // with its dash
  std::string_view name;
};

constexpr ShortFlag kShortFlags[] = {{"-dp", "data-parallel-size"},
                                     {"-tp", "tensor-parallel-size"}};

// `argument` with the long form of its flag.
std::string LongForm(const std::string& argument) {
  for (const ShortFlag& flag : kShortFlags) {
    const std::string_view head = std::string_view(argument).substr(0, argument.find('='));
    if (head == flag.text) return Concat("--", flag.name, argument.substr(head.size()));
  }
  return argument;
}

struct Flag {
  std::string name;  // without dashes
  std::optional<std::string> value;
};

const UselessFlag* FindUseless(std::string_view name) {
  for (const UselessFlag& flag : kUselessFlags) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

bool IsProgramFlag(std::string_view name, const LoadOptions& options) {
  return std::find(options.program_flags.begin(), options.program_flags.end(), name) !=
         options.program_flags.end();
}

bool TakesValue(std::string_view name, const LoadOptions& options) {
  const UselessFlag* useless = FindUseless(name);
  return name == "config" || name == kSpeculativeConfig || FindFlag(name) != nullptr ||
         IsProgramFlag(name, options) || (useless != nullptr && useless->takes_value);
}

// A key of 0 or 1: its flag may stand without a value and then means 1, and 0 after "no-".
bool IsSwitch(std::string_view name) {
  const ConfigKey* key = FindFlag(name);
  return key != nullptr && key->min == 0 && key->max == 1;
}

// Splits the arguments into flags and positional ones, without looking at values.
std::vector<Flag> SplitArguments(std::span<const std::string> arguments, const LoadOptions& options,
                                 LoadedConfig& loaded, Problems& problems) {
  std::vector<Flag> flags;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string argument = LongForm(arguments[i]);
    if (argument.size() < 3 || argument.compare(0, 2, "--") != 0) {
      if (!argument.empty() && argument[0] == '-') {
        problems.Add(Concat(argument, ": unknown flag; flags begin with two dashes"));
      } else if (loaded.positional.size() >= options.positional_max) {
        problems.Add(Concat("\"", argument, "\": unexpected argument"));
      } else {
        loaded.positional.push_back(argument);
      }
      continue;
    }
    const size_t equals = argument.find('=');
    Flag flag{.name = argument.substr(2, equals == std::string::npos ? equals : equals - 2),
              .value = std::nullopt};
    if (equals != std::string::npos) {
      flag.value = argument.substr(equals + 1);
    } else if (flag.name.starts_with("no-") && IsSwitch(flag.name.substr(3))) {
      flag.name.erase(0, 3);
      flag.value = "0";
    } else if (IsSwitch(flag.name)) {
      const bool given =
          i + 1 < arguments.size() && (arguments[i + 1] == "0" || arguments[i + 1] == "1");
      flag.value = given ? arguments[++i] : "1";
    } else if (TakesValue(flag.name, options) && i + 1 < arguments.size() &&
               arguments[i + 1].compare(0, 2, "--") != 0) {
      flag.value = arguments[++i];
    }
    flags.push_back(std::move(flag));
  }
  return flags;
}

std::string SuggestFlag(std::string_view name, const LoadOptions& options) {
  std::vector<std::string> names = {"config", std::string(kSpeculativeConfig)};
  for (const ConfigKey& key : ConfigKeys()) names.emplace_back(key.flag);
  for (const std::string_view flag : options.program_flags) names.emplace_back(flag);
  return NameSuggestion(name, names, "--");
}

// Sets `key` to what the flag `name` says.
void SetByFlag(const ConfigKey& key, std::string_view name, std::string_view text,
               LoadedConfig& loaded, Problems& problems) {
  if (const auto found = loaded.origins.find(key.path);
      found != loaded.origins.end() && found->second == ConfigOrigin::kFlag) {
    return problems.Add(Concat("--", name, ": ", key.path, " is given twice; give it once"));
  }
  const std::string problem = Store(key, text, loaded.config);
  if (!problem.empty()) return problems.Add(Concat("--", name, ": ", problem));
  loaded.origins[std::string(key.path)] = ConfigOrigin::kFlag;
}

void ApplySpeculativeConfig(std::string_view json, LoadedConfig& loaded, Problems& problems) {
  const absl::StatusOr<std::vector<KeyValue>> values = ReadSpeculativeConfig(json);
  if (!values.ok()) {
    return problems.Add(Concat("--", kSpeculativeConfig, ": ", StatusText(values.status())));
  }
  for (const KeyValue& value : *values) {
    SetByFlag(*FindPath(value.path), Concat(kSpeculativeConfig, ": ", Leaf(value.path)), value.text,
              loaded, problems);
  }
}

void ApplyFlag(const Flag& flag, const LoadOptions& options, LoadedConfig& loaded,
               Problems& problems) {
  if (const UselessFlag* useless = FindUseless(flag.name)) {
    loaded.notices.push_back(Concat("--", flag.name, " has no effect: ", useless->reason));
    return;
  }
  if (!TakesValue(flag.name, options)) {
    problems.Add(Concat("--", flag.name, ": unknown flag", SuggestFlag(flag.name, options)));
    return;
  }
  const ConfigKey* key = FindFlag(flag.name);
  if (!flag.value.has_value()) {
    problems.Add(Concat("--", flag.name, ": has no value; give ",
                        key == nullptr ? std::string("one after it") : Expectation(*key)));
    return;
  }
  if (key == nullptr) {
    if (flag.name == "config") return;
    if (flag.name == kSpeculativeConfig) {
      return ApplySpeculativeConfig(*flag.value, loaded, problems);
    }
    const std::optional<int64_t> value = ParseWhole<int64_t>(*flag.value);
    if (!value.has_value() || *value < 0) {
      problems.Add(
          Concat("--", flag.name, ": \"", *flag.value,
                 "\" is not an integer from 0 on; it is given by skein serve, not by hand"));
      return;
    }
    loaded.program_flags[flag.name] = *value;
    return;
  }
  SetByFlag(*key, flag.name, *flag.value, loaded, problems);
}

// "path (--flag)", for problems that no single place caused.
std::string NameOf(std::string_view path) {
  return Concat(path, " (--", FindPath(path)->flag, ")");
}

void CheckRanges(const Config& config, Problems& problems) {
  Config scratch = config;
  for (const ConfigKey& key : ConfigKeys()) {
    double value = 0;
    if (const auto* integer = std::get_if<int64_t& (*)(Config&)>(&key.access)) {
      value = static_cast<double>((*integer)(scratch));
    } else if (const std::optional<double> number = NumberOf(key, scratch)) {
      value = *number;
    } else {
      continue;
    }
    if (value < key.min || value > key.max) {
      problems.AddConfiguration(Concat(NameOf(key.path), ": ", FormatNumber(value),
                                       " is out of range; give ", Expectation(key)));
    }
  }
}

std::string ValueText(const ConfigKey& key, Config& config) {
  if (const auto* integer = std::get_if<int64_t& (*)(Config&)>(&key.access)) {
    return Concat((*integer)(config));
  }
  if (const std::optional<double> number = NumberOf(key, config)) return FormatNumber(*number);
  return QuoteYaml(std::get<std::string& (*)(Config&)>(key.access)(config));
}

std::string_view OriginName(const LoadedConfig& loaded, std::string_view path) {
  const auto found = loaded.origins.find(path);
  if (found == loaded.origins.end()) return "default";
  switch (found->second) {
    case ConfigOrigin::kDefault:
      return "default";
    case ConfigOrigin::kFile:
      return "file";
    case ConfigOrigin::kFlag:
      return "flag";
  }
  return "default";
}

// Who reads the configuration: secrets are for programs alone.
enum class Reader { kProgram, kPerson };

std::string Render(const Config& config, Reader reader, const LoadedConfig* origins) {
  Config scratch = config;
  std::string out;
  std::string_view section;
  for (const ConfigKey& key : ConfigKeys()) {
    if (SectionOf(key.path) != section) {
      section = SectionOf(key.path);
      out += Concat(section, ":\n");
    }
    const std::string value = ValueText(key, scratch);
    const bool hidden = reader == Reader::kPerson && key.secret && value != "\"\"";
    out += Concat("  ", Leaf(key.path), ": ", hidden ? "\"(secret)\"" : value);
    if (origins != nullptr) out += Concat("  # ", OriginName(*origins, key.path));
    out += '\n';
  }
  return out;
}

}  // namespace

absl::StatusOr<LoadedConfig> LoadConfig(std::span<const std::string> arguments,
                                        const LoadOptions& options) {
  LoadedConfig loaded;
  Problems problems;
  const std::vector<Flag> flags = SplitArguments(arguments, options, loaded, problems);
  for (const Flag& flag : flags) {
    if (flag.name != "config" || !flag.value.has_value()) continue;
    if (!loaded.file.empty()) problems.Add("--config: given twice; give one file");
    loaded.file = *flag.value;
  }
  if (!loaded.file.empty()) SKEIN_RETURN_IF_ERROR(ApplyFile(loaded.file, loaded, problems));
  for (const Flag& flag : flags) ApplyFlag(flag, options, loaded, problems);
  SKEIN_RETURN_IF_ERROR(problems.ToStatus());
  SKEIN_RETURN_IF_ERROR(ValidateConfig(loaded.config, options));
  return loaded;
}

int ConfigExitCode(const absl::Status& status) {
  return absl::IsInvalidArgument(status) ? kExitUsage : kExitConfig;
}

int FailProgram(std::string_view program, const absl::Status& status, int code) {
  // What was refused stands in it as it was given.
  std::fprintf(stderr, "%s: %s\n", std::string(program).c_str(),
               EscapeControls(StatusText(status), "\n").c_str());
  return code;
}

int64_t LoadedConfig::FlagOr(std::string_view name, int64_t missing) const {
  const auto found = program_flags.find(name);
  return found == program_flags.end() ? missing : found->second;
}

absl::Status ValidateConfig(const Config& config, const LoadOptions& options) {
  Problems problems;
  Config scratch = config;
  CheckRanges(config, problems);
  for (std::string& problem : CombinationProblems(config, options, NameOf)) {
    problems.AddConfiguration(std::move(problem));
  }
  for (const std::string_view path : options.required) {
    const ConfigKey* key = FindPath(path);
    if (key == nullptr) {
      problems.AddConfiguration(
          Concat(path, ": required by the program, but there is no such key"));
    } else if (ValueText(*key, scratch) == "\"\"") {
      problems.AddConfiguration(Concat(NameOf(path), ": required and missing; ", key->help));
    }
  }
  return problems.ToStatus();
}

std::vector<std::string> TakeArguments(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const std::string_view name = argument.substr(0, argument.find('='));
    if (!name.starts_with("--")) continue;
    const ConfigKey* key = FindFlag(name.substr(2));
    if (key == nullptr || !key->secret) continue;
    // Its value stands behind '=' or is the next argument.
    char* value = argv[i] + std::min(name.size() + 1, argument.size());
    if (name.size() == argument.size() && i + 1 < argc) value = argv[++i];
    for (; *value != '\0'; ++value) *value = '*';
  }
  return arguments;
}

std::string ConfigYaml(const Config& config) { return Render(config, Reader::kProgram, nullptr); }

std::string ConfigDump(const LoadedConfig& loaded) {
  return Concat(Render(loaded.config, Reader::kPerson, &loaded),
                "# hash: ", ConfigHash(loaded.config), "\n");
}

std::string ConfigHash(const Config& config) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a: a label, not a secret
  for (const char c : Render(config, Reader::kPerson, nullptr)) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
  return digits;
}

std::string ConfigHelp() {
  Config defaults;
  std::string out =
      "  --config FILE\n      YAML file; flags win over it\n"
      "  --speculative-config JSON\n      as in vLLM: {\"method\": \"dspark\" or \"none\", "
      "\"num_speculative_tokens\": N}; sets\n      speculation.method and "
      "speculation.num_speculative_tokens\n";
  for (const ConfigKey& key : ConfigKeys()) {
    out += Concat("  --", key.flag, " VALUE\n      ", key.help, "\n      ", Expectation(key));
    if (!key.unit.empty() && key.unit != "seconds") out += Concat(" (", key.unit, ")");
    out += Concat("; default ", ValueText(key, defaults), "; in the file: ", key.path, "\n");
  }
  return out;
}

LogOptions ToLogOptions(const LogConfig& log, std::string_view process) {
  LogOptions options;
  options.process = process;
  options.form = log.form == "json" ? LogForm::kJson : LogForm::kKeyValue;
  for (const LogLevel level : {LogLevel::kDebug, LogLevel::kWarn, LogLevel::kError}) {
    if (LogLevelName(level) == log.level) options.level = level;
  }
  return options;
}

int64_t ExpertParallelSize(const SchedulerConfig& scheduler) {
  return scheduler.enable_expert_parallel != 0 ? scheduler.data_parallel_size
                                               : scheduler.expert_parallel_size;
}

std::string ServedModelName(const ModelConfig& model) {
  if (!model.served_model_name.empty()) return model.served_model_name;
  std::string_view path = model.path;
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  return std::string(path.substr(path.rfind('/') + 1));
}

}  // namespace skein::protocol
