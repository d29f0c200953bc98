// A directory of recorded results: goldens.json and goldens.safetensors, in either layout of the
// data (random checkpoints: sequences s<i>, modes nq and qat; trained tiny model: prompts p<i>).
// Owns the mapped tensors. Thread: main.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/tensor_view.h"
#include "worker/model/checkpoint.h"
#include "worker/model/model_spec.h"

namespace skein::tests {

enum class Mode : uint8_t { kNq, kQat };
inline const char* ModeName(Mode mode) { return mode == Mode::kNq ? "nq" : "qat"; }

// One recorded draft step: position `t` verified, token `b` chosen after it.
struct GoldenDraft {
  int64_t t = 0;
  int32_t b = 0;
  std::vector<int32_t> draft;
  std::vector<double> confidence;
  int accepted = 0;
};

struct GoldenSequence {
  std::string name;    // for messages
  std::string prefix;  // "s3", "p0"
  std::vector<int32_t> ids;
  std::vector<int32_t> rows;  // positions that the row tensors list
  std::vector<int32_t> greedy;
  std::vector<double> greedy_margin;
  std::vector<GoldenDraft> drafts_nq, drafts_qat;
  double qat_noise_mean = 0;
};

class GoldenDir {
 public:
  static absl::StatusOr<std::unique_ptr<GoldenDir>> Open(const std::filesystem::path& dir);

  const std::vector<GoldenSequence>& sequences() const { return sequences_; }
  // The trained model's layout: official semantics are the default mode.
  bool tiny() const { return tiny_; }
  // Tensor `what` of a sequence, of a layer when it is >= 0; absent view if not recorded.
  kernels::TensorView Find(const GoldenSequence& sequence, const std::string& what, int layer,
                           Mode mode) const;
  // Rotary rows of the machine that made the record (rope_rows.safetensors); null if not recorded.
  const std::shared_ptr<const worker::RecordedRope>& rope() const { return rope_; }

 private:
  GoldenDir() = default;
  std::vector<GoldenSequence> sequences_;
  std::unique_ptr<worker::SafetensorsFile> tensors_;
  std::shared_ptr<const worker::RecordedRope> rope_;
  bool tiny_ = false;
};

}  // namespace skein::tests
