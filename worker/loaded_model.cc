#include "worker/loaded_model.h"

#include "absl/strings/str_cat.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"

namespace skein::worker {

Numerics BackendNumerics(std::string_view backend) {
  return backend == "reference" ? Numerics::Exact() : Numerics::Model();
}

absl::StatusOr<std::unique_ptr<LoadedModel>> LoadedModel::Load(
    const kernels::KernelRegistry& registry, const kernels::KernelManifest& manifest,
    const LoadOptions& options) {
  std::unique_ptr<LoadedModel> out(new LoadedModel());
  SKEIN_RETURN_IF_ERROR(out->Build(registry, manifest, options));
  return out;
}

namespace {

// What a group of ranks needs of the model and the device.
absl::Status CheckGroup(const LoadOptions& options, const ModelSpec& spec,
                        const kernels::Device& device) {
  SKEIN_RETURN_IF_ERROR(CheckShard(options.shard, spec));
  if (options.shard.whole() || device.is_host() || options.nccl != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("scheduler.expert_parallel_size is ", options.shard.num_ranks,
                   ": ranks on GPUs exchange over NCCL, which was not opened"));
}

}  // namespace

absl::Status LoadedModel::EnterGroup(protocol::CollectiveGroup& group, const std::string& label,
                                     absl::Time deadline) {
  SKEIN_RETURN_IF_ERROR(ranks_->Enter(group, label, deadline));
  ranks_->SetDeadline(absl::InfiniteFuture());
  return absl::OkStatus();
}

absl::Status LoadedModel::RecordInGroup(absl::Time deadline) {
  if (graphs_ == nullptr) return absl::OkStatus();
  ranks_->SetDeadline(deadline);
  const absl::Status status = graphs_->Record();
  ranks_->SetDeadline(absl::InfiniteFuture());
  if (!status.ok()) {
    ranks_->Abort(protocol::StatusText(status));
    LeaveGroup();
  }
  return status;
}

absl::Status LoadedModel::PlaceExperts(const protocol::ExpertPlacement& placement,
                                       const std::function<absl::Status()>& live) {
  const Shard& shard = ranks_->shard();
  const protocol::ExpertPlacement wanted =
      placement.empty() ? FirstPlacement(spec_, shard.num_ranks) : placement;
  SKEIN_RETURN_IF_ERROR(CheckPlacement(wanted, spec_, shard.num_ranks));
  if (wanted == placement_) return absl::OkStatus();
  placement_.clear();
  SKEIN_RETURN_IF_ERROR(weights_->HoldExperts(wanted, shard.rank, device(), live));
  size_t layer = 0;
  for (Block& block : model_->blocks()) {
    SKEIN_RETURN_IF_ERROR(block.moe().Place(wanted[layer++], device()));
  }
  if (draft_ != nullptr) {
    for (Block& block : draft_->blocks()) {
      SKEIN_RETURN_IF_ERROR(block.moe().Place(wanted[layer++], device()));
    }
  }
  SKEIN_RETURN_IF_ERROR(device().Wait());
  placement_ = wanted;
  return absl::OkStatus();
}

void LoadedModel::LeaveGroup() {
  if (graphs_ != nullptr) graphs_->Forget();
  ranks_->Leave();
}

absl::Status LoadedModel::LoadWeights(const LoadOptions& options) {
  LoadProgress progress;
  if (options.progress != nullptr) {
    options.progress->Begin(StartPhase::kWeights);
    progress = [to = options.progress](uint64_t done, uint64_t total, bool engram) {
      to->Begin(engram ? StartPhase::kEngram : StartPhase::kWeights);
      to->Advance(done, total);
    };
  }
  SKEIN_ASSIGN_OR_RETURN(weights_,
                         ModelWeights::Load(options.model_dir, spec_, *arena_, options.make_tensor,
                                            options.shard, progress));
  return absl::OkStatus();
}

MemoryUse LoadedModel::Memory(uint64_t free) const {
  MemoryUse use;
  use.has_own_memory = !arena_->device().is_host();
  use.engram = weights_->engram_bytes;
  use.weights = weights_->bytes - use.engram;
  use.compressed = cache_->history_bytes();
  use.index = cache_->index_bytes();
  use.window = slots_->window_bytes();
  use.state = slots_->open_bytes();
  use.draft = slots_->draft_bytes();
  // On a host the weights are the mapping of their files, on a device they are in the arena.
  const uint64_t known = use.cache() + (use.has_own_memory ? weights_->bytes : 0);
  use.activations = arena_->total_bytes() > known ? arena_->total_bytes() - known : 0;
  use.free = free;
  return use;
}

absl::Status LoadedModel::Build(const kernels::KernelRegistry& registry,
                                const kernels::KernelManifest& manifest,
                                const LoadOptions& options) {
  SKEIN_ASSIGN_OR_RETURN(spec_, ModelSpec::Load(options.model_dir));
  spec_.rope.recorded = options.recorded_rope;
  spec_.dspark.tap_side = options.tap_side;
  if (options.block_tokens <= 0 || options.block_tokens % spec_.block_multiple() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("block_size is ", options.block_tokens,
                     ", must be a multiple of the model's compression ratios, that is of ",
                     spec_.block_multiple()));
  }
  if (options.limits.max_model_len > spec_.max_position) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_model_len is ", options.limits.max_model_len,
                     ", config.json allows at most ", spec_.max_position));
  }
  arena_ = options.device == nullptr ? std::make_unique<Arena>()
                                     : std::make_unique<Arena>(options.device);
  SKEIN_RETURN_IF_ERROR(CheckGroup(options, spec_, arena_->device()));
  SKEIN_RETURN_IF_ERROR(LoadWeights(options));
  kernels_ = std::make_unique<KernelSet>(registry, manifest, arena_->device().stream());
  cache_ = std::make_unique<KvCache>(spec_, options.numerics, options.block_tokens,
                                     options.num_blocks, *arena_);
  const bool drafts = options.max_draft_requests > 0 && spec_.dspark.stages > 0;
  slots_ = std::make_unique<StateSlots>(spec_, options.numerics, options.num_slots,
                                        drafts ? spec_.dspark.stages : 0, *arena_,
                                        options.num_checkpoints);
  if (!options.shard.whole()) {
    ranks_ = std::make_unique<RankExchange>(
        options.shard, ExchangeBytes(spec_, options.numerics, options.limits.max_rows),
        arena_->device(), options.nccl);
  }
  model_ = std::make_unique<Model>(spec_, *weights_, options.numerics, options.limits, *cache_,
                                   *slots_, *kernels_, *arena_, ranks_.get());
  if (drafts) {
    draft_ = std::make_unique<DSparkHead>(*model_, *weights_, options.limits,
                                          options.max_draft_requests, *slots_, *kernels_, *arena_);
  }
  input_ = std::make_unique<BatchInput>(spec_, options.limits, *cache_, *slots_,
                                        weights_->engram_token_map, *arena_);
  scorer_ = std::make_unique<PromptScorer>(options.limits, *arena_);
  if (options.record_steps) {
    const StepParts parts{&arena_->device(), model_.get(), draft_.get(), input_.get(),
                          ranks_.get()};
    graphs_ = std::make_unique<GraphCache>(parts, options.limits, options.num_slots, *kernels_);
  }
  if (ranks_ != nullptr) {
    placement_ = FirstPlacement(spec_, options.shard.num_ranks);
    meter_ = std::make_unique<ExpertMeter>(*model_, draft_.get(), spec_.dspark.stages, *arena_);
  }
  SKEIN_RETURN_IF_ERROR(kernels_->Finish(*arena_));
  SKEIN_RETURN_IF_ERROR(model_->Prepare());
  // Those of a group have the communicator of an epoch in them.
  if (graphs_ == nullptr || ranks_ != nullptr) return absl::OkStatus();
  if (options.progress != nullptr) options.progress->Begin(StartPhase::kGraphCapture);
  return graphs_->Record([progress = options.progress](size_t done, size_t total) {
    if (progress != nullptr) progress->Advance(done, total);
  });
}

}  // namespace skein::worker
