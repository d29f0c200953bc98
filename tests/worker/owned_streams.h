// Streams that belong to ranks of a group and run in its common steps. Thread: the test's.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/worker/draft_stream.h"
#include "tests/worker/rank_group.h"

namespace skein::tests {

// Of a stream: at most `chunk` tokens of what it has not computed.
inline protocol::SequenceStep PlanChunk(Stream& stream, size_t chunk) {
  const size_t left = stream.tokens.size() - stream.computed;
  protocol::SequenceStep step = PlanStream(stream);
  if (left <= chunk) return step;
  step.tokens.resize(chunk);
  step.sample = false;
  step.draft_depth = 0;
  step.provided_drafts.clear();
  step.feed_drafter = stream.drafting.feed;
  stream.computed += chunk;
  return step;
}

struct Owned {
  Stream stream;
  size_t rank = 0;
  size_t chunk = 10'000;
  size_t from_step = 0;  // first step that it takes part in
};

// Runs streams in common steps of the group until each has what it wants. `change` may add to a
// step of a stream.
using Change = std::function<void(Owned&, protocol::SequenceStep&)>;
inline void RunOwned(RankGroup& group, std::vector<Owned>& owned, const Change& change = nullptr) {
  for (size_t i = 0; i < 500; ++i) {
    std::vector<protocol::StepPlan> plans(static_cast<size_t>(group.size()));
    std::vector<std::pair<Owned*, size_t>> running;
    bool left = false;
    for (Owned& one : owned) {
      if (one.stream.output.size() >= one.stream.wanted) continue;
      left = true;
      if (i < one.from_step) continue;
      auto& sequences = plans[one.rank].sequences;
      running.emplace_back(&one, sequences.size());
      sequences.push_back(PlanChunk(one.stream, one.chunk));
      if (change) change(one, sequences.back());
    }
    if (!left) return;
    const std::vector<protocol::StepResult> results = group.Run(plans);
    if (::testing::Test::HasFailure()) return;
    for (const auto& [one, at] : running) {
      const auto& rows = results[one->rank].sequences[at].rows;
      if (!rows.empty()) CommitStream(one->stream, rows);
    }
  }
  FAIL() << "the streams do not end";
}

inline Owned OwnedStream(uint32_t seed, size_t rank, uint32_t slot, float temperature,
                         const Drafting& drafting) {
  Owned one;
  one.stream = StartStream(seed, slot, temperature, drafting);
  one.stream.wanted = 6 + seed % 11;
  one.rank = rank;
  return one;
}

}  // namespace skein::tests
