#include "tests/bench/step_driver.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/ops/sampling.h"
#include "protocol/base/status_macros.h"
#include "worker/step_executor.h"

namespace skein::tests {

using kernels::DTypeBytes;
using kernels::TensorView;
using worker::LayerSpec;
using worker::LinearWeight;
using worker::ModelSpec;

namespace {

double Bytes(const TensorView& view) {
  return static_cast<double>(view.size()) * static_cast<double>(DTypeBytes(view.dtype));
}
double Bytes(const LinearWeight& w) { return Bytes(w.weight.codes) + Bytes(w.weight.scale); }
double Bytes(const kernels::Weight& w) { return Bytes(w.codes) + Bytes(w.scale); }
double Macs(const LinearWeight& w) { return static_cast<double>(w.n) * w.k; }

std::vector<const LinearWeight*> DenseOf(const worker::BlockWeights& layer) {
  const worker::AttentionWeights& a = layer.attn;
  const worker::MoeWeights& m = layer.moe;
  return {&a.wq_a,
          &a.wq_b,
          &a.wkv,
          &a.wo_a,
          &a.wo_b,
          &a.compressor_wkv,
          &a.compressor_wgate,
          &a.index_wk,
          &a.index_wq_b,
          &a.index_weights,
          &m.gate,
          &m.shared.w1,
          &m.shared.w2,
          &m.shared.w3};
}

// Entries that a row at `position` attends to, and index columns that it scores.
double Attended(const ModelSpec& spec, const LayerSpec& layer, int position) {
  const int window = std::min(position + 1, spec.window);
  const int columns = layer.ratio > 0 ? (position + 1) / layer.ratio : 0;
  return window + std::min(columns, spec.index_topk);
}
double Scored(const ModelSpec& spec, const LayerSpec& layer, int position) {
  if (!layer.index_source) return 0;
  const int columns = (position + 1) / layer.ratio;
  if (!layer.uses_candidates) return columns;
  return std::min(columns, spec.candidate_blocks * spec.candidate_block);
}

void AddAttention(const ModelSpec& spec, const LayerSpec& layer, const worker::ModelBatch& batch,
                  StepCost& cost) {
  const int32_t* position = batch.rows.position.as<int32_t>();
  const double window_row = spec.head_dim * (1 + 1.0 / 32);
  const double history_row = spec.head_dim * (0.5 + 1.0 / 16);
  const double index_row = spec.index_dim * (0.5 + 1.0 / 32);
  for (int t = 0; t < batch.num_rows; ++t) {
    const double attended = Attended(spec, layer, position[t]);
    const double scored = Scored(spec, layer, position[t]);
    const double window = std::min(position[t] + 1, spec.window);
    cost.flops += 4.0 * spec.heads * spec.head_dim * attended;
    cost.flops += 2.0 * spec.index_heads * spec.index_dim * scored;
    cost.cache_bytes += window * window_row + (attended - window) * history_row;
    cost.cache_bytes += scored * index_row;
  }
}

}  // namespace

void StepDriver::Reset() {
  model_.input().Reset();
  sequences_.clear();
}

int StepDriver::Add(std::vector<int32_t> prompt) {
  Sequence sequence;
  sequence.tokens = std::move(prompt);
  sequences_.push_back(std::move(sequence));
  return static_cast<int>(sequences_.size()) - 1;
}

protocol::SequenceStep StepDriver::Step(int number, const std::vector<int32_t>& tokens,
                                        bool sample) {
  Sequence& sequence = sequences_[static_cast<size_t>(number)];
  protocol::SequenceStep step;
  step.sequence = protocol::SequenceId(static_cast<uint64_t>(number) + 1);
  step.slot = protocol::SlotId(static_cast<uint32_t>(number));
  step.fresh_slot = std::exchange(sequence.fresh, false);
  step.first_position = static_cast<uint32_t>(sequence.computed);
  step.tokens.assign(tokens.begin(), tokens.end());
  step.table_size_before = static_cast<uint32_t>(sequence.announced);
  const size_t end = sequence.computed + tokens.size();
  while (sequence.announced * static_cast<size_t>(block_tokens_) < end) {
    step.new_blocks.emplace_back(static_cast<uint32_t>(number * blocks_each_) +
                                 static_cast<uint32_t>(sequence.announced++));
  }
  step.sample = sample;
  step.sampling.temperature = 0;
  return step;
}

absl::Status StepDriver::Run(const protocol::StepPlan& plan, const std::vector<int>& order) {
  const protocol::StepResult result = worker::RunPlan(model_, plan);
  if (result.status != protocol::StepStatus::kOk) return absl::InternalError(result.message);
  for (size_t i = 0; i < order.size(); ++i) {
    Sequence& sequence = sequences_[static_cast<size_t>(order[i])];
    sequence.computed += plan.sequences[i].tokens.size();
    if (result.sequences[i].rows.empty()) continue;
    const protocol::RowSummary& row = result.sequences[i].rows[0];
    if (row.flags != 0) return absl::InternalError(absl::StrCat("row flags ", row.flags));
    sequence.tokens.push_back(row.plain_token);
    sequence.logprobs.push_back(row.plain_logprob);
  }
  return absl::OkStatus();
}

absl::Status StepDriver::Prefill(int number, int chunk) {
  const Sequence& sequence = sequences_[static_cast<size_t>(number)];
  const size_t end =
      std::min(sequence.tokens.size(), sequence.computed + static_cast<size_t>(chunk));
  const bool last = end == sequence.tokens.size();
  const std::vector<int32_t> part(sequence.tokens.begin() + static_cast<int64_t>(sequence.computed),
                                  sequence.tokens.begin() + static_cast<int64_t>(end));
  protocol::StepPlan plan;
  plan.sequences.push_back(Step(number, part, last));
  return Run(plan, {number});
}

absl::Status StepDriver::Decode() {
  protocol::StepPlan plan;
  std::vector<int> order;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    order.push_back(static_cast<int>(i));
    plan.sequences.push_back(Step(order.back(), {sequences_[i].tokens.back()}, true));
  }
  return Run(plan, order);
}

absl::Status StepDriver::Verify(int number, const std::vector<int32_t>& drafts) {
  protocol::StepPlan plan;
  plan.sequences.push_back(
      Step(number, {sequences_[static_cast<size_t>(number)].tokens.back()}, true));
  protocol::SequenceStep& step = plan.sequences[0];
  step.mode = protocol::VerificationMode::kGreedy;
  step.provided_drafts = drafts;
  const protocol::StepResult result = worker::RunPlan(model_, plan);
  if (result.status != protocol::StepStatus::kOk) return absl::InternalError(result.message);
  // A step keeps one token at least: no plan goes back to where it began.
  Sequence& sequence = sequences_[static_cast<size_t>(number)];
  sequence.tokens.push_back(sequence.tokens.back());
  ++sequence.computed;
  return absl::OkStatus();
}

absl::StatusOr<StepCost> StepDriver::Count(const protocol::StepPlan& plan) {
  SKEIN_RETURN_IF_ERROR(model_.input().Check(plan));
  const worker::ModelBatch* batch =
      &model_.input().Build(plan, std::vector<worker::SequenceDrafts>(plan.sequences.size()));
  worker::Model& model = model_.model();
  const ModelSpec& spec = model_.spec();
  const double rows = batch->num_rows;
  StepCost cost;
  SKEIN_RETURN_IF_ERROR(model.Embed(*batch));
  for (int i = 0; i < spec.num_layers; ++i) {
    SKEIN_RETURN_IF_ERROR(model.RunLayer(i, *batch));
    const worker::BlockWeights& layer = model_.weights().layers[static_cast<size_t>(i)];
    for (const LinearWeight* w : DenseOf(layer)) {
      cost.weight_bytes += Bytes(*w);
      cost.flops += 2 * rows * Macs(*w);
    }
    for (const worker::HyperConnectionWeights* hc : {&layer.hc_attn, &layer.hc_ffn}) {
      cost.weight_bytes += Bytes(hc->fn);
      cost.flops += 2 * rows * static_cast<double>(hc->fn.size());
    }
    const TensorView chosen = model.experts(i, batch->num_rows);
    const std::set<int32_t> touched(chosen.as<int32_t>(), chosen.as<int32_t>() + chosen.size());
    for (const int32_t e : touched) {
      const auto at = static_cast<size_t>(e);
      cost.weight_bytes +=
          Bytes(layer.moe.w1[at]) + Bytes(layer.moe.w2[at]) + Bytes(layer.moe.w3[at]);
    }
    cost.touched += static_cast<double>(touched.size()) / spec.num_layers;
    cost.flops += 6 * static_cast<double>(chosen.size()) * spec.hidden * spec.expert_inner;
    AddAttention(spec, spec.layers[static_cast<size_t>(i)], *batch, cost);
  }
  for (const worker::EngramWeights& engram : model_.weights().engram) {
    cost.weight_bytes += Bytes(engram.wkv);
    cost.flops += 2 * rows * Macs(engram.wkv);
  }
  cost.weight_bytes += Bytes(model_.weights().head);
  cost.flops += 2.0 * batch->num_samples * Macs(model_.weights().head);
  return cost;
}

absl::StatusOr<StepCost> StepDriver::CountDecode() {
  protocol::StepPlan plan;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    plan.sequences.push_back(Step(static_cast<int>(i), {sequences_[i].tokens.back()}, true));
  }
  return Count(plan);
}

absl::StatusOr<StepCost> StepDriver::CountPrefill(int number) {
  protocol::StepPlan plan;
  plan.sequences.push_back(Step(number, sequences_[static_cast<size_t>(number)].tokens, true));
  return Count(plan);
}

}  // namespace skein::tests
