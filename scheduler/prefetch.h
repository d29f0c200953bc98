// Asking for memory ahead of its turn in the loops over many sequences. Pure hints; any thread.
// Must never change what is computed.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "protocol/messages/step.h"
#include "scheduler/group_scheduler.h"
#include "scheduler/sequence.h"

namespace skein::scheduler {

// Thousands of sequences do not fit into the caches of a processor. Each loop over them asks for
// the memory of those that come next, which does not change what is computed.
inline constexpr size_t kAhead =
    16;  // sequences; half of it where memory behind a sequence is meant
inline constexpr size_t kLineBytes = 64;
// How much of a Sequence is read before a plan is filled, and by a step that decodes: see there.
inline constexpr size_t kSortedBytes = 256;
inline constexpr size_t kSteppedBytes = 464;

inline void PrefetchBytes(const void* begin, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kLineBytes) {
    __builtin_prefetch(static_cast<const char*>(begin) + at);
  }
}

// Of the sequence after next ones of `list`, at index `now`: the sequence itself, later its newest
// token.
inline void PrefetchNext(std::span<Sequence* const> list, size_t now) {
  if (now + kAhead < list.size()) PrefetchBytes(list[now + kAhead], kSteppedBytes);
  if (now + kAhead / 2 < list.size()) {
    const std::vector<int32_t>& tokens = list[now + kAhead / 2]->tokens;
    __builtin_prefetch(tokens.data() + tokens.size() - 1);
  }
}

// Of the parts that are committed after next ones: sequence, rows, and the end of its tokens.
inline void PrefetchCommit(std::span<const StepInFlight::Part> parts,
                           const protocol::StepResult& result, size_t now) {
  if (now + kAhead < parts.size()) {
    const std::vector<protocol::RowSummary>& rows = result.sequences[now + kAhead].rows;
    PrefetchBytes(parts[now + kAhead].sequence, kSteppedBytes);
    PrefetchBytes(rows.data(), rows.size() * sizeof(protocol::RowSummary));
  }
  if (now + kAhead / 2 < parts.size()) {
    const std::vector<int32_t>& tokens = parts[now + kAhead / 2].sequence->tokens;
    __builtin_prefetch(tokens.data() + tokens.size() - 1, 1);
  }
}

}  // namespace skein::scheduler
