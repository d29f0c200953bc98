#include "worker/metrics.h"

#include <algorithm>

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "kernels/op.h"
#include "protocol/messages/control.h"

namespace skein::worker {
namespace {

using protocol::MetricsRegistry;

// By protocol::MoveSide and MoveStatus.
const std::vector<std::string> kDirections = {"send", "receive"};
const std::vector<std::string> kResults = {"ok", "refused", "lost", "expired"};
// From a kilobyte to four gigabytes.
constexpr double kTransferBytes[] = {1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22,
                                     1 << 24, 1 << 26, 1 << 28, 1 << 30, 4294967296.0};
const std::vector<std::string> kStepPhases = {"prefill", "decode", "mixed"};
const std::vector<std::string> kTiers = {"device", "host"};

std::string HostName() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "unknown";
  return name;
}

// The gauges that say what runs and how it is configured; their value is 1.
void DescribeWorker(const protocol::Config& config, MetricsRegistry& registry) {
  const std::string version = absl::StrCat(protocol::kProtocolMajor, ".", protocol::kProtocolMinor);
  registry
      .AddGauges({"skein_build_info", "The build that runs and the protocol that it speaks."},
                 {{"version", {SKEIN_VERSION}}, {"protocol", {version}}})
      .At({SKEIN_VERSION, version})
      .Set(1);
  const std::string backend = config.worker.backend;
  const bool on_host = backend == "cpu" || backend == "reference";
  const std::string graphs = on_host || config.worker.enforce_eager != 0 ? "off" : "full";
  const std::string block = absl::StrCat(config.scheduler.block_size);
  const std::string hash = protocol::ConfigHash(config);
  registry
      .AddGauges(
          {"skein_config_info",
           "The effective configuration. Two processes with other hashes are configured "
           "differently: compare `skein config`."},
          {{"backend", {backend}}, {"graphs", {graphs}}, {"block_size", {block}}, {"hash", {hash}}})
      .At({backend, graphs, block, hash})
      .Set(1);
}

// Which backend serves each operator: a series for each pair of them, 1 or 0.
void DescribeKernels(const kernels::KernelRegistry& kernels,
                     const kernels::KernelManifest& manifest, MetricsRegistry& registry) {
  std::vector<std::string> operators;
  for (int op = 0; op < kernels::kNumOps; ++op) {
    operators.emplace_back(kernels::OpName(static_cast<kernels::OpId>(op)));
  }
  const protocol::GaugeFamily variants = registry.AddGauges(
      {"skein_kernel_variant",
       "1 for the backend that serves an operator. reference is there to be compared with: slow."},
      {{"operator", operators}, {"backend", kernels.Backends()}});
  for (int op = 0; op < kernels::kNumOps; ++op) {
    const std::string_view backend = manifest.backend(static_cast<kernels::OpId>(op));
    if (!backend.empty()) variants.At({operators[static_cast<size_t>(op)], backend}).Set(1);
  }
}

std::vector<std::string> PhasesOfStart() {
  std::vector<std::string> names;
  for (size_t i = 0; i < kNumStartPhases; ++i) {
    names.emplace_back(StartPhaseName(static_cast<StartPhase>(i)));
  }
  names.insert(names.end(), {"collectives", "total"});
  return names;
}

}  // namespace

protocol::MetricLabels WorkerLabels(int64_t index) {
  return {{"node", HostName()}, {"worker", absl::StrCat(1 + index)}};
}

StepFamilies::StepFamilies(MetricsRegistry& registry)
    : step_phase(registry.AddCounters(
          {"skein_step_phase_seconds_total",
           "Time of steps by what a worker did. prepare: checks and layout; draft: drafts and "
           "feeding the draft head; forward: the layers and the wait for the device; sample: head, "
           "choice and summary. Their rate is the share of the time in which it computes."},
          {{"phase", {"prepare", "draft", "forward", "sample"}}})),
      forward_passes(registry.AddCounters(
          {"skein_forward_passes_total",
           "Steps by how they ran. full: one launch of a recorded graph; eager: call by call. "
           "Eager decode steps on a GPU: penalties, masks or prompt logprobs, or no graph fits."},
          {{"graph", {"full", "eager"}}, {"phase", kStepPhases}})),
      busy(registry.AddCounter(
          {"skein_gpu_busy_seconds_total",
           "Time in steps of the device, which is the host's processors without a GPU. Its rate "
           "near 1: the device is the limit."})),
      nonfinite(registry.AddCounter(
          {"skein_sampler_nonfinite_logits_total",
           "Rows whose logits were no finite numbers; their requests ended with an error. Any: "
           "damaged weights or cache, or a broken kernel."})),
      engram_lookups(
          registry.AddCounters({"skein_engram_lookups_total",
                                "Rows of n-gram tables that were read, by where they lie."},
                               {{"tier", kTiers}})),
      engram_bytes(registry.AddCounters({"skein_engram_row_bytes_total", "Bytes of these rows."},
                                        {{"tier", kTiers}})) {}

TransferFamilies::TransferFamilies(MetricsRegistry& registry)
    : seconds(registry.AddHistograms(
          {"skein_kv_transfer_seconds",
           "From the order to move cache blocks to its end, of transfers that succeeded."},
          protocol::StepDurationBounds(), {{"direction", kDirections}})),
      bytes(registry.AddHistograms(
          {"skein_kv_transfer_bytes", "Cache blocks and slot state of a transfer that succeeded."},
          kTransferBytes, {{"direction", kDirections}})),
      transfers(registry.AddCounters(
          {"skein_kv_transfers_total",
           "Transfers of cache blocks, lent to another worker (send) or fetched (receive). "
           "lost or expired rising: the link between the workers, see their logs; refused: they do "
           "not agree, a defect."},
          {{"direction", kDirections}, {"result", kResults}})),
      leases_expired(registry.AddCounter(
          {"skein_kv_leases_expired_total",
           "Blocks that were lent and not fetched in time; they are in use again."})) {}

WorkerMetrics::WorkerMetrics(MetricsRegistry& registry, const protocol::Config& config,
                             const kernels::KernelRegistry& kernels,
                             const kernels::KernelManifest& manifest)
    : steps_(registry),
      transfers_(registry),
      hangs_(registry
                 .AddCounters(
                     {"skein_hang_detections_total",
                      "Steps past their deadline. The worker ends two seconds later unless the "
                      "step ends; its last line says which."},
                     {{"kind", {"kernel"}}})
                 .At({"kernel"})),
      comm_aborts_(registry.AddCounters(
          {"skein_comm_aborts_total",
           "Groups of ranks that this one ended. epoch_left: on the coordinator's word, a lost "
           "lease or a new epoch; step_failed: an error of its own; end: the worker stops."},
          {{"cause", {"epoch_left", "step_failed", "end"}}})),
      kv_pool_bytes_(registry.AddGauges(
          {"skein_kv_pool_bytes", "Memory of the cache's pools, all of it taken at the start."},
          {{"pool", {"compressed", "index", "window", "state", "draft"}}})),
      memory_(registry.AddGauges(
          {"skein_gpu_memory_bytes",
           "Memory of the device, or of the host without one, by use. weights and engram of a host "
           "are mapped from the checkpoint and shared by its workers; free: when the model was "
           "loaded."},
          {{"kind", {"weights", "engram", "kv", "activation_peak", "free"}}})),
      startup_(registry.AddGauges(
          {"skein_startup_phase_seconds",
           "What the parts of the start took; total from the start of the program until it "
           "registered. weights long: the files come from a slow disk."},
          {{"phase", PhasesOfStart()}})),
      thread_age_(registry.AddGauges(
          {"skein_thread_progress_age_seconds",
           "device: age of the running step, 0 between steps; actor: since the loop that talks to "
           "the coordinator went round. Rising: it hangs."},
          {{"thread", {"device", "actor"}}})),
      mailbox_depth_(
          registry.AddGauges({"skein_actor_mailbox_depth", "Items that wait in a bounded mailbox."},
                             {{"actor", {"worker"}}, {"type", {"plan", "result"}}})) {
  DescribeWorker(config, registry);
  DescribeKernels(kernels, manifest, registry);
}

void WorkerMetrics::Count(const StepAccount& account) {
  const auto add = [this](std::string_view phase, absl::Duration time) {
    steps_.step_phase.At({phase}).Increment(absl::ToDoubleSeconds(time));
  };
  add("prepare", account.prepare);
  add("draft", account.draft);
  add("forward", account.forward);
  add("sample", account.sample);
  steps_.busy.Increment(absl::ToDoubleSeconds(account.busy()));
  if (account.decodes || account.prefills) {
    const std::string_view phase = !account.prefills  ? "decode"
                                   : !account.decodes ? "prefill"
                                                      : "mixed";
    steps_.forward_passes.At({account.recorded ? "full" : "eager", phase}).Increment();
  }
  steps_.nonfinite.Increment(static_cast<double>(account.nonfinite_logits));
  steps_.engram_lookups.At({tier_}).Increment(static_cast<double>(account.table_rows));
  steps_.engram_bytes.At({tier_}).Increment(static_cast<double>(account.table_bytes));
}

void WorkerMetrics::Count(const protocol::BlocksMoved& moved) {
  const std::string_view direction = kDirections[static_cast<size_t>(moved.side)];
  transfers_.transfers.At({direction, kResults[static_cast<size_t>(moved.status)]}).Increment();
  if (moved.status == protocol::MoveStatus::kOk) {
    transfers_.seconds.At({direction}).Observe(static_cast<double>(moved.took_us) / 1e6);
    transfers_.bytes.At({direction}).Observe(static_cast<double>(moved.bytes));
  }
  if (moved.side == protocol::MoveSide::kLend && moved.status == protocol::MoveStatus::kExpired) {
    transfers_.leases_expired.Increment();
  }
}

void WorkerMetrics::SetMemory(const MemoryUse& use) {
  tier_ = use.has_own_memory ? "device" : "host";
  const auto set = [](const protocol::GaugeFamily& family, std::string_view label, uint64_t bytes) {
    family.At({label}).Set(static_cast<double>(bytes));
  };
  set(kv_pool_bytes_, "compressed", use.compressed);
  set(kv_pool_bytes_, "index", use.index);
  set(kv_pool_bytes_, "window", use.window);
  set(kv_pool_bytes_, "state", use.state);
  set(kv_pool_bytes_, "draft", use.draft);
  set(memory_, "weights", use.weights);
  set(memory_, "engram", use.engram);
  set(memory_, "kv", use.cache());
  set(memory_, "activation_peak", use.activations);
  set(memory_, "free", use.free);
}

void WorkerMetrics::SetStart(const StartProgress& progress) {
  for (size_t i = 0; i < kNumStartPhases; ++i) {
    const auto phase = static_cast<StartPhase>(i);
    startup_.At({StartPhaseName(phase)}).Set(absl::ToDoubleSeconds(progress.Took(phase)));
  }
  startup_.At({"total"}).Set(absl::ToDoubleSeconds(progress.total()));
}

void WorkerMetrics::SetCollectives(absl::Duration took) {
  startup_.At({"collectives"}).Set(absl::ToDoubleSeconds(took));
}

void WorkerMetrics::Set(const Reading& reading) {
  thread_age_.At({"device"}).Set(absl::ToDoubleSeconds(reading.device_age));
  thread_age_.At({"actor"}).Set(absl::ToDoubleSeconds(reading.actor_age));
  hangs_.Increment(static_cast<double>(reading.hangs - hangs_seen_));
  hangs_seen_ = reading.hangs;
  mailbox_depth_.At({"worker", "plan"}).Set(static_cast<double>(reading.plans));
  mailbox_depth_.At({"worker", "result"}).Set(static_cast<double>(reading.results));
}

}  // namespace skein::worker
