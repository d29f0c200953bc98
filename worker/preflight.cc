#include "worker/preflight.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <sched.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "protocol/base/fingerprint.h"
#include "protocol/base/status_macros.h"
#include "worker/model/dummy_weights.h"

namespace skein::worker {
namespace {

// Largest pool of the CPU backend, which is also the bound of worker.threads.
constexpr int kThreadsMax = 64;
// Copies of slot state that the prefix cache may keep, per sequence that runs: the ends of a prompt
// and of its answer.
constexpr int kCheckpointsPerSequence = 2;
// Share of the free memory that the cache may take when num_blocks is not given.
constexpr uint64_t kCacheShare = 4;

// Memory for caches and activations.
struct Room {
  uint64_t free_bytes = 0;   // 0: not known
  uint64_t cache_bytes = 0;  // of them for the cache when num_blocks is not given
};

// Where the device has memory of its own, the weights go there too.
absl::StatusOr<Room> FindRoom(const protocol::Config& config, const ModelSpec& spec,
                              const kernels::DeviceProperties& device, const Shard& shard) {
  if (device.memory_bytes == 0) return Room{device.free_bytes, device.free_bytes / kCacheShare};
  const bool made = config.model.load_format == "dummy";
  uint64_t weights = made ? dummy::TotalBytes(spec) : 0;
  std::error_code error;
  std::filesystem::directory_iterator files;
  if (!made) files = std::filesystem::directory_iterator(config.model.path, error);
  for (; !error && files != std::filesystem::directory_iterator(); files.increment(error)) {
    if (files->path().extension() != ".safetensors") continue;
    const uint64_t bytes = files->file_size(error);
    if (!error) weights += bytes;
  }
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.path ", config.model.path, ": ", error.message()));
  }
  weights -= std::min(weights, LeftOutBytes(shard, spec));
  const auto share = static_cast<uint64_t>(static_cast<double>(device.memory_bytes) *
                                           config.worker.gpu_memory_utilization);
  if (weights >= share) {
    return absl::ResourceExhaustedError(
        absl::StrCat("worker.gpu_memory_utilization is ", config.worker.gpu_memory_utilization,
                     ", ", share >> 20, " MiB of the ", device.name, "; the weights in ",
                     config.model.path, " need ", weights >> 20,
                     " MiB; give a larger share, more ranks (scheduler.expert_parallel_size), or "
                     "serve a smaller model"));
  }
  if (weights >= device.free_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the weights in ", config.model.path, " need ", weights >> 20, " MiB, the ", device.name,
        " has ", device.free_bytes >> 20, " of ", device.memory_bytes >> 20,
        " MiB free; end what else uses it, give more ranks (scheduler.expert_parallel_size), or "
        "serve a smaller model"));
  }
  const uint64_t free = std::min(device.free_bytes, share) - weights;
  const auto rows = static_cast<int>(config.scheduler.max_num_batched_tokens);
  const uint64_t group = GroupBytes(spec, BackendNumerics(config.worker.backend), shard, rows);
  if (group >= free) {
    return absl::ResourceExhaustedError(
        absl::StrCat("scheduler.expert_parallel_size is ", shard.num_ranks,
                     ": exchanging the rows of all ranks ", "needs ", group >> 20,
                     " MiB beside the weights, ", free >> 20, " MiB are left of the ", device.name,
                     "; lower scheduler.max_num_batched_tokens, which is ", rows,
                     ", or raise worker.gpu_memory_utilization"));
  }
  return Room{free - group, (free - group) / 4 * 3};
}

absl::StatusOr<int> NumBlocks(const protocol::Config& config, const ModelSpec& spec,
                              const Numerics& numerics, const Room& room) {
  const int64_t block = config.scheduler.block_size;
  const int64_t per_sequence = (config.model.max_model_len + block - 1) / block;
  if (config.worker.num_blocks > 0) {
    if (config.worker.num_blocks < per_sequence) {
      return absl::InvalidArgumentError(absl::StrCat(
          "worker.num_blocks is ", config.worker.num_blocks, ", one sequence of max_model_len ",
          config.model.max_model_len, " tokens needs ", per_sequence));
    }
    return static_cast<int>(config.worker.num_blocks);
  }
  const uint64_t bytes = KvCache::BlockBytes(spec, numerics, static_cast<int>(block));
  int64_t blocks = per_sequence * config.scheduler.max_num_seqs;
  if (bytes > 0 && room.free_bytes > 0) {
    const auto most = static_cast<int64_t>(room.cache_bytes / bytes);
    blocks = std::max(per_sequence, std::min(blocks, most));
  }
  return static_cast<int>(std::min<int64_t>(blocks, 1 << 24));
}

// The draft head's share of the load: how many tokens for how many sequences.
absl::Status PlanDrafts(const protocol::Config& config, const ModelSpec& spec,
                        LoadOptions& options) {
  const protocol::SpeculationConfig& speculation = config.speculation;
  if (speculation.method == "dspark" && spec.dspark.stages == 0) {
    return absl::InvalidArgumentError(
        "speculation.method is dspark, the checkpoint has no draft head (its config.json has no "
        "DSpark stages); set speculation.method to none");
  }
  if (speculation.method == "none" || spec.dspark.stages == 0 ||
      speculation.num_speculative_tokens == 0) {
    return absl::OkStatus();
  }
  options.tap_side = speculation.tap_side == "leaving" ? TapSide::kLeaving : TapSide::kEntering;
  const int64_t rows = config.scheduler.max_num_batched_tokens;
  options.limits.max_drafts = spec.dspark.block;
  options.max_draft_requests =
      static_cast<int>(std::min(config.scheduler.max_num_seqs, rows / spec.dspark.block));
  if (options.max_draft_requests == 0) options.limits.max_drafts = 0;
  return absl::OkStatus();
}

}  // namespace

int UsableProcessors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::clamp(CPU_COUNT(&set), 1, kThreadsMax);
}

absl::StatusOr<LoadOptions> PlanLoad(const protocol::Config& config, const ModelSpec& spec,
                                     const kernels::DeviceProperties& device, const Shard& shard) {
  SKEIN_RETURN_IF_ERROR(CheckShard(shard, spec));
  const protocol::SchedulerConfig& scheduler = config.scheduler;
  if (scheduler.block_size % spec.block_multiple() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("scheduler.block_size is ", scheduler.block_size, ", must be a multiple of ",
                     spec.block_multiple(), ", the compression ratios of the model"));
  }
  if (config.model.max_model_len > spec.max_position) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.max_model_len is ", config.model.max_model_len,
                     ", the model's config.json allows ", spec.max_position));
  }
  LoadOptions options;
  options.shard = shard;
  options.model_dir = config.model.path;
  if (config.model.load_format == "dummy") options.make_tensor = dummy::MakerOf(spec);
  options.numerics = BackendNumerics(config.worker.backend);
  options.limits.max_rows = static_cast<int>(scheduler.max_num_batched_tokens);
  SKEIN_RETURN_IF_ERROR(PlanDrafts(config, spec, options));
  options.limits.max_samples = static_cast<int>(std::min(
      scheduler.max_num_seqs * (1 + options.limits.max_drafts), scheduler.max_num_batched_tokens));
  options.limits.max_model_len = static_cast<int>(config.model.max_model_len);
  options.limits.max_top = static_cast<int>(config.model.max_logprobs);
  options.block_tokens = static_cast<int>(scheduler.block_size);
  SKEIN_ASSIGN_OR_RETURN(const Room room, FindRoom(config, spec, device, shard));
  SKEIN_ASSIGN_OR_RETURN(options.num_blocks, NumBlocks(config, spec, options.numerics, room));
  options.num_slots = static_cast<int>(scheduler.max_num_seqs);
  if (scheduler.enable_prefix_caching != 0) {
    options.num_checkpoints = kCheckpointsPerSequence * options.num_slots;
    options.recompute_tokens = spec.recompute_tokens();
  }
  // Checkpoints are in memory of the host.
  const int slots = options.num_slots + (device.memory_bytes == 0 ? options.num_checkpoints : 0);
  const uint64_t needed =
      static_cast<uint64_t>(options.num_blocks) *
          KvCache::BlockBytes(spec, options.numerics, options.block_tokens) +
      static_cast<uint64_t>(slots) *
          StateSlots::SlotBytes(spec, options.numerics,
                                options.max_draft_requests > 0 ? spec.dspark.stages : 0);
  const uint64_t free = room.free_bytes;
  if (free > 0 && needed > free) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the caches need ", needed >> 20, " MiB, ", free >> 20,
        " MiB are free; lower model.max_model_len, scheduler.max_num_seqs or worker.num_blocks",
        config.worker.gpu_memory_utilization < 1 ? ", or raise worker.gpu_memory_utilization"
                                                 : ""));
  }
  return options;
}

std::string WhyNoDrafts(const protocol::Config& config, const ModelSpec& spec,
                        const LoadOptions& options) {
  if (options.limits.max_drafts > 0) return "";
  const protocol::SpeculationConfig& speculation = config.speculation;
  if (speculation.method == "none") return "speculation.method is none";
  if (spec.dspark.stages == 0) {
    return absl::StrCat("speculation.method is ", speculation.method,
                        " and the checkpoint has no draft head (its config.json has no DSpark "
                        "stages); set it to none to say so");
  }
  if (speculation.num_speculative_tokens == 0) return "speculation.num_speculative_tokens is 0";
  return absl::StrCat("scheduler.max_num_batched_tokens is ",
                      config.scheduler.max_num_batched_tokens, ", the draft head needs ",
                      spec.dspark.block, " rows for a sequence; raise it");
}

std::string NumericsId(const protocol::Config& config) {
  const std::string& other = config.worker.kernels;
  return absl::StrCat(config.worker.backend, other.empty() ? "" : "+", other,
                      config.model.load_format == "dummy" ? "+dummy" : "");
}

std::string CacheLayoutId(const protocol::Config& config, const ModelSpec& spec,
                          const LoadOptions& options) {
  return protocol::Fingerprint(
      absl::StrCat(spec.identity, " ", config.worker.backend, " ", options.block_tokens, " ",
                   options.limits.max_drafts > 0 ? spec.dspark.stages : 0));
}

protocol::CacheGeometry Geometry(const LoadOptions& options) {
  protocol::CacheGeometry geometry;
  geometry.block_tokens = static_cast<uint32_t>(options.block_tokens);
  geometry.num_blocks = static_cast<uint32_t>(options.num_blocks);
  geometry.num_slots = static_cast<uint32_t>(options.num_slots);
  geometry.max_rows = static_cast<uint32_t>(options.limits.max_rows);
  geometry.max_model_len = static_cast<uint32_t>(options.limits.max_model_len);
  geometry.num_checkpoints = static_cast<uint32_t>(options.num_checkpoints);
  geometry.recompute_tokens = static_cast<uint32_t>(options.recompute_tokens);
  geometry.max_draft_tokens = static_cast<uint32_t>(options.limits.max_drafts);
  geometry.edits_logits = true;
  geometry.scores_prompts = true;
  geometry.processes_logprobs = true;
  return geometry;
}

absl::StatusOr<kernels::KernelManifest> PlanManifest(const protocol::Config& config,
                                                     const kernels::KernelRegistry& registry) {
  const std::vector<std::string> backends = registry.Backends();
  auto check = [&](const std::string& key, const std::string& name) -> absl::Status {
    if (std::find(backends.begin(), backends.end(), name) != backends.end()) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(key, ": no backend \"", name,
                                                   "\" for this device; it has ",
                                                   absl::StrJoin(backends, ", ")));
  };
  SKEIN_RETURN_IF_ERROR(check("worker.backend", config.worker.backend));
  std::vector<std::pair<std::string, std::string>> overrides;
  const std::vector<std::string> entries =
      absl::StrSplit(config.worker.kernels, ',', absl::SkipEmpty());
  for (const std::string& entry : entries) {
    const std::vector<std::string> parts = absl::StrSplit(entry, '=');
    if (parts.size() != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("worker.kernels: \"", entry, "\" must be operator=backend"));
    }
    SKEIN_RETURN_IF_ERROR(check(absl::StrCat("worker.kernels: ", parts[0]), parts[1]));
    overrides.emplace_back(parts[0], parts[1]);
  }
  absl::StatusOr<kernels::KernelManifest> manifest =
      kernels::ParseManifest(config.worker.backend, overrides);
  if (manifest.ok()) return manifest;
  return absl::InvalidArgumentError(absl::StrCat("worker.kernels: ", manifest.status().message()));
}

}  // namespace skein::worker
