// One generation: its tokens, which are the truth, and what a worker has of it, which is a cache.
// Plain state; changed by ClusterScheduler and GroupScheduler alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "protocol/base/ids.h"
#include "protocol/base/transfer_id.h"
#include "protocol/messages/sampling_params.h"
#include "protocol/messages/step.h"
#include "scheduler/block_pool.h"
#include "scheduler/prefix_cache.h"
#include "scheduler/speculation_policy.h"
#include "scheduler/suspicion.h"
#include "scheduler/token_constraint.h"

namespace skein::scheduler {

enum class SequenceState : uint8_t {
  kQueued,   // belongs to no engine; holds neither slot nor blocks
  kRunning,  // holds a slot of its engine; takes part in steps
  kEnded,    // holds nothing; its owner forgets it
};

// What a caller gives to start a generation.
struct NewSequence {
  protocol::SequenceId id;
  std::vector<int32_t> prompt;
  protocol::SamplingParams sampling;
  protocol::StopConditions stop;
  protocol::SpeculationParams speculation = {};
  // As it is before the first generated token; null: none.
  std::shared_ptr<const TokenConstraint> constraint = nullptr;
  int32_t priority = 0;  // smaller runs earlier
  // Whose part of the service it takes, and how large that part is, relative to others. Flows are
  // served fairly, in tokens; priority counts within one.
  std::string flow = {};
  uint32_t weight = 1;
  int64_t arrived_ms = 0;  // by the caller's clock; waiting raises the priority by it
  // Whose cached blocks it may use: tenant, model, layout and salt; compared as it is.
  std::string cache_root = {};
  bool salted = false;  // by its request, for the reasons of misses
  // The one engine that may run it, even while its group is cordoned; for checks of a group.
  std::optional<uint32_t> pinned = std::nullopt;
};

// Why a decoding sequence took a step without drafts although its group has a draft head.
enum class Undrafted : uint8_t {
  kByRequest,   // its request turned them off
  kByLoad,      // drafting did not pay, or no rows or blocks were left for it
  kNearTheEnd,  // no room for a draft below max_model_len
  kByGrammar,   // its constraint binds the next token
};
inline constexpr size_t kNumUndrafted = 4;

// What a sequence has of its group's prefix cache, and where it is to leave checkpoints.
struct CacheUse {
  CacheChain chain;            // the blocks at its front that are listed there
  uint32_t shared_length = 0;  // tokens in blocks that others computed: never written
  uint32_t resume_length = 0;  // where computing began
  uint32_t exact_from = 0;     // the slot holds the whole state from this position on
  uint32_t branch = 0;         // the end of blocks that were found without state; 0: none
  uint32_t last = 0;           // the last block end before the newest token at admission
  uint32_t saved = 0;          // the last position whose state has been saved or restored
  uint32_t written = 0;        // end of the rows of the last step, drafts among them
  size_t rolling = 0;          // blocks before its own checkpoint of the answer; 0: none
};

struct Flow;

// A step of ten thousand sequences is bound by the lines of memory that it touches: what planning
// reads of each comes first, then what else a step reads, at the end what it does not.
struct alignas(64) Sequence {
  protocol::SequenceId id;
  std::vector<int32_t> tokens;  // prompt, then committed tokens
  uint32_t prompt_length = 0;
  uint32_t computed = 0;  // tokens whose rows committed steps computed
  uint32_t planned = 0;   // the same including the step in flight
  SequenceState state = SequenceState::kQueued;
  bool in_flight = false;
  bool cancelled = false;
  bool fresh_slot = false;     // the next step must tell the worker to forget the slot
  uint32_t step_failures = 0;  // failed steps since it was past where one failed
  uint32_t failed_length = 0;  // tokens that those steps were to have computed
  std::shared_ptr<TokenConstraint> constraint;  // its own, behind all generated tokens; or null
  BlockTable blocks;
  uint32_t announced_blocks = 0;  // of them known to the worker
  uint32_t lane = 0;
  DraftHistory drafts;
  protocol::SpeculationParams speculation = {};
  uint8_t undrafted = 0;  // bits by Undrafted: reasons that were counted
  protocol::StopConditions stop;

  // From here on not read before a plan is filled.
  Suspicion suspicion;
  std::optional<protocol::SlotId> slot;
  protocol::SamplingParams sampling;
  // Prompt tokens whose logprob is known or that have none, as the first; when logprobs of the
  // prompt are wanted. Replays do not score them again.
  uint32_t scored = 1;
  std::optional<uint32_t> cached_tokens;  // prompt tokens not computed at the first admission
  CacheUse cache;
  uint64_t num_steps = 0;
  uint64_t num_draft_tokens = 0;     // verified
  uint64_t num_accepted_tokens = 0;  // of them appended
  uint64_t counted_tokens = 0;       // its part of the outstanding tokens of its group
  Flow* flow = nullptr;              // of Admission
  // The engine that was emptied of it, until another one computed it again.
  std::optional<uint32_t> moving_from;

  // From here on not read by a step that decodes.
  uint32_t engine = 0;     // the rank it runs on, among all groups; meaningful while it runs
  int64_t rank = 0;        // by which its flow serves it, see RankOf; smaller is earlier
  uint64_t arrival = 0;    // order of AddSequence
  bool has_run = false;    // it was started once, and its flow was charged with its prompt
  uint64_t start_tag = 0;  // of its flow then
  std::optional<uint32_t> pinned;
  // The engine that has its cache, or gets it by a transfer: it starts there, once that is over.
  std::optional<uint32_t> moved_to;
  // Of a queued one: how often it was placed, and its tokens that each engine had cached when they
  // were looked up last; kNotLookedUp: they were not.
  static constexpr uint32_t kNotLookedUp = ~0U;
  uint32_t placings = 0;
  std::vector<uint32_t> cached_on;
  std::optional<protocol::TransferId> awaits;
  bool handed_over = false;  // a group of those that decode is to run it
  uint32_t moves_from_length =
      0;  // its hand-over, which found no room, is tried again from here on
  std::string cache_root;
  bool salted = false;

  uint32_t length() const { return static_cast<uint32_t>(tokens.size()); }
  uint32_t num_generated() const { return length() - prompt_length; }
  // Its step in flight failed.
  void Fail() {
    ++step_failures;
    failed_length = std::max(failed_length, planned);
  }
  // A step was committed. One before the step that failed proves nothing: a request must not fail
  // there without end.
  void Succeed() {
    if (computed >= failed_length) step_failures = failed_length = 0;
  }
  // The next step computes prompt (or replayed) tokens, not just the newest one.
  bool prefilling() const { return planned + 1 < length(); }
  // The next token is bound.
  bool bound() const { return constraint != nullptr && constraint->binds(); }
  // Logprobs of its prompt are wanted.
  bool scores_prompt() const { return sampling.num_prompt_logprobs >= 0; }
  // Its steps hold nothing else.
  bool alone() const { return step_failures > 0 || suspicion.on_probation(); }
};

// The rank of a sequence that arrived then: a level of priority is as much as ten seconds of
// waiting, so that who waits gains one every ten seconds on all who come later.
inline constexpr int64_t kAgeingMs = 10'000;
inline int64_t RankOf(int32_t priority, int64_t arrived_ms) {
  return int64_t{priority} * kAgeingMs + arrived_ms;
}

// Order of service within a flow, and of what runs: rank, then arrival.
struct ServiceOrder {
  bool operator()(const Sequence* a, const Sequence* b) const {
    return a->rank != b->rank ? a->rank < b->rank : a->arrival < b->arrival;
  }
};

// Why the newest token ends the sequence, if it does.
enum class EndReason : uint8_t { kStopToken, kLength };
std::optional<EndReason> EndOf(const Sequence& sequence, uint32_t max_model_len);

// Why a decoding sequence has no draft, although it could have one. Nothing of its last token,
// which needs none, and of a suspect of a failed step, which runs without.
std::optional<Undrafted> WhyUndrafted(const Sequence& sequence, uint32_t max_model_len);

// OK, or Unavailable: a worker of this geometry does not know something that the sequence asks for.
absl::Status CheckKnown(const Sequence& sequence, const protocol::CacheGeometry& geometry);

// What a worker is told of the sequence's edits with its slot: tokens that its steps will not
// bring. The sequence has some.
std::shared_ptr<const protocol::SequenceEdits> EditsOf(const Sequence& sequence);

}  // namespace skein::scheduler
