// Flags, the check of the model directory, and output.
// Main thread of skein. Must never load weights: names and sizes are enough.
#include "worker/node/commands/doctor.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include <unistd.h>

#include "absl/status/statusor.h"
#include "protocol/base/exit_codes.h"
#include "protocol/base/log.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"
#include "protocol/json/json.h"
#include "protocol/json/json_writer.h"
#include "worker/node/containment.h"
#include "worker/node/node_supervisor.h"

namespace skein::worker {
namespace {

using protocol::Concat;
using protocol::JsonValue;

constexpr size_t kFileBytesMax = size_t{256} << 20;
constexpr size_t kValuesMax = 20'000'000;
constexpr int64_t kVocabularyMax = 1 << 20;

absl::StatusOr<JsonValue> ReadJsonFile(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return absl::NotFoundError(Concat(path, " cannot be read"));
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  auto value = protocol::ParseJson(
      text,
      {.bytes_max = kFileBytesMax, .string_bytes_max = kFileBytesMax, .values_max = kValuesMax});
  if (value.ok()) return value;
  return absl::InvalidArgumentError(Concat(path, ": ", protocol::StatusText(value.status())));
}

// Largest id of the tokenizer's own and added tokens.
absl::StatusOr<int64_t> LargestTokenId(const JsonValue& tokenizer) {
  int64_t largest = -1;
  const JsonValue* model = tokenizer.Find("model");
  const JsonValue* vocabulary = model != nullptr ? model->Find("vocab") : nullptr;
  if (vocabulary == nullptr) return absl::InvalidArgumentError("tokenizer.json has no model.vocab");
  for (const protocol::JsonMember& token : vocabulary->members()) {
    SKEIN_ASSIGN_OR_RETURN(const int64_t id, token.value.AsInt64("model.vocab", 0));
    largest = std::max(largest, id);
  }
  if (const JsonValue* added = tokenizer.Find("added_tokens")) {
    for (const JsonValue& token : added->elements()) {
      const JsonValue* id = token.Find("id");
      if (id == nullptr) return absl::InvalidArgumentError("an added token has no id");
      SKEIN_ASSIGN_OR_RETURN(const int64_t value, id->AsInt64("added_tokens.id", 0));
      largest = std::max(largest, value);
    }
  }
  return largest;
}

absl::Status CheckShards(const std::string& directory) {
  const std::string index = directory + "/model.safetensors.index.json";
  if (::access(index.c_str(), F_OK) != 0) {
    const std::string single = directory + "/model.safetensors";
    if (::access(single.c_str(), R_OK) == 0) return absl::OkStatus();
    return absl::NotFoundError("neither model.safetensors nor its index is there");
  }
  SKEIN_ASSIGN_OR_RETURN(const JsonValue value, ReadJsonFile(index));
  const JsonValue* map = value.Find("weight_map");
  if (map == nullptr) return absl::InvalidArgumentError(Concat(index, " has no weight_map"));
  std::set<std::string, std::less<>> missing;
  for (const protocol::JsonMember& tensor : map->members()) {
    const std::string_view shard = tensor.value.string();
    if (missing.contains(shard)) continue;
    if (::access(Concat(directory, "/", shard).c_str(), R_OK) != 0) missing.emplace(shard);
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::NotFoundError(
      Concat(missing.size(), " weight files are missing, first ", *missing.begin()));
}

absl::StatusOr<std::string> CheckModel(const std::string& directory) {
  SKEIN_ASSIGN_OR_RETURN(const JsonValue config, ReadJsonFile(directory + "/config.json"));
  const JsonValue* text = config.Find("text_config");
  const JsonValue* vocab_size = (text != nullptr ? *text : config).Find("vocab_size");
  if (vocab_size == nullptr) return absl::InvalidArgumentError("config.json has no vocab_size");
  SKEIN_ASSIGN_OR_RETURN(const int64_t vocabulary,
                         vocab_size->AsInt64("vocab_size", 1, kVocabularyMax));
  SKEIN_ASSIGN_OR_RETURN(const JsonValue tokenizer, ReadJsonFile(directory + "/tokenizer.json"));
  SKEIN_ASSIGN_OR_RETURN(const int64_t largest, LargestTokenId(tokenizer));
  if (largest >= vocabulary) {
    return absl::InvalidArgumentError(Concat("tokenizer.json has token ", largest,
                                             ", config.json a vocab_size of ", vocabulary,
                                             ": the files are of two models"));
  }
  SKEIN_RETURN_IF_ERROR(ReadJsonFile(directory + "/encoding_resource.json").status());
  SKEIN_RETURN_IF_ERROR(CheckShards(directory));
  return Concat(directory, ": ", vocabulary, " tokens, all files there");
}

struct Options {
  bool json = false;
  bool help = false;
  std::vector<std::string> rest;  // flags of serve
};

Options SplitOptions(std::span<const std::string> arguments) {
  Options options;
  for (const std::string& argument : arguments) {
    if (argument == "--json") {
      options.json = true;
    } else if (argument == "--help" || argument == "-h") {
      options.help = true;
    } else {
      options.rest.push_back(argument);
    }
  }
  return options;
}

constexpr char kUsage[] =
    "usage: skein doctor [MODEL] [--json] [FLAGS OF serve]\n"
    "Probes what skein serve with these flags would find on this host: feature, state, reason, "
    "fix.\n"
    "  ok        there\n"
    "  degraded  missing; the named alternative is used (an error with --strict)\n"
    "  unused    missing or off, and this configuration does not need it\n"
    "  failed    skein serve would refuse to start\n"
    "exit code: 0 it would start, 78 it would not, 64 wrong flags\n";

}  // namespace

Feature ExamineModel(const std::string& directory) {
  const absl::StatusOr<std::string> found = CheckModel(directory);
  if (found.ok()) return {"model", FeatureState::kOk, *found, ""};
  return {"model", FeatureState::kFailed,
          Concat(directory, ": ", protocol::StatusText(found.status())),
          "fetch the checkpoint again, or name another directory"};
}

std::string FeatureJson(const std::vector<Feature>& features) {
  std::string out;
  protocol::JsonWriter writer(&out);
  writer.BeginObject();
  writer.Key("features");
  writer.BeginArray();
  for (const Feature& feature : features) {
    writer.BeginObject();
    for (const auto& [key, value] :
         {std::pair<std::string_view, std::string_view>("name", feature.name),
          {"state", FeatureStateName(feature.state)},
          {"reason", feature.reason},
          {"fix", feature.fix}}) {
      writer.Key(key);
      writer.String(value);
    }
    writer.EndObject();
  }
  writer.EndArray();
  writer.EndObject();
  return out;
}

int RunDoctor(std::span<const std::string> arguments, const ProgramPaths& paths) {
  const Options options = SplitOptions(arguments);
  if (options.help) {
    std::fputs(kUsage, stdout);
    return protocol::kExitOk;
  }
  protocol::LoadOptions load;
  load.allow_auto_backend = true;
  load.positional_max = 1;
  const auto loaded = protocol::LoadConfig(options.rest, load);
  if (!loaded.ok()) {
    return protocol::FailProgram("skein", loaded.status(),
                                 protocol::ConfigExitCode(loaded.status()));
  }
  protocol::LogOptions quiet;
  quiet.level = protocol::LogLevel::kError;
  protocol::InstallLog(quiet);  // the table says it all
  const absl::StatusOr<ServePlan> plan = ResolveServe(*loaded, paths);
  if (!plan.ok()) return protocol::FailProgram("skein", plan.status(), protocol::kExitConfig);
  const std::unique_ptr<Containment> containment = ProbeContainment(plan->config);
  std::vector<Feature> features = ExamineHost(plan->config, *containment);
  features.push_back({"backend", FeatureState::kOk,
                      Concat(plan->backend.backend, ": ", plan->backend.reason), ""});
  features.push_back(ExamineModel(plan->config.model.path));
  std::fputs(options.json ? (FeatureJson(features) + "\n").c_str() : FeatureTable(features).c_str(),
             stdout);
  const absl::Status judged = JudgeFeatures(plan->config, features);
  return judged.ok() ? protocol::kExitOk
                     : protocol::FailProgram("skein", judged, protocol::kExitConfig);
}

}  // namespace skein::worker
