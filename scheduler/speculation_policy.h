// How many tokens to draft for each sequence of a step: from what drafts were accepted so far, what
// steps cost at each size, and how many sequences share the step. Causal: a choice uses committed
// steps alone, never the drafts it decides about, so rejection sampling keeps the distribution
// (catalogue section 7.7). No clock: times come in with the results. One caller, the scheduler.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace skein::scheduler {

// What is known of one sequence's drafts; part of the sequence.
struct DraftHistory {
  double expected = 0;  // accepted drafts that the positions' averages foretold, decaying
  double accepted = 0;  // accepted drafts, decaying
};

// Expected time of an operation by its size, learnt from measurements: between measured sizes it is
// interpolated, above them the last slope goes on, below them time is proportional. So what was
// never measured counts as cheap and will be tried.
class CostCurve {
 public:
  void Observe(uint32_t size, double cost);
  // Cost at `size`; 0 before the first measurement.
  double At(uint32_t size) const;

 private:
  struct Point {
    uint32_t size = 0;
    double cost = 0;
    double count = 0;  // of measurements
  };
  std::vector<Point> points_;  // ascending sizes
};

// Drafts of one sequence in one step at most.
inline constexpr uint32_t kDepthMax = 63;

enum class Adaptation : uint8_t {
  kAdaptive,  // depth follows acceptance and load
  kFixed,     // always the most that is allowed
};

// Acceptance of a draft before anything was measured.
inline constexpr double kPriorAcceptance = 0.7;

struct SpeculationSettings {
  uint32_t max_depth = 0;  // 0: no speculation
  Adaptation adaptation = Adaptation::kAdaptive;
};

class SpeculationPolicy {
 public:
  explicit SpeculationPolicy(const SpeculationSettings& settings);

  // A sequence that decodes in the step.
  struct Candidate {
    uint32_t depth_max = 0;  // by request, length limit and worker
    DraftHistory history;
  };
  struct Choice {
    std::vector<uint32_t> depths;  // one per candidate
    float min_survival = 0;        // see SequenceStep
    bool feed_drafter = false;     // drafting pays, or may soon
  };
  // Depths of a step that also computes `other_rows` rows: of all numbers of drafts the one with
  // the most expected tokens per time, most promising drafts first.
  Choice Choose(std::span<const Candidate> candidates, uint32_t other_rows);

  // A step ended: it verified `rows` rows in all and drafted for `num_drafted` sequences.
  struct StepCost {
    uint32_t rows = 0;
    uint32_t num_drafted = 0;
    uint64_t device_time_us = 0;  // of the whole step
    uint64_t draft_time_us = 0;
  };
  void ObserveStep(const StepCost& cost);
  // Of `confidences.size()` drafts of a sequence the first `num_accepted` were kept.
  void ObserveDrafts(std::span<const float> confidences, uint32_t num_accepted,
                     DraftHistory& history);

  // What a step costs by its rows, without the time of drafting.
  const CostCurve& forward_cost() const { return forward_; }
  // What drafting adds to it, by the number of sequences that are drafted for.
  const CostCurve& draft_cost() const { return draft_; }

 private:
  struct Draft {
    float survival = 0;
    uint32_t candidate = 0;
  };

  void Rank(std::span<const Candidate> candidates);
  void SortBySurvival();
  uint32_t BestCount(uint32_t rows, uint32_t tokens, size_t num_candidates, double* throughput);
  uint32_t Take(uint32_t count, Choice& choice) const;
  void MayBeginProbe(uint32_t rows, uint32_t num_sequences);
  void Rest(std::span<const Candidate> candidates, uint32_t rows, Choice& choice);

  const SpeculationSettings settings_;
  std::vector<double> position_rate_;  // acceptance by draft index, over all sequences
  std::vector<double> position_seen_;  // drafts that were reached, by index
  // Of all reached drafts, averaged: the share that was kept and what the head promised.
  double kept_ = kPriorAcceptance;
  double promised_ = kPriorAcceptance;
  CostCurve forward_, draft_;
  std::vector<Draft> drafts_, ranked_;  // of the Choose in progress: as they came, sorted
  std::vector<uint32_t> depths_;        // the same
  uint32_t drafted_max_ = 0;            // sequences that a measured step drafted for, at most
  uint32_t steps_without_draft_ = 0;
  uint32_t steps_fed_;          // the drafter is fed for so many steps without a draft
  uint32_t steps_until_probe_;  // without a draft
  uint32_t probe_steps_left_ = 0;
  double total_us_ = 0, probe_us_ = 0;  // of all steps; what attempts were charged of it
};

}  // namespace skein::scheduler
