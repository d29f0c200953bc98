// The rules of comparison of the recorded data. Each function judges one sequence and prints one
// line; figures are printed whether the case passes or not. Thread: main.
//   end to end   nq and qat against the oracle's backend: logits, decisions, greedy tokens, drafts
//   by layer     other backends, each layer fed with recorded streams
//   forced       other backends, trained model: top-1 where the margin decides, mean difference
#pragma once

#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "tests/conformance/golden_dir.h"
#include "tests/conformance/sequence_run.h"

namespace skein::tests {

struct CaseContext {
  const GoldenDir& goldens;
  const GoldenSequence& sequence;
  std::string label;  // "window s3"
  std::ostream& out;
};

// Rules 1 (nq) and 2 (qat). True if the case passes.
absl::StatusOr<bool> CheckEndToEnd(const CaseContext& context, SequenceRun& run, Mode mode);

// Figures of rule 3 for one sequence.
struct LayerFigures {
  double mean = 0;      // mean |difference| over the row's largest magnitude, worst layer
  double share = 0;     // share of elements off by more than 2^-7 of it, all layers
  int list_rows = 0;    // rows of decision lists compared
  int list_differ = 0;  // of them different without excuse
};
absl::StatusOr<LayerFigures> MeasureLayers(const CaseContext& context, SequenceRun& run);
// Prints and judges them against the committed share of float accumulation.
bool JudgeLayers(const CaseContext& context, const LayerFigures& figures, double baseline_share);

// Rule 4 for one sequence.
struct ForcedFigures {
  int covered = 0;  // rows whose recorded margin decides
  int wrong = 0;    // of them with another top-1
  int rows = 0;
  double difference = 0;  // sum over rows of the mean |difference| of the recorded logits
};
absl::StatusOr<ForcedFigures> MeasureForced(const CaseContext& context, SequenceRun& run);
// Prints and judges them: no wrong top-1, mean within twice that of plain float32.
bool JudgeForced(const CaseContext& context, const ForcedFigures& figures);

}  // namespace skein::tests
