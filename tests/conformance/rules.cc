#include "tests/conformance/rules.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "protocol/base/status_macros.h"

namespace skein::tests {
namespace {

using kernels::TensorView;

constexpr double kExact = 1e-5;         // of the row's largest magnitude
constexpr double kConfidence = 2e-5;    // recorded with five decimals
constexpr double kNqListShare = 0.005;  // rows whose close calls may differ
constexpr double kQatRowShare = 0.01;   // rows that one flipped code may reach
constexpr double kLayerMean = 1e-3;
constexpr double kElementOff = 1.0 / 128;
constexpr double kDecisiveMargin = 1.0;

double MaxAbs(std::span<const double> row) {
  double largest = 0;
  for (double v : row) largest = std::max(largest, std::abs(v));
  return largest;
}

// Largest difference over the golden row's largest magnitude.
double RowError(std::span<const double> ours, std::span<const double> golden) {
  double worst = 0;
  for (size_t i = 0; i < golden.size(); ++i) {
    const double error = std::abs(ours[i] - golden[i]);
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst / std::max(MaxAbs(golden), 1e-30);
}

int ArgMax(std::span<const double> row) {
  return static_cast<int>(std::max_element(row.begin(), row.end()) - row.begin());
}

// What differs between a run and its record.
struct Differences {
  double worst_logits = 0;
  std::set<int32_t> rows;  // positions with any difference
  int list_rows = 0;
  int close_calls = 0;  // lists that differ where rounding may decide
  std::string first;    // description of the first difference
  void Note(int32_t row, const std::string& text) {
    if (rows.insert(row).second && first.empty()) first = text;
  }
};

std::span<const double> Row(const std::vector<double>& values, size_t row, size_t width) {
  return std::span(values).subspan(row * width, width);
}

void CompareLogits(const CaseContext& context, const Trace& trace, Mode mode, size_t vocab,
                   Differences& diff) {
  const GoldenSequence& sequence = context.sequence;
  const TensorView full = context.goldens.Find(sequence, "logits", -1, mode);
  const TensorView top_value = context.goldens.Find(sequence, "top_val", -1, mode);
  const TensorView top_id = context.goldens.Find(sequence, "top_id", -1, mode);
  const TensorView& golden = full.absent() ? top_value : full;
  if (golden.absent()) return;
  const std::vector<double> values = ToDoubles(golden);
  const std::vector<double> ids = full.absent() ? ToDoubles(top_id) : std::vector<double>{};
  const auto width = static_cast<size_t>(golden.dim(1));
  for (size_t i = 0; i < sequence.rows.size(); ++i) {
    const auto t = static_cast<size_t>(sequence.rows[i]);
    const std::span<const double> row = Row(trace.logits, t, vocab);
    std::vector<double> ours(row.begin(), row.end());
    if (full.absent()) {
      for (size_t j = 0; j < width; ++j) ours[j] = row[static_cast<size_t>(ids[i * width + j])];
      ours.resize(width);
    }
    const double error = RowError(ours, Row(values, i, width));
    diff.worst_logits = std::max(diff.worst_logits, error);
    if (error > kExact) {
      diff.Note(sequence.rows[i], absl::StrFormat("row %d logits off by %.3g", t, error));
    }
  }
}

void CompareDecisions(const CaseContext& context, const Trace& trace, Mode mode,
                      Differences& diff) {
  const GoldenSequence& sequence = context.sequence;
  for (const DecisionRows& ours : trace.decisions) {
    const TensorView view = context.goldens.Find(sequence, ours.what, ours.layer, mode);
    if (view.absent()) continue;
    const std::vector<double> golden = ToDoubles(view);
    const auto width = static_cast<size_t>(view.dim(1));
    for (size_t i = 0; i < sequence.rows.size(); ++i) {
      const auto t = static_cast<size_t>(sequence.rows[i]);
      const std::span<const int32_t> row = ours.row(t);
      ++diff.list_rows;
      bool equal = width <= row.size();
      for (size_t j = 0; j < row.size() && equal; ++j) {
        equal = row[j] == (j < width ? static_cast<int32_t>(golden[i * width + j]) : -1);
      }
      if (equal) continue;
      if (!ours.close_call.empty() && ours.close_call[t] != 0) {
        ++diff.close_calls;
        continue;
      }
      diff.Note(sequence.rows[i], absl::StrCat("row ", t, " ", ours.what, ".", ours.layer));
    }
  }
}

// Recorded drafts, and with them the recorded continuation, verified in chunks as recorded.
absl::Status CompareDrafts(const CaseContext& context, SequenceRun& run, Mode mode, int first,
                           size_t vocab, std::string& note, int& compared) {
  const auto& drafts = mode == Mode::kNq ? context.sequence.drafts_nq : context.sequence.drafts_qat;
  int next = first;
  for (const GoldenDraft& golden : drafts) {
    if (golden.t != run.length() - 1 || golden.b != next) {
      note = absl::StrCat("draft at t=", golden.t, ": token ", next, ", recorded ", golden.b);
      return absl::OkStatus();
    }
    SKEIN_ASSIGN_OR_RETURN(const worker::DraftProposal ours, run.Draft(golden.b));
    for (size_t i = 0; i < golden.draft.size(); ++i) {
      const double error = std::abs(ours.confidence[i] - golden.confidence[i]);
      if (ours.tokens[i] != golden.draft[i] ||
          error > kConfidence * std::max(1.0, std::abs(golden.confidence[i]))) {
        note = absl::StrCat("draft ", i, " at t=", golden.t, ": token ", ours.tokens[i],
                            " confidence ", ours.confidence[i], ", recorded ", golden.draft[i],
                            " and ", golden.confidence[i]);
        return absl::OkStatus();
      }
    }
    compared += static_cast<int>(golden.draft.size());
    std::vector<int32_t> tokens = {golden.b};
    tokens.insert(tokens.end(), golden.draft.begin(), golden.draft.begin() + golden.accepted);
    SKEIN_ASSIGN_OR_RETURN(const Trace trace, run.Append(tokens));
    next = ArgMax(Row(trace.logits, tokens.size() - 1, vocab));
  }
  return absl::OkStatus();
}

// Recorded greedy continuation, one token at a time.
absl::Status CompareGreedy(const CaseContext& context, SequenceRun& run, int first, size_t vocab,
                           std::string& note, int& compared) {
  int next = first;
  for (size_t i = 0; i < context.sequence.greedy.size(); ++i) {
    const int32_t golden = context.sequence.greedy[i];
    if (next != golden) {
      note = absl::StrCat("greedy token ", i, " is ", next, ", recorded ", golden);
      return absl::OkStatus();
    }
    ++compared;
    if (i + 1 == context.sequence.greedy.size()) break;
    SKEIN_ASSIGN_OR_RETURN(const Trace trace, run.Append(std::span(&golden, 1)));
    next = ArgMax(Row(trace.logits, 0, vocab));
  }
  return absl::OkStatus();
}

// Recorded first draft block: logits before the Markov bias and collapsed rows.
absl::Status CompareDraftBase(const CaseContext& context, SequenceRun& run, Mode mode, int first,
                              std::string& note) {
  const TensorView logits = context.goldens.Find(context.sequence, "draft_base_logits", -1, mode);
  const TensorView y = context.goldens.Find(context.sequence, "draft_y", -1, mode);
  if (logits.absent() || y.absent()) return absl::OkStatus();
  std::vector<double> our_logits;
  std::vector<double> our_y;
  SKEIN_RETURN_IF_ERROR(run.DraftBase(first, our_logits, our_y));
  const double logits_error = RowError(our_logits, ToDoubles(logits));
  const double y_error = RowError(our_y, ToDoubles(y));
  if (logits_error > kExact || y_error > kExact) {
    note = absl::StrFormat("draft base logits off by %.3g, rows by %.3g", logits_error, y_error);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<bool> CheckEndToEnd(const CaseContext& context, SequenceRun& run, Mode mode) {
  const auto vocab = static_cast<size_t>(run.loaded().spec().vocab);
  run.Restart();
  SKEIN_ASSIGN_OR_RETURN(const Trace trace, run.Append(context.sequence.ids));
  Differences diff;
  CompareLogits(context, trace, mode, vocab, diff);
  CompareDecisions(context, trace, mode, diff);
  const size_t last = context.sequence.ids.size() - 1;
  const int first = ArgMax(Row(trace.logits, last, vocab));
  std::string note;
  int drafts = 0;
  int greedy = 0;
  const bool drafting = run.loaded().draft() != nullptr;
  if (drafting) {
    SKEIN_RETURN_IF_ERROR(CompareDraftBase(context, run, mode, first, note));
    if (note.empty()) {
      SKEIN_RETURN_IF_ERROR(CompareDrafts(context, run, mode, first, vocab, note, drafts));
    }
  }
  if (mode == Mode::kQat && note.empty()) {
    if (drafting) {
      run.Restart();
      SKEIN_RETURN_IF_ERROR(run.Append(context.sequence.ids).status());
    }
    SKEIN_RETURN_IF_ERROR(CompareGreedy(context, run, first, vocab, note, greedy));
  }
  const double rows = static_cast<double>(context.sequence.rows.size());
  const double allowed = mode == Mode::kNq ? 0 : kQatRowShare * rows;
  const bool pass = static_cast<double>(diff.rows.size()) <= allowed && note.empty() &&
                    diff.close_calls <= kNqListShare * std::max(diff.list_rows, 1);
  context.out << absl::StrFormat(
      "%s %s %s: %d rows, logits %.2g of the row maximum, %d of %d lists differ (%d close calls), "
      "%d greedy tokens, %d drafts%s%s%s%s\n",
      pass ? "PASS" : "FAIL", context.label, ModeName(mode), context.sequence.rows.size(),
      diff.worst_logits, diff.rows.size(), diff.list_rows, diff.close_calls, greedy, drafts,
      diff.first.empty() ? "" : "; first: ", diff.first, note.empty() ? "" : "; ", note);
  return pass;
}

absl::StatusOr<LayerFigures> MeasureLayers(const CaseContext& context, SequenceRun& run) {
  const GoldenSequence& sequence = context.sequence;
  const worker::ModelSpec& spec = run.loaded().spec();
  auto find = [&](const char* what, int layer) {
    return context.goldens.Find(sequence, what, layer, Mode::kQat);
  };
  run.Restart();
  SKEIN_ASSIGN_OR_RETURN(
      const Trace trace,
      run.Append(sequence.ids, [&](int layer, const TensorView& stream, const TensorView& pre) {
        if (layer == 0) return;
        FromDoubles(ToDoubles(find("stream", layer - 1)), stream);
        FromDoubles(ToDoubles(find("pre", layer - 1)), pre);
      }));
  LayerFigures figures;
  double off = 0;
  double total = 0;
  const auto width = static_cast<size_t>(spec.hc * spec.hidden);
  for (int layer = 0; layer < spec.num_layers; ++layer) {
    const std::vector<double> golden = ToDoubles(find("stream", layer));
    const std::vector<double>& ours = trace.layers[static_cast<size_t>(layer)].stream;
    double sum = 0;
    for (size_t t = 0; t < sequence.ids.size(); ++t) {
      const std::span<const double> row = Row(golden, t, width);
      const double largest = std::max(MaxAbs(row), 1e-30);
      for (size_t c = 0; c < width; ++c) {
        const double error = std::abs(ours[t * width + c] - row[c]) / largest;
        sum += error;
        off += error > kElementOff ? 1 : 0;
      }
    }
    total += static_cast<double>(golden.size());
    const double mean = sum / static_cast<double>(golden.size());
    figures.mean = std::isnan(mean) ? INFINITY : std::max(figures.mean, mean);
  }
  figures.share = off / total;
  Differences diff;
  CompareDecisions(context, trace, Mode::kQat, diff);
  figures.list_rows = diff.list_rows;
  figures.list_differ = static_cast<int>(diff.rows.size());
  return figures;
}

bool JudgeLayers(const CaseContext& context, const LayerFigures& figures, double baseline_share) {
  const bool pass = figures.mean <= kLayerMean && figures.share <= 3 * baseline_share &&
                    figures.list_differ <= kNqListShare * figures.list_rows;
  context.out << absl::StrFormat(
      "%s %s layers: mean %.3g of the row maximum (limit %.0e), share off %.3g (limit 3 x %.3g), "
      "%d of %d lists differ\n",
      pass ? "PASS" : "FAIL", context.label, figures.mean, kLayerMean, figures.share,
      baseline_share, figures.list_differ, figures.list_rows);
  return pass;
}

namespace {

// Recorded logits of the prompt rows: all of them, or the largest with their ids.
struct RecordedRows {
  std::vector<double> values;
  std::vector<double> ids;  // empty: every id in order
  size_t width = 0;
  size_t id(size_t row, size_t column) const {
    return ids.empty() ? column : static_cast<size_t>(ids[row * width + column]);
  }
};

RecordedRows FindRecorded(const CaseContext& context) {
  const GoldenDir& goldens = context.goldens;
  TensorView values = goldens.Find(context.sequence, "logits", -1, Mode::kQat);
  RecordedRows out;
  if (values.absent()) {
    values = goldens.Find(context.sequence, "top_val", -1, Mode::kQat);
    out.ids = ToDoubles(goldens.Find(context.sequence, "top_id", -1, Mode::kQat));
  }
  out.values = ToDoubles(values);
  out.width = static_cast<size_t>(values.dim(1));
  return out;
}

double Margin(std::span<const double> row) {
  std::vector<double> sorted(row.begin(), row.end());
  std::nth_element(sorted.begin(), sorted.begin() + 1, sorted.end(), std::greater<>());
  return *std::max_element(row.begin(), row.end()) - sorted[1];
}

}  // namespace

absl::StatusOr<ForcedFigures> MeasureForced(const CaseContext& context, SequenceRun& run) {
  const GoldenSequence& sequence = context.sequence;
  const auto vocab = static_cast<size_t>(run.loaded().spec().vocab);
  std::vector<int32_t> tokens = sequence.ids;
  tokens.insert(tokens.end(), sequence.greedy.begin(), sequence.greedy.end());
  run.Restart();
  SKEIN_ASSIGN_OR_RETURN(const Trace trace, run.Append(tokens));
  const RecordedRows recorded = FindRecorded(context);
  ForcedFigures figures;
  figures.rows = static_cast<int>(sequence.ids.size());
  for (size_t t = 0; t < sequence.ids.size(); ++t) {
    const std::span<const double> ours = Row(trace.logits, t, vocab);
    const std::span<const double> golden = Row(recorded.values, t, recorded.width);
    double sum = 0;
    for (size_t j = 0; j < recorded.width; ++j) {
      sum += std::abs(ours[recorded.id(t, j)] - golden[j]);
    }
    figures.difference += sum / static_cast<double>(recorded.width);
    if (Margin(golden) <= kDecisiveMargin) continue;
    const size_t token = recorded.id(t, static_cast<size_t>(ArgMax(golden)));
    ++figures.covered;
    figures.wrong += static_cast<size_t>(ArgMax(ours)) == token ? 0 : 1;
  }
  for (size_t i = 0; i < sequence.greedy.size(); ++i) {
    if (sequence.greedy_margin[i] <= kDecisiveMargin) continue;
    ++figures.covered;
    const size_t t = sequence.ids.size() - 1 + i;
    figures.wrong += ArgMax(Row(trace.logits, t, vocab)) == sequence.greedy[i] ? 0 : 1;
  }
  return figures;
}

bool JudgeForced(const CaseContext& context, const ForcedFigures& figures) {
  const double mean = figures.difference / figures.rows;
  const double noise = context.sequence.qat_noise_mean;
  const bool pass = figures.wrong == 0 && figures.covered > 0 && mean <= 2 * noise;
  context.out << absl::StrFormat(
      "%s %s forced: top-1 wrong in %d of %d decisive rows, mean |dlogit| %.3g (limit 2 x %.3g)\n",
      pass ? "PASS" : "FAIL", context.label, figures.wrong, figures.covered, mean, noise);
  return pass;
}

}  // namespace skein::tests
