// Runs token sequences through a loaded model layer by layer and keeps what the rules compare:
// streams, coefficients, decisions, logits. Thread: main.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/kernel_registry.h"
#include "worker/loaded_model.h"

namespace skein::tests {

// Rows of integers of one kind, e.g. the experts of a layer.
struct DecisionRows {
  std::string what;  // "experts.layers", "index", "cand", "engram"
  int layer = 0;
  int width = 0;
  std::vector<int32_t> values;  // [T, width]
  // Index lists: the k-th and the next score differ by more than 0 and less than 1e-5 of the row's
  // largest score, so that rounding may decide.
  std::vector<uint8_t> close_call;
  std::span<const int32_t> row(size_t t) const {
    return std::span(values).subspan(t * static_cast<size_t>(width), static_cast<size_t>(width));
  }
};

struct LayerTrace {
  std::vector<double> stream;  // [T, hc, D]
  std::vector<double> pre;     // [T, hc]
};

struct Trace {
  int num_rows = 0;
  std::vector<LayerTrace> layers;
  std::vector<DecisionRows> decisions;
  std::vector<double> logits;  // [T, V]
  std::vector<double> y;       // [T, D]: head input before the final norm
};

// Elements of a view as doubles, in row-major order of its shape.
std::vector<double> ToDoubles(const kernels::TensorView& view);
// Copies doubles into a view, rounding to its dtype.
void FromDoubles(std::span<const double> values, const kernels::TensorView& view);

struct RunSetup {
  std::string backend;
  worker::Numerics numerics;
  std::filesystem::path model_dir;
  int max_rows = 0;
  int max_model_len = 0;
  std::shared_ptr<kernels::Device> device;
  std::shared_ptr<const worker::RecordedRope> rope;
};

class SequenceRun {
 public:
  static absl::StatusOr<std::unique_ptr<SequenceRun>> Create(const RunSetup& setup);

  // Forgets the current sequence.
  void Restart();
  // Called before a layer runs; may overwrite the streams and coefficients of the rows.
  using BeforeLayer = std::function<void(int layer, const kernels::TensorView& stream,
                                         const kernels::TensorView& pre)>;
  // Appends tokens to the current sequence and returns what its rows computed.
  absl::StatusOr<Trace> Append(std::span<const int32_t> tokens, const BeforeLayer& before = {});
  // Drafts after the last appended row; `token` is the one chosen after it.
  absl::StatusOr<worker::DraftProposal> Draft(int32_t token);
  // Of the last Draft: logits before the Markov bias [block, V] and collapsed rows [block, D].
  absl::Status DraftBase(int32_t token, std::vector<double>& logits, std::vector<double>& y);

  worker::LoadedModel& loaded() { return *loaded_; }
  int64_t length() const { return length_; }

 private:
  SequenceRun() = default;
  void TakeDecisions(int layer, int rows, Trace& trace);
  // What the device holds, on the host: valid until the next call.
  kernels::TensorView Read(const kernels::TensorView& view);
  std::vector<double> Doubles(const kernels::TensorView& view) { return ToDoubles(Read(view)); }
  // Hands the layer's streams and coefficients to `before` and takes them back.
  absl::Status Overwrite(int layer, int rows, const BeforeLayer& before);

  std::unique_ptr<kernels::KernelRegistry> registry_;
  std::unique_ptr<worker::LoadedModel> loaded_;
  std::unique_ptr<worker::Arena> arena_;  // of what this class itself gives the device
  std::vector<std::byte> read_;
  int64_t length_ = 0;
  uint64_t sequence_ = 0;
  size_t num_blocks_ = 0;
  kernels::TensorView all_rows_;  // [max_rows] i32: 0, 1, ...
};

// Registers every backend of the build.
absl::Status RegisterBackends(kernels::KernelRegistry& registry);

}  // namespace skein::tests
