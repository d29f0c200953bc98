// Streams of the tiny model driven step by step as a scheduler would plan them, with drafts: what
// the speculation tests share. Single-threaded.
#pragma once

#include <bit>
#include <cstdint>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "scheduler/rejection_sampler.h"
#include "tests/worker/tiny_model.h"
#include "worker/step_executor.h"

namespace skein::tests {

using protocol::VerificationMode;

inline constexpr uint32_t kSlots = 8;
inline constexpr uint32_t kBlockTokens = 32;
inline constexpr uint32_t kBlocksEach = 12;

// A model with room for a stream in each slot.
inline TinySetup StreamSetup(bool record_steps = BackendOfTests().record_steps) {
  TinySetup setup;
  setup.max_rows = 640;
  setup.max_samples = kSlots * 6;
  setup.max_model_len = 384;
  setup.num_slots = kSlots;
  setup.num_blocks = kSlots * kBlocksEach;
  setup.max_draft_requests = kSlots;
  setup.record_steps = record_steps;
  return setup;
}

struct Token {
  int32_t token = -1;
  uint32_t logprob_bits = 0;
  std::vector<protocol::TopLogprob> top;
  friend bool operator==(const Token&, const Token&) = default;
};

// What a sequence's steps shall do.
struct Drafting {
  VerificationMode mode = VerificationMode::kGreedy;
  uint32_t depth = 0;  // of the head
  float min_survival = 0;
  bool feed = true;
  uint32_t provided = 0;  // random tokens given instead of the head's, some of them right
  uint32_t period = 1;    // drafts only in every so-manieth step
};

struct Stream {
  std::vector<int32_t> tokens;
  size_t prompt_length = 0;
  uint32_t slot = 0;
  protocol::RowSampling sampling;
  Drafting drafting;
  std::shared_ptr<const protocol::LogitEdits> edits;
  std::vector<Token> output;
  size_t wanted = 40;
  size_t computed = 0;
  size_t announced = 0;
  uint64_t num_steps = 0;
  uint64_t num_accepted = 0;
  const std::vector<Token>* truth = nullptr;  // to provide right drafts from
  std::mt19937 random{7};
};

// A prompt of ordinary token ids.
inline std::vector<int32_t> RandomPrompt(uint32_t seed, size_t length) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < length; ++i) tokens.push_back(static_cast<int32_t>(300 + random() % 3000));
  return tokens;
}

inline Stream StartStream(uint32_t seed, uint32_t slot, float temperature,
                          const Drafting& drafting) {
  Stream stream;
  stream.tokens = RandomPrompt(seed, 5 + seed % 60);
  stream.prompt_length = stream.tokens.size();
  stream.slot = slot;
  stream.sampling.temperature = temperature;
  stream.sampling.seed = 99 + seed;
  stream.sampling.num_top_logprobs = 2;
  if (seed % 3 == 1) stream.sampling.top_p = 0.9F;
  if (seed % 3 == 2) stream.sampling.top_k = 20;
  stream.drafting = drafting;
  stream.random.seed(seed);
  return stream;
}

// Tokens that the plan provides: those of the true output up to a random point, then wrong ones.
inline std::vector<int32_t> ProvidedDrafts(Stream& s) {
  std::vector<int32_t> drafts;
  const auto right = static_cast<uint32_t>(s.random() % (s.drafting.provided + 1));
  for (uint32_t i = 0; i < s.drafting.provided; ++i) {
    const size_t at = s.output.size() + i;
    const bool known = i < right && s.truth != nullptr && at < s.truth->size();
    drafts.push_back(known ? (*s.truth)[at].token : static_cast<int32_t>(s.random() % 4000));
  }
  return drafts;
}

inline protocol::SequenceStep PlanStream(Stream& s) {
  protocol::SequenceStep step;
  step.sequence = protocol::SequenceId(s.slot + 1);
  step.slot = protocol::SlotId(s.slot);
  step.fresh_slot = s.computed == 0;
  step.first_position = static_cast<uint32_t>(s.computed);
  step.tokens.assign(s.tokens.begin() + static_cast<std::ptrdiff_t>(s.computed), s.tokens.end());
  step.sample = true;
  step.sampling = s.sampling;
  if (step.fresh_slot && s.edits != nullptr) {
    protocol::SequenceEdits edits;
    edits.edits = *s.edits;
    edits.prompt_length = static_cast<uint32_t>(s.prompt_length);
    step.edits.value = std::make_shared<const protocol::SequenceEdits>(edits);
  }
  step.mode = s.drafting.mode;
  step.feed_drafter = s.drafting.feed;
  const bool drafts = s.num_steps % s.drafting.period == 0;
  if (step.tokens.size() == 1 && s.computed > 0 && drafts) {
    step.draft_depth = s.drafting.depth;
    step.min_survival = s.drafting.min_survival;
  }
  if (drafts && s.drafting.provided > 0) step.provided_drafts = ProvidedDrafts(s);
  const size_t rows = step.tokens.size() + step.draft_depth + step.provided_drafts.size();
  step.table_size_before = static_cast<uint32_t>(s.announced);
  while (s.announced * kBlockTokens < s.computed + rows) {
    step.new_blocks.emplace_back(s.slot * kBlocksEach + static_cast<uint32_t>(s.announced++));
  }
  return step;
}

inline void AppendToken(Stream& s, const protocol::RowSummary& row, int32_t token, float logprob) {
  s.tokens.push_back(token);
  s.output.push_back({token, std::bit_cast<uint32_t>(logprob), row.top});
}

inline void CommitStream(Stream& s, const std::vector<protocol::RowSummary>& rows) {
  const auto outcome = scheduler::VerifyDraft(rows, s.drafting.mode, s.sampling.seed);
  s.computed = s.tokens.size() + outcome.num_accepted;
  for (uint32_t i = 0; i < outcome.num_accepted; ++i) {
    const protocol::RowSummary& row = rows[i];
    const float logprob = s.drafting.mode == VerificationMode::kRejection ? row.draft_logprob
                          : s.drafting.mode == VerificationMode::kGreedy  ? row.argmax_logprob
                                                                          : row.plain_logprob;
    AppendToken(s, row, row.draft_token, logprob);
  }
  AppendToken(s, rows[outcome.num_accepted], outcome.token, outcome.logprob);
  ++s.num_steps;
  s.num_accepted += outcome.num_accepted;
}

inline void RunStreams(worker::LoadedModel& model, std::vector<Stream>& streams) {
  model.input().Reset();
  for (int i = 0; i < 2000; ++i) {
    protocol::StepPlan plan;
    std::vector<Stream*> order;
    for (Stream& s : streams) {
      if (s.output.size() >= s.wanted) continue;
      plan.sequences.push_back(PlanStream(s));
      order.push_back(&s);
    }
    if (order.empty()) break;
    const protocol::StepResult result = worker::RunPlan(model, plan);
    ASSERT_EQ(result.status, protocol::StepStatus::kOk) << result.message;
    for (size_t s = 0; s < order.size(); ++s) CommitStream(*order[s], result.sequences[s].rows);
  }
  for (Stream& s : streams) s.output.resize(s.wanted);
}

}  // namespace skein::tests
