#include "tests/conformance/sequence_run.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/cpu/register.h"
#include "kernels/formats.h"
#include "kernels/reference/register.h"
#include "protocol/base/log.h"
#include "protocol/base/status_macros.h"
#include "worker/gpu_backend.h"

namespace skein::tests {
namespace {

using kernels::DType;
using kernels::TensorView;

constexpr int kBlockTokens = 32;

double Load(const TensorView& view, const std::byte* at) {
  switch (view.dtype) {
    case DType::kF64:
      return *reinterpret_cast<const double*>(at);
    case DType::kF32:
      return static_cast<double>(*reinterpret_cast<const float*>(at));
    case DType::kBf16:
      return static_cast<double>(std::bit_cast<float>(
          static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(at)) << 16));
    default:
      return static_cast<double>(*reinterpret_cast<const int32_t*>(at));
  }
}

void Store(const TensorView& view, std::byte* at, double value) {
  if (view.dtype == DType::kF64) {
    *reinterpret_cast<double*>(at) = value;
  } else if (view.dtype == DType::kF32) {
    *reinterpret_cast<float*>(at) = static_cast<float>(value);
  } else {
    // Golden streams are bf16 numbers: their upper half is exact.
    const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
    *reinterpret_cast<uint16_t*>(at) = static_cast<uint16_t>(bits >> 16);
  }
}

// Row by row over the leading dimension; rows are dense.
template <typename Visit>
void ForEach(const TensorView& view, Visit visit) {
  const int64_t rows = view.dim(0);
  const int64_t width = rows == 0 ? 0 : view.size() / rows;
  const size_t bytes = kernels::DTypeBytes(view.dtype);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < width; ++c) visit(view.row(r) + static_cast<size_t>(c) * bytes);
  }
}

std::vector<int32_t> ToInts(const TensorView& view) {
  std::vector<int32_t> out;
  ForEach(view, [&](std::byte* at) { out.push_back(*reinterpret_cast<int32_t*>(at)); });
  return out;
}

// Is the k-th score so close to the next that rounding may decide?
bool CloseCall(std::vector<double> scores, int k) {
  std::erase_if(scores, [](double s) { return std::isinf(s); });
  if (static_cast<int>(scores.size()) <= k) return false;
  std::sort(scores.begin(), scores.end(), std::greater<>());
  const double largest = std::max(std::abs(scores.front()), std::abs(scores.back()));
  const double gap = scores[static_cast<size_t>(k) - 1] - scores[static_cast<size_t>(k)];
  return gap > 0 && gap < 1e-5 * largest;
}

}  // namespace

std::vector<double> ToDoubles(const TensorView& view) {
  std::vector<double> out;
  out.reserve(static_cast<size_t>(view.size()));
  ForEach(view, [&](std::byte* at) { out.push_back(Load(view, at)); });
  return out;
}

void FromDoubles(std::span<const double> values, const TensorView& view) {
  size_t i = 0;
  ForEach(view, [&](std::byte* at) { Store(view, at, values[i++]); });
}

absl::Status RegisterBackends(kernels::KernelRegistry& registry) {
  SKEIN_RETURN_IF_ERROR(kernels::RegisterReferenceKernels(registry));
  SKEIN_RETURN_IF_ERROR(kernels::RegisterCpuKernels(registry, kernels::CpuIsa::kAuto));
  return worker::RegisterGpuKernels(registry);
}

absl::StatusOr<std::unique_ptr<SequenceRun>> SequenceRun::Create(const RunSetup& setup) {
  std::unique_ptr<SequenceRun> out(new SequenceRun());
  out->registry_ = std::make_unique<kernels::KernelRegistry>();
  SKEIN_RETURN_IF_ERROR(RegisterBackends(*out->registry_));
  worker::LoadOptions options;
  options.model_dir = setup.model_dir;
  options.numerics = setup.numerics;
  options.limits.max_rows = setup.max_rows;
  options.limits.max_samples = setup.max_rows;
  options.limits.max_model_len = setup.max_model_len;
  options.block_tokens = kBlockTokens;
  options.num_blocks = setup.max_model_len / kBlockTokens + 1;
  options.num_slots = 2;
  options.max_draft_requests = 1;
  options.device = setup.device;
  options.recorded_rope = setup.rope;
  SKEIN_ASSIGN_OR_RETURN(
      out->loaded_, worker::LoadedModel::Load(
                        *out->registry_, kernels::KernelManifest::Uniform(setup.backend), options));
  out->arena_ = setup.device == nullptr ? std::make_unique<worker::Arena>()
                                        : std::make_unique<worker::Arena>(setup.device);
  std::vector<int32_t> rows(static_cast<size_t>(setup.max_rows));
  std::iota(rows.begin(), rows.end(), 0);
  out->all_rows_ =
      out->arena_->Constant<int32_t>(DType::kI32, {setup.max_rows}, std::span<const int32_t>(rows));
  SKEIN_RETURN_IF_ERROR(out->arena_->status());
  return out;
}

void SequenceRun::Restart() {
  length_ = 0;
  num_blocks_ = 0;
  ++sequence_;
}

TensorView SequenceRun::Read(const TensorView& view) {
  kernels::Device& device = loaded_->device();
  if (device.is_host() || view.size() == 0) return view;
  const auto bytes =
      static_cast<size_t>((view.dim(0) - 1) * view.step(0)) * kernels::DTypeBytes(view.dtype) +
      static_cast<size_t>(view.size() / view.dim(0)) * kernels::DTypeBytes(view.dtype);
  read_.resize(bytes);
  absl::Status status = device.CopyOut(read_.data(), view.data, bytes);
  if (status.ok()) status = device.Wait();
  SKEIN_CHECK(status.ok()) << status.message();
  TensorView host = view;
  host.data = read_.data();
  return host;
}

absl::Status SequenceRun::Overwrite(int layer, int rows, const BeforeLayer& before) {
  const TensorView stream = loaded_->model().stream(rows);
  const TensorView pre = loaded_->model().pre(rows);
  kernels::Device& device = loaded_->device();
  const TensorView host_stream = Read(stream);
  const std::vector<std::byte> kept = read_;
  TensorView mine = host_stream;
  if (!device.is_host()) mine.data = const_cast<std::byte*>(kept.data());
  const TensorView host_pre = Read(pre);
  before(layer, mine, host_pre);
  const auto bytes = [](const TensorView& view) {
    return static_cast<size_t>(view.size()) * kernels::DTypeBytes(view.dtype);
  };
  SKEIN_RETURN_IF_ERROR(device.CopyIn(stream.data, mine.data, bytes(stream)));
  SKEIN_RETURN_IF_ERROR(device.CopyIn(pre.data, host_pre.data, bytes(pre)));
  return device.Wait();
}

void SequenceRun::TakeDecisions(int layer, int rows, Trace& trace) {
  worker::Model& model = loaded_->model();
  const worker::ModelSpec& spec = loaded_->spec();
  const worker::LayerSpec& it = spec.layers[static_cast<size_t>(layer)];
  auto add = [&](const char* what, const TensorView& there) -> DecisionRows& {
    const TensorView view = Read(there);
    trace.decisions.push_back({what, layer, static_cast<int>(view.dim(1)), ToInts(view), {}});
    return trace.decisions.back();
  };
  DecisionRows& experts = add("experts.layers", model.experts(layer, rows));
  for (int t = 0; t < rows; ++t) {
    auto begin = experts.values.begin() + int64_t{t} * experts.width;
    std::sort(begin, begin + experts.width);
  }
  if (it.engram_index >= 0) add("engram", model.engram_rows(it.engram_index, rows));
  if (it.candidate_source) add("cand", model.candidates(rows));
  if (!it.index_source) return;
  DecisionRows& index = add("index", model.selected(rows));
  const int64_t columns = length_ / it.ratio;
  if (columns == 0) {
    index.close_call.assign(static_cast<size_t>(rows), 0);
    return;
  }
  const std::vector<double> scores =
      Doubles(worker::Reshape(model.attention_scratch().score, {rows, columns}));
  for (int t = 0; t < rows; ++t) {
    auto begin = scores.begin() + int64_t{t} * columns;
    index.close_call.push_back(CloseCall({begin, begin + columns}, spec.index_topk) ? 1 : 0);
  }
}

absl::StatusOr<Trace> SequenceRun::Append(std::span<const int32_t> tokens,
                                          const BeforeLayer& before) {
  protocol::StepPlan plan;
  protocol::SequenceStep step;
  step.sequence = protocol::SequenceId(sequence_);
  step.fresh_slot = length_ == 0;
  step.first_position = static_cast<uint32_t>(length_);
  step.tokens.assign(tokens.begin(), tokens.end());
  step.table_size_before = static_cast<uint32_t>(num_blocks_);
  length_ += static_cast<int64_t>(tokens.size());
  while (num_blocks_ * kBlockTokens < static_cast<size_t>(length_)) {
    step.new_blocks.emplace_back(static_cast<uint32_t>(num_blocks_++));
  }
  step.feed_drafter = true;
  plan.sequences.push_back(std::move(step));
  SKEIN_RETURN_IF_ERROR(loaded_->input().Check(plan));
  const worker::ModelBatch& batch =
      loaded_->input().Build(plan, std::vector<worker::SequenceDrafts>(1));
  worker::Model& model = loaded_->model();
  Trace trace;
  trace.num_rows = batch.num_rows;
  const int rows = batch.num_rows;
  SKEIN_RETURN_IF_ERROR(loaded_->input().Upload());
  SKEIN_RETURN_IF_ERROR(model.Embed(batch));
  for (int layer = 0; layer < loaded_->spec().num_layers; ++layer) {
    if (before) SKEIN_RETURN_IF_ERROR(Overwrite(layer, rows, before));
    SKEIN_RETURN_IF_ERROR(model.RunLayer(layer, batch));
    SKEIN_RETURN_IF_ERROR(loaded_->device().Wait());
    trace.layers.push_back({Doubles(model.stream(rows)), Doubles(model.pre(rows))});
    TakeDecisions(layer, rows, trace);
  }
  SKEIN_RETURN_IF_ERROR(
      model.head().Logits(model.stream(rows), model.pre(rows), worker::Rows(all_rows_, rows)));
  trace.logits = Doubles(model.head().logits(rows));
  trace.y = Doubles(model.head().collapsed(rows));
  if (loaded_->draft() != nullptr) {
    SKEIN_RETURN_IF_ERROR(loaded_->draft()->Observe(batch, model.taps(rows)));
  }
  return trace;
}

absl::StatusOr<worker::DraftProposal> SequenceRun::Draft(int32_t token) {
  if (loaded_->draft() == nullptr) {
    return absl::FailedPreconditionError("the checkpoint has no draft head");
  }
  std::vector<worker::DraftProposal> proposals;
  const worker::DraftRequest request{.slot = 0,
                                     .position = length_ - 1,
                                     .token = token,
                                     .fed_from = 0,
                                     .depth = loaded_->draft()->depth_max(),
                                     .mode = protocol::VerificationMode::kGreedy,
                                     .sampling = {}};
  SKEIN_RETURN_IF_ERROR(loaded_->draft()->Propose(std::span(&request, 1), proposals));
  return proposals[0];
}

absl::Status SequenceRun::DraftBase(int32_t token, std::vector<double>& logits,
                                    std::vector<double>& y) {
  worker::DraftRequest request;
  request.position = length_ - 1;
  request.token = token;
  request.depth = loaded_->draft()->depth_max();
  loaded_->draft()->Fill(std::span(&request, 1), 1);
  SKEIN_RETURN_IF_ERROR(loaded_->draft()->RunStages());
  logits = Doubles(loaded_->draft()->draft_logits(1));
  y = Doubles(loaded_->draft()->collapsed(1));
  return absl::OkStatus();
}

}  // namespace skein::tests
