// The law of rejection sampling on the trained model: the joint of the next two tokens, drafted,
// verified and decided by the product's own parts, against the model's own probabilities; and the
// same test with planted errors, which it must notice.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/scheduler/chi_square.h"
#include "tests/worker/draft_stream.h"

namespace skein::tests {
namespace {

using protocol::RowSummary;
using protocol::VerificationMode;

constexpr uint32_t kLawSlots = 16;
constexpr int kSets = 20;
constexpr int kTrials = 384;
constexpr int kLongTrials = 1024;  // for the smaller errors
// Sets with planted errors: the endings of the prompt that are tried, what a look-ahead at the
// draft must add there to the likeliest token's chance, and the share of drafts that must be
// refused.
constexpr int kEndings = 200;
constexpr double kBiasMin = 0.19;
constexpr double kRefusedMin = 0.25;

enum class Plant { kNone, kRowOffByOne, kResidualIsTarget, kRecoveredOfNextRow, kLookAhead };

worker::LoadedModel& SharedModel() {
  static TinyModel* tiny = [] {
    TinySetup setup;
    setup.threads = 2;
    setup.max_rows = 256;
    setup.max_samples = kLawSlots * 3;
    setup.max_model_len = 128;
    setup.num_slots = kLawSlots;
    setup.num_blocks = kLawSlots * 4;
    setup.max_draft_requests = kLawSlots;
    return new TinyModel(setup);
  }();
  return tiny->model();
}

protocol::RowSampling SamplingOf(int set) {
  protocol::RowSampling sampling;
  sampling.temperature = 1;
  if (set % 4 == 0) sampling.temperature = 3.5F;  // broad laws show errors best
  if (set % 4 == 2) sampling.temperature = 1.8F;
  sampling.top_k = 6;
  if (set % 4 == 1) sampling.top_k = 4;
  if (set % 4 == 2) sampling.top_p = 0.8F;
  if (set % 4 == 3) sampling.min_p = 0.1F;
  return sampling;
}

// Probabilities of a row of logits under temperature and truncation, by their definition.
std::map<int32_t, double> LawOf(const kernels::TensorView& logits, int64_t row,
                                const protocol::RowSampling& sampling) {
  const float* z = reinterpret_cast<const float*>(logits.row(row));
  std::vector<int32_t> order(static_cast<size_t>(logits.dim(1)));
  for (size_t v = 0; v < order.size(); ++v) order[v] = static_cast<int32_t>(v);
  std::stable_sort(order.begin(), order.end(), [z](int32_t a, int32_t b) { return z[a] > z[b]; });
  order.resize(static_cast<size_t>(sampling.top_k));
  const double temperature = static_cast<double>(sampling.temperature);
  const auto weight = [&](int32_t v) {
    return std::exp((static_cast<double>(z[v]) - static_cast<double>(z[order[0]])) / temperature);
  };
  double total = 0;
  for (const int32_t v : order) total += weight(v);
  std::map<int32_t, double> law;
  double sum = 0;
  for (const int32_t v : order) {
    if (sum >= static_cast<double>(sampling.top_p) * total ||
        weight(v) < static_cast<double>(sampling.min_p)) {
      break;
    }
    sum += law[v] = weight(v);
  }
  for (auto& [v, p] : law) p /= sum;
  return law;
}

// One prompt in every slot; each step is a trial of its own, from the same position.
class Trials {
 public:
  explicit Trials(int set) : sampling_(SamplingOf(set)), prompt_(RandomPrompt(70, 12)) {
    prompt_.push_back(300 + set * 37);
    Start();
  }

  // Another ending of the prompt until errors can show after it; false if none of those tried is
  // so.
  bool FindTellingPrompt() {
    for (int i = 0; i < kEndings; ++i, ++prompt_.back(), Start()) {
      if (Tells()) return true;
    }
    return false;
  }

  // The model's joint law of the two tokens after the prompt.
  std::map<std::pair<int32_t, int32_t>, double> Law() {
    std::map<std::pair<int32_t, int32_t>, double> joint;
    const auto first = LawAfter(std::vector<int32_t>{prompt_.back()});
    for (const auto& [a, p] : first) {
      for (const auto& [b, q] : LawAfter({prompt_.back(), a})) joint[{a, b}] = p * q;
    }
    return joint;
  }

  std::map<std::pair<int32_t, int32_t>, int> Count(Plant plant, uint64_t seed, int trials) {
    std::map<std::pair<int32_t, int32_t>, int> counts;
    for (int trial = 0; trial < trials; trial += static_cast<int>(kLawSlots)) {
      const auto at = static_cast<uint32_t>(prompt_.size()) - 1;
      std::vector<std::vector<int32_t>> emitted(kLawSlots);
      std::vector<int32_t> before(kLawSlots, prompt_.back());
      Decide(plant, seed + static_cast<uint64_t>(trial), at, before, emitted);
      for (uint32_t i = 0; i < kLawSlots; ++i) before[i] = emitted[i][0];
      std::vector<std::vector<int32_t>> second(kLawSlots);
      Decide(plant, seed + static_cast<uint64_t>(trial), at + 1, before, second);
      for (uint32_t i = 0; i < kLawSlots; ++i) {
        ++counts[{emitted[i][0], emitted[i].size() > 1 ? emitted[i][1] : second[i][0]}];
      }
    }
    return counts;
  }

 private:
  void Start() {
    SharedModel().input().Reset();
    protocol::StepPlan plan;
    for (uint32_t slot = 0; slot < kLawSlots; ++slot) {
      protocol::SequenceStep step = Step(slot, 0, prompt_, 0);
      step.fresh_slot = true;
      step.table_size_before = 0;
      for (uint32_t i = 0; i < 4; ++i) step.new_blocks.emplace_back(slot * 4 + i);
      plan.sequences.push_back(step);
    }
    Run(plan);
  }

  // Would the first token's likeliest value gain enough if only drafts of it were verified, and is
  // the draft refused often enough?
  bool Tells() {
    constexpr uint64_t kSeed = 77'000'000;
    constexpr int kRounds = 4;
    constexpr double kSamples = kRounds * static_cast<double>(kLawSlots);
    double p = 0;
    for (const auto& [token, chance] : LawAfter({prompt_.back()})) p = std::max(p, chance);
    const auto at = static_cast<uint32_t>(prompt_.size()) - 1;
    double q = 0;
    double kept = 0;
    for (int round = 0; round < kRounds; ++round) {
      const auto plan = Plan(kSeed + static_cast<uint64_t>(round) * kLawSlots, at,
                             std::vector<int32_t>(kLawSlots, prompt_.back()));
      for (const auto& sequence : Run(plan).sequences) {
        const RowSummary& row = sequence.rows[0];
        q += row.draft_token == row.argmax_token ? 1 / kSamples : 0;
        kept += std::min(1.0, double{row.target_probability} / double{row.draft_probability}) /
                kSamples;
      }
    }
    return std::min(p, q) - p * q >= kBiasMin && 1 - kept >= kRefusedMin;
  }

  static protocol::SequenceStep Step(uint32_t slot, uint32_t first, std::vector<int32_t> tokens,
                                     uint32_t depth) {
    protocol::SequenceStep step;
    step.sequence = protocol::SequenceId(slot + 1);
    step.slot = protocol::SlotId(slot);
    step.first_position = first;
    step.tokens.assign(tokens.begin(), tokens.end());
    step.table_size_before = 4;
    step.mode = VerificationMode::kRejection;
    step.draft_depth = depth;
    step.feed_drafter = true;
    return step;
  }

  protocol::StepResult Run(const protocol::StepPlan& plan) {
    const protocol::StepResult result = worker::RunPlan(SharedModel(), plan);
    EXPECT_EQ(result.status, protocol::StepStatus::kOk) << result.message;
    return result;
  }

  std::map<int32_t, double> LawAfter(const std::vector<int32_t>& tokens) {
    protocol::StepPlan plan;
    protocol::SequenceStep step = Step(0, static_cast<uint32_t>(prompt_.size()) - 1, tokens, 0);
    step.sample = true;
    step.sampling = sampling_;
    plan.sequences.push_back(step);
    Run(plan);
    return LawOf(SharedModel().model().head().logits(1), 0, sampling_);
  }

  // A step of two drafts in every slot, from `position` on after `before`.
  protocol::StepPlan Plan(uint64_t seed, uint32_t position, const std::vector<int32_t>& before) {
    protocol::StepPlan plan;
    for (uint32_t slot = 0; slot < kLawSlots; ++slot) {
      protocol::SequenceStep step = Step(slot, position, {before[slot]}, 2);
      step.sample = true;
      step.sampling = sampling_;
      step.sampling.seed = (seed + slot) * 0x9E3779B97F4A7C15ULL;
      plan.sequences.push_back(step);
    }
    return plan;
  }

  void Decide(Plant plant, uint64_t seed, uint32_t position, const std::vector<int32_t>& before,
              std::vector<std::vector<int32_t>>& emitted) {
    const protocol::StepPlan plan = Plan(seed, position, before);
    const protocol::StepResult result = Run(plan);
    for (uint32_t slot = 0; slot < kLawSlots; ++slot) {
      std::vector<RowSummary> rows = result.sequences[slot].rows;
      Spoil(plant, rows);
      const auto outcome = scheduler::VerifyDraft(rows, VerificationMode::kRejection,
                                                  plan.sequences[slot].sampling.seed);
      for (uint32_t j = 0; j < outcome.num_accepted; ++j) {
        emitted[slot].push_back(rows[j].draft_token);
      }
      emitted[slot].push_back(outcome.token);
    }
  }

  static void Spoil(Plant plant, std::vector<RowSummary>& rows) {
    if (plant == Plant::kRowOffByOne) rows[0].target_probability = rows[1].target_probability;
    if (plant == Plant::kResidualIsTarget) rows[0].recovered_token = rows[0].plain_token;
    if (plant == Plant::kRecoveredOfNextRow) rows[0].recovered_token = rows[1].recovered_token;
    if (plant == Plant::kLookAhead && rows[0].draft_token != rows[0].argmax_token) {
      rows.resize(1);
      rows[0].draft_token = -1;
    }
  }

  const protocol::RowSampling sampling_;
  std::vector<int32_t> prompt_;
};

// p-value of the counts; rare cells are taken together. 0 when a token outside the law came out.
double PValue(const std::map<std::pair<int32_t, int32_t>, double>& law,
              const std::map<std::pair<int32_t, int32_t>, int>& counts) {
  for (const auto& [cell, count] : counts) {
    if (!law.contains(cell)) return 0;
  }
  double trials = 0;
  for (const auto& [cell, count] : counts) trials += count;
  double chi = 0, rare_mean = 0, rare_seen = 0;
  int cells = 0;
  const auto add = [&](double mean, double seen) {
    chi += (seen - mean) * (seen - mean) / mean;
    ++cells;
  };
  for (const auto& [cell, p] : law) {
    const auto found = counts.find(cell);
    const double seen = found == counts.end() ? 0 : found->second;
    if (p * trials >= 5) {
      add(p * trials, seen);
    } else {
      rare_mean += p * trials;
      rare_seen += seen;
    }
  }
  if (rare_mean > 1) add(rare_mean, rare_seen);
  return cells < 2 ? 1 : TailProbability(chi, cells - 1);
}

TEST(RejectionLawOfTheModel, KeepsTheJointOfTwoTokensAndNoticesErrors) {
  for (int set = 0; set < kSets; ++set) {
    Trials trials(set);
    const bool is_planted = set % 4 == 0;
    ASSERT_TRUE(!is_planted || trials.FindTellingPrompt()) << "set " << set;
    const auto law = trials.Law();
    const auto seed = static_cast<uint64_t>(set) * 100'000;
    EXPECT_GT(PValue(law, trials.Count(Plant::kNone, seed, kTrials)), 0.001) << "set " << set;
    if (!is_planted) continue;
    for (const Plant plant : {Plant::kRowOffByOne, Plant::kResidualIsTarget,
                              Plant::kRecoveredOfNextRow, Plant::kLookAhead}) {
      const int count =
          plant == Plant::kLookAhead || plant == Plant::kResidualIsTarget ? kLongTrials : kTrials;
      const double p = PValue(law, trials.Count(plant, seed, count));
      std::cout << "set " << set << ", planted error " << static_cast<int>(plant) << ": p " << p
                << std::endl;
      EXPECT_LT(p, 0.001) << "set " << set << " does not notice the planted error";
    }
  }
}

}  // namespace
}  // namespace skein::tests
