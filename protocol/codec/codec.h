// Value types <-> Cap'n Proto bytes. The receiving side trusts nothing: traversal, nesting and list
// limits come before any allocation, and what a reader throws becomes a status.
// Pure functions, any thread. Must never let a KJ type out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "protocol/messages/message.h"

namespace skein::protocol {

// The type field of a frame. Numbers are part of the wire: appended, never reused.
enum class MessageType : uint16_t {
  kStepPlan = 1,
  kStepResult = 2,
  kRegisterWorker = 3,
  kFormGroup = 4,
  kGroupFormed = 5,
  kAbortEpoch = 6,
  kHeartbeat = 7,
  kLeaseGrant = 8,
  // 9 and 10 were the drain of 1.0, which nobody sent.
  kShutdown = 11,
  kMoveBlocks = 12,
  kBlocksMoved = 13,
};

// Documented maxima, enforced by both sides.
inline constexpr size_t kBodyBytesMax = (1 << 20) - 128;  // with the frame header within 1 MiB
inline constexpr size_t kPlanSequencesMax = 4096;
inline constexpr size_t kStepTokensMax = 131'072;  // of one sequence
inline constexpr size_t kStepBlocksMax = 131'072;  // appended to one sequence's table
inline constexpr size_t kSummaryRowsMax = 64;
inline constexpr size_t kStepDraftsMax = kSummaryRowsMax - 1;  // of one sequence
inline constexpr size_t kEditTokensMax = 262'144;              // of one list of a sequence's edits
inline constexpr size_t kMaskWordsMax = 16'384;
inline constexpr size_t kTopLogprobsMax = 32;
inline constexpr size_t kTextBytesMax = 4096;
inline constexpr size_t kFeaturesMax = 64;
inline constexpr size_t kRanksMax = 64;             // of a group
inline constexpr size_t kLayersMax = 256;           // with experts
inline constexpr size_t kExpertsMax = 4096;         // of a layer
inline constexpr size_t kMovedBlocksMax = 131'072;  // of one transfer
inline constexpr int kNestingMax = 8;

MessageType TypeOf(const Message& message);

// "StepPlan", for logs and metrics; "unknown" for a number that names no type.
std::string_view MessageTypeName(MessageType type);

// ResourceExhausted when a list, text or the whole is over its maximum.
absl::StatusOr<std::vector<std::byte>> EncodeMessage(const Message& message);

// InvalidArgument naming type, field and limit when `body` is not one well-formed message of
// `type`.
absl::StatusOr<Message> DecodeMessage(MessageType type, std::span<const std::byte> body);

}  // namespace skein::protocol
