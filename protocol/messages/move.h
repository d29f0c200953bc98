// Cache blocks on their way from one worker to another: what both are told, and what each answers.
// Plain value types. Since 1.3.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/base/ids.h"
#include "protocol/base/transfer_id.h"

namespace skein::protocol {

enum class MoveSide : uint8_t {
  kLend = 0,   // keep these blocks as they are and let who knows the transfer fetch them
  kFetch = 1,  // fill these blocks, which no plan names before they are reported to be there
};

// One side of a transfer: whole blocks from the beginning of a sequence on, and the checkpoint of
// the slot state at the end of the last one. Lost with its epoch. Sender: coordinator.
struct MoveBlocks {
  TransferId transfer;
  GroupId group;  // of the receiver
  Epoch epoch;
  MoveSide side = MoveSide::kLend;
  std::vector<BlockId> blocks;  // of the receiver, in the order of the sequence
  SlotId checkpoint;            // of the receiver
  uint32_t position = 0;        // tokens before the checkpoint
  std::string address;          // kFetch: of the lender's channel
  // kFetch: layout and numerics that the lender registered with; others' blocks are refused.
  std::string cache_layout;
  std::string numerics;
  uint32_t timeout_ms = 0;  // from receipt
  friend bool operator==(const MoveBlocks&, const MoveBlocks&) = default;
};

enum class MoveStatus : uint8_t {
  kOk = 0,       // lent: they were fetched and may change; fetched: they are there
  kRefused = 1,  // the order contradicts what the worker has: nothing was moved
  kLost = 2,     // the other side is gone, or what it sent was damaged
  kExpired = 3,  // not in time
};

// The end of one side of a transfer: blocks and checkpoint are the coordinator's again, and nobody
// reads or writes them for this transfer any more. Sender: worker.
struct BlocksMoved {
  TransferId transfer;
  GroupId group;
  Epoch epoch;
  MoveSide side = MoveSide::kLend;
  MoveStatus status = MoveStatus::kOk;
  std::string message;  // why not
  uint64_t bytes = 0;
  uint64_t took_us = 0;
  friend bool operator==(const BlocksMoved&, const BlocksMoved&) = default;
};

}  // namespace skein::protocol
