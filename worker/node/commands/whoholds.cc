// Flags, output and exit code of `skein whoholds`.
// Main thread of skein. Must never print a terminal escape that came from a process.
#include "worker/node/commands/whoholds.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "protocol/base/exit_codes.h"
#include "protocol/base/strings.h"
#include "protocol/json/json_writer.h"
#include "worker/node/node_supervisor.h"

namespace skein::worker {
namespace {

using protocol::Concat;
using protocol::JsonWriter;

constexpr char kUsage[] =
    "usage: skein whoholds [GPU] [FLAGS]\n"
    "Says which processes hold each GPU (or the one with this number or UUID): what the driver\n"
    "names, open descriptors and mappings of the device node.\n"
    "  --json            one JSON object instead of text\n"
    "  --kill-orphans    end processes of ours whose supervisor is dead, and no others\n"
    "  --proc-root DIR   read processes from here instead of /proc\n"
    "  --dev-glob GLOB   device nodes, one per GPU, instead of /dev/nvidia[0-9]*\n"
    "exit code: 0 nobody but living processes of ours, 3 foreign holders, 4 cannot tell,\n"
    "5 orphans of ours, 64 wrong flags\n";

struct Options {
  HolderQuery query;
  std::string gpu;  // empty: all
  bool json = false;
  bool kill_orphans = false;
  bool help = false;
};

absl::StatusOr<Options> ParseOptions(std::span<const std::string> arguments) {
  Options options;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    std::string* value = argument == "--proc-root"  ? &options.query.proc_root
                         : argument == "--dev-glob" ? &options.query.device_glob
                                                    : nullptr;
    if (value != nullptr) {
      if (i + 1 == arguments.size()) {
        return absl::InvalidArgumentError(Concat(argument, " needs a value"));
      }
      *value = arguments[++i];
    } else if (argument == "--json") {
      options.json = true;
    } else if (argument == "--kill-orphans") {
      options.kill_orphans = true;
    } else if (argument == "--help" || argument == "-h") {
      options.help = true;
    } else if (argument.rfind('-', 0) == 0) {
      return absl::InvalidArgumentError(
          Concat(argument, " is no flag of whoholds; skein whoholds --help lists them"));
    } else if (!options.gpu.empty()) {
      return absl::InvalidArgumentError(
          Concat("two GPUs are named, ", options.gpu, " and ", argument, "; name one or none"));
    } else {
      options.gpu = argument;
    }
  }
  if (options.kill_orphans && options.query.proc_root != "/proc") {
    return absl::InvalidArgumentError("--kill-orphans works on /proc only; leave out --proc-root");
  }
  if (!options.help && ListProcesses(options.query.proc_root).empty()) {
    return absl::InvalidArgumentError(Concat("--proc-root: ", options.query.proc_root,
                                             " lists no process; give a mount of proc, such as "
                                             "/proc"));
  }
  return options;
}

// Keeps the named GPU alone; NotFound lists what there is.
absl::Status SelectGpu(const std::string& name, GpuInventory& inventory) {
  if (name.empty()) return absl::OkStatus();
  std::string known;
  std::vector<Gpu> kept;
  for (const Gpu& gpu : inventory.gpus) {
    known += Concat(known.empty() ? "" : ", ", gpu.minor, gpu.uuid.empty() ? "" : " ", gpu.uuid);
    if (Concat(gpu.minor) == name || gpu.uuid == name) kept.push_back(gpu);
  }
  if (kept.empty()) {
    return absl::NotFoundError(
        Concat("no GPU ", name, " here; there ", known.empty() ? "is none" : "are ", known));
  }
  inventory.gpus = std::move(kept);
  return absl::OkStatus();
}

void WriteHolder(const GpuHolder& holder, JsonWriter& writer) {
  const auto text = [&writer](const char* key, std::string_view value) {
    writer.Key(key);
    writer.String(value);
  };
  const auto numbers = [&writer](const char* key, const std::vector<int>& values) {
    writer.Key(key);
    writer.BeginArray();
    for (const int value : values) writer.Int(value);
    writer.EndArray();
  };
  writer.BeginObject();
  text("verdict", HolderVerdictName(holder.verdict));
  writer.Key("pid");
  writer.Int(holder.process.pid);
  numbers("namespace_pids", holder.process.namespace_pids);
  numbers("gpus", holder.gpus);
  text("owner", holder.owner);
  text("state", std::string(1, holder.process.state));
  writer.Key("parent");
  writer.Int(holder.process.parent);
  writer.Key("started_unix_s");
  writer.Int(holder.started_unix_s);
  writer.Key("age_s");
  writer.Double(holder.age_s);
  writer.Key("cpu_share");
  writer.Double(holder.cpu_share);
  writer.Key("memory_bytes");
  writer.Uint(holder.memory_bytes);
  text("evidence", holder.evidence);
  text("command", holder.process.command);
  writer.EndObject();
}

}  // namespace

std::string HolderJson(const HolderReport& report) {
  std::string out;
  JsonWriter writer(&out);
  writer.BeginObject();
  writer.Key("driver");
  writer.String(report.inventory.driver);
  writer.Key("gpus");
  writer.BeginArray();
  for (const Gpu& gpu : report.inventory.gpus) {
    writer.BeginObject();
    writer.Key("minor");
    writer.Int(gpu.minor);
    for (const auto& [key, value] :
         {std::pair("node", gpu.node), std::pair("uuid", gpu.uuid), std::pair("name", gpu.name)}) {
      writer.Key(key);
      writer.String(value);
    }
    writer.Key("memory_used_bytes");
    writer.Uint(gpu.memory_used_bytes);
    writer.EndObject();
  }
  writer.EndArray();
  writer.Key("holders");
  writer.BeginArray();
  for (const GpuHolder& holder : report.holders) WriteHolder(holder, writer);
  writer.EndArray();
  writer.Key("unresolved_pids");
  writer.BeginArray();
  for (const int pid : report.unresolved_pids) writer.Int(pid);
  writer.EndArray();
  writer.Key("problems");
  writer.BeginArray();
  for (const std::string& problem : report.problems) writer.String(problem);
  writer.EndArray();
  writer.Key("exit_code");
  writer.Int(HolderExitCode(report));
  writer.EndObject();
  return out;
}

int RunWhoholds(std::span<const std::string> arguments) {
  const absl::StatusOr<Options> options = ParseOptions(arguments);
  if (!options.ok()) return protocol::FailProgram("skein", options.status(), protocol::kExitUsage);
  if (options->help) {
    std::fputs(kUsage, stdout);
    return protocol::kExitOk;
  }
  GpuInventory inventory = FindGpus(options->query.device_glob, options->query.nvml_library);
  if (const absl::Status status = SelectGpu(options->gpu, inventory); !status.ok()) {
    return protocol::FailProgram("skein", status, protocol::kExitUsage);
  }
  HolderReport report = FindHolders(options->query, inventory);
  if (options->kill_orphans) {
    const int ended = KillOrphans(report);
    std::fprintf(stderr, "ended %d orphan%s\n", ended, ended == 1 ? "" : "s");
    report = FindHolders(options->query, std::move(inventory));
  }
  std::fputs(options->json ? (HolderJson(report) + "\n").c_str() : HolderText(report).c_str(),
             stdout);
  return HolderExitCode(report);
}

}  // namespace skein::worker
