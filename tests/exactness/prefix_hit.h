// What tests of prefix hits share: groups of loaded models with the scheduler, the requests that
// follow one another there, and what a cold model answers. Owns the models. Thread: the test's;
// ranks of a group have threads for a step.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "protocol/tensor/host_group.h"
#include "scheduler/cluster_scheduler.h"
#include "worker/loaded_model.h"

namespace skein::tests {

inline constexpr uint32_t kMaxModelLen = 760;
inline constexpr uint32_t kCheckpoints = 4;
inline constexpr int32_t kTokensWanted = 12;

// Of which hits are tested.
inline constexpr char kLong[] = "tests/data/conformance-v41/long700";
inline constexpr char kDraft[] = "tests/data/conformance-v41/dspark";
inline constexpr char kMixed[] = "tests/data/conformance-v41/mixed_engram";
inline constexpr char kTiny[] = "deploy/models/tiny-v41";

// Every length from now on.
void RunEveryLength();
bool EveryLength();
// Answers that were compared with cold ones so far.
uint64_t NumCompared();

using Token = scheduler::CommittedToken;

// What is asked of a model and its cache.
struct HitSetup {
  const char* checkpoint;
  uint32_t depth = 0;
  uint32_t num_blocks = 80;
  uint32_t checkpoints = kCheckpoints;  // that the scheduler may use
  bool recompute = true;                // without checkpoints
  uint32_t chunk = 1024;
  uint32_t workers = 1;       // each a group with a model of its own
  uint32_t ranks = 1;         // of each group, which share the experts and tables of its model
  uint32_t first_worker = 0;  // number of its model
  uint32_t lanes = 1;
  scheduler::BlockHash hash = &scheduler::HashTokens;

  uint32_t engines() const { return workers * ranks; }
};

// Groups with their models and the requests that follow one another there.
class HitRun {
 public:
  explicit HitRun(const HitSetup& setup, bool caching = true);

  void Add(std::vector<int32_t> prompt, float temperature = 0, int32_t wanted = kTokensWanted,
           int32_t priority = 0);
  void UseRoot(std::string root) { root_ = std::move(root); }
  void UseEdits(const protocol::LogitEdits& edits) {
    edits_ = std::make_shared<const protocol::LogitEdits>(edits);
  }

  // Every lane of every worker: what it ran is committed, and the next step planned and run.
  bool Step();
  // Until all that was added ended; what the last one got.
  const std::vector<Token>& Finish();
  // The worker is lost with all that it held, and another one takes its place.
  void Restart(uint32_t worker);
  const std::vector<Token>& TokensOf(uint64_t id) { return tokens_[id]; }
  uint32_t cached(uint64_t id) { return cached_[id]; }
  uint64_t last_id() const { return last_id_; }
  const scheduler::SchedulerCounters& counters(uint32_t engine = 0) const {
    return scheduler_.engine(engine).counters();
  }

  static constexpr uint32_t kBlock = 32;

 private:
  static scheduler::SchedulerLimits LimitsOf(const HitSetup& setup, bool caching, bool drafts);
  std::vector<worker::LoadedModel*> Models(uint32_t worker) const;  // by rank
  void StartEpoch(uint32_t worker);
  std::vector<protocol::StepResult> RunPlans(uint32_t worker,
                                             const std::vector<protocol::StepPlan>& plans);
  bool Commit(uint32_t worker, const protocol::StepResult& result);

  const HitSetup setup_;
  scheduler::ClusterScheduler scheduler_;
  std::vector<std::vector<std::unique_ptr<protocol::HostGroup>>> groups_;  // by worker and rank
  std::vector<std::vector<protocol::StepResult>> results_;  // by worker and lane, of each rank
  scheduler::StepCommit commit_;
  uint64_t epoch_ = 0;
  std::map<uint64_t, std::vector<Token>> tokens_;
  std::map<uint64_t, uint32_t> cached_;
  uint64_t last_id_ = 0;
  std::string root_;
  std::shared_ptr<const protocol::LogitEdits> edits_;
};

// `length` tokens; those from `branch` on are of `variant`.
std::vector<int32_t> Prompt(const HitSetup& setup, uint32_t length, uint32_t branch = ~0U,
                            uint32_t variant = 0);

// What a prompt of `length` tokens that shares `shared` of them gets alone on a model that is
// whole, without cache and drafts. Kept, since many setups ask for the same.
const std::vector<Token>& Cold(const HitSetup& setup, uint32_t length, uint32_t shared,
                               float temperature, int32_t wanted = kTokensWanted);

// From `from` to 700: all with --full, else each `stride`-th.
std::vector<uint32_t> Lengths(uint32_t from, uint32_t stride);
std::string NameOf(const HitSetup& setup, uint32_t shared);
float TemperatureAt(uint32_t shared);

void ExpectSame(const std::vector<Token>& got, const std::vector<Token>& want);
// The same, and counted.
void ExpectAnswer(HitRun& run, uint64_t id, const std::vector<Token>& cold);
// All that were added since `from` got what a prompt with so much shared gets cold.
void ExpectCold(HitRun& run, const HitSetup& setup, uint32_t shared, uint64_t from,
                uint32_t behind = 3);
// For each length: one prompt leaves its blocks on each engine, and another that shares so many
// tokens with it comes three times to each, which takes every way from nothing but blocks to a
// checkpoint at the end.
void HitsEqualCold(const HitSetup& setup, uint32_t stride);

}  // namespace skein::tests
