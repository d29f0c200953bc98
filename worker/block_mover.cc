#include "worker/block_mover.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/base/status_macros.h"

namespace skein::worker {

using protocol::BlocksMoved;
using protocol::ChannelEvent;
using protocol::MoveBlocks;
using protocol::MoveSide;
using protocol::MoveStatus;

namespace {

// An order and a cancel of each transfer of this epoch and of those that ended while they waited.
constexpr size_t kOrdersMax = 8 * kMovesMax;
constexpr absl::Duration kLook = absl::Seconds(1);

MoveStatus StatusOf(const absl::Status& status) {
  if (status.ok()) return MoveStatus::kOk;
  if (absl::IsDeadlineExceeded(status)) return MoveStatus::kExpired;
  return absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) ||
                 absl::IsResourceExhausted(status)
             ? MoveStatus::kRefused
             : MoveStatus::kLost;
}

}  // namespace

BlockMover::BlockMover(std::unique_ptr<protocol::BlockChannel> channel, CacheIdentity own,
                       const ParcelShape& shape, protocol::Waker& actor,
                       std::function<absl::Status(DeviceCall)> on_device)
    : own_(std::move(own)),
      shape_(shape),
      on_device_(std::move(on_device)),
      channel_(std::move(channel)),
      waker_(*channel_),
      orders_(kOrdersMax, waker_),
      ends_(kOrdersMax, actor),
      copied_(kOrdersMax, actor) {
  thread_ = std::thread([this] { Loop(); });
}

BlockMover::~BlockMover() {
  while (!orders_.TryPush(End{}).ok()) std::this_thread::yield();
  thread_.join();
  channel_.reset();  // before the parcels that it may touch
}

// ---- actor thread

absl::Status BlockMover::Check(const MoveBlocks& move) const {
  if (sides_.contains(move.transfer)) {
    return absl::InvalidArgumentError("the transfer is under way");
  }
  if (sides_.size() >= kMovesMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat(sides_.size(), " transfers are under way, at most ", kMovesMax));
  }
  if (move.blocks.size() > shape_.num_blocks) {
    return absl::InvalidArgumentError(absl::StrCat("the order names ", move.blocks.size(),
                                                   " blocks, the worker has ", shape_.num_blocks));
  }
  const uint64_t bytes = BlockParcel::BytesOf(shape_, move.blocks.size());
  const uint64_t others = *held_bytes_;
  if (others + bytes > shape_.bytes_max) {
    return absl::ResourceExhaustedError(absl::StrCat("the transfer takes ", bytes,
                                                     " bytes of host memory beside ", others,
                                                     " of others, at most ", shape_.bytes_max));
  }
  if (move.side == MoveSide::kLend) return absl::OkStatus();
  if (move.cache_layout != own_.layout || move.numerics != own_.numerics) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the blocks have layout \"", move.cache_layout, "\" and numerics \"", move.numerics,
        "\", this worker has \"", own_.layout, "\" and \"", own_.numerics,
        "\"; give both groups the same model, backend, block_size and drafts"));
  }
  return absl::OkStatus();
}

void BlockMover::Report(const MoveBlocks& move, const absl::Status& status) {
  BlocksMoved& moved = moved_.emplace_back();
  moved.transfer = move.transfer;
  moved.group = move.group;
  moved.epoch = move.epoch;
  moved.side = move.side;
  moved.status = StatusOf(status);
  moved.message = std::string(status.message());
}

void BlockMover::Finish(const Side& side, const absl::Status& status) {
  Report(side.move, status);
  moved_.back().bytes = status.ok() ? side.parcel.bytes() : 0;
  moved_.back().took_us =
      static_cast<uint64_t>(absl::ToInt64Microseconds(protocol::MonotonicNow() - side.began));
  sides_.erase(side.move.transfer);
}

void BlockMover::Move(MoveBlocks move) {
  if (const absl::Status checked = Check(move); !checked.ok()) return Report(move, checked);
  const auto side =
      std::make_shared<Side>(std::move(move), shape_, held_bytes_, protocol::MonotonicNow());
  sides_[side->move.transfer] = side;
  if (side->move.side == MoveSide::kLend) return Copy(side);
  if (const absl::Status begun = orders_.TryPush(side); !begun.ok()) Finish(*side, begun);
}

// The next blocks between pools and parcel, on the device thread. Steps run between the calls: the
// blocks of a loan change nowhere, those of a fetch are nobody's.
void BlockMover::Copy(const SharedSide& side) {
  const size_t count =
      std::max<size_t>(shape_.call_bytes / std::max<size_t>(shape_.block_bytes, 1), 1);
  const size_t end = std::min(side->copied + count, side->move.blocks.size());
  const BlockRange range{std::exchange(side->copied, end), end};
  const absl::Status queued = on_device_([this, side, range](LoadedModel& model) {
    if (side->over) return;
    const bool lends = side->move.side == MoveSide::kLend;
    const absl::Status copied = lends ? Pack(model, side->move, range, side->parcel)
                                      : Unpack(model, side->move, range, side->parcel);
    copied_.TryPush({side->move.transfer, copied}).IgnoreError();  // its capacity is never reached
  });
  if (!queued.ok()) Finish(*side, queued);
}

void BlockMover::Reset() {
  for (const auto& [transfer, side] : sides_) {
    side->over = true;
    // Where no order fits, the deadline ends it.
    orders_.TryPush(Cancel{transfer}).IgnoreError();
  }
  sides_.clear();
  moved_.clear();
}

void BlockMover::OnCopied(const ChannelEvent& event) {
  const auto found = sides_.find(event.transfer);
  if (found == sides_.end()) return;  // of an epoch that ended
  const SharedSide side = found->second;
  absl::Status status = event.status;
  if (status.ok() && side->copied < side->move.blocks.size()) return Copy(side);
  if (status.ok() && side->move.side == MoveSide::kLend) {
    status = orders_.TryPush(side);
    if (status.ok()) return;
  }
  Finish(*side, status);
}

void BlockMover::OnEnd(const ChannelEvent& event) {
  const auto found = sides_.find(event.transfer);
  if (found == sides_.end()) return;
  const SharedSide side = found->second;
  if (event.status.ok() && side->move.side == MoveSide::kFetch) return Copy(side);
  Finish(*side, event.status);
}

std::vector<BlocksMoved> BlockMover::TakeMoved() {
  for (const ChannelEvent& event : copied_.TakeAll()) OnCopied(event);
  for (const ChannelEvent& event : ends_.TakeAll()) OnEnd(event);
  return std::exchange(moved_, {});
}

// ---- the channel's thread

absl::Status BlockMover::Begin(Side& side) {
  std::vector<std::span<std::byte>> pieces = side.parcel.pieces();
  if (side.move.side == MoveSide::kFetch) {
    return channel_->Fetch(side.move.transfer, side.move.address, std::move(pieces), side.deadline);
  }
  return channel_->Lend(side.move.transfer, {pieces.begin(), pieces.end()}, side.deadline);
}

// False at the end.
bool BlockMover::Take(Order& order) {
  if (std::holds_alternative<End>(order)) return false;
  if (const auto* cancel = std::get_if<Cancel>(&order)) {
    channel_->Cancel(cancel->transfer);
    return true;
  }
  const SharedSide& side = std::get<SharedSide>(order);
  const absl::Status begun = Begin(*side);
  if (begun.ok()) {
    held_[side->move.transfer] = side;
  } else {
    ends_.TryPush({side->move.transfer, begun}).IgnoreError();  // its capacity is never reached
  }
  return true;
}

void BlockMover::Loop() {
  while (true) {
    for (Order& order : orders_.TakeAll()) {
      if (!Take(order)) return;
    }
    const auto polled = channel_->Poll(protocol::MonotonicNow() + kLook);
    // Without its channel this process would lend and fetch nothing and never say so.
    SKEIN_CHECK(polled.ok()) << "the block channel fails: " << polled.status().message();
    for (const ChannelEvent& event : *polled) {
      held_.erase(event.transfer);
      ends_.TryPush(event).IgnoreError();
    }
  }
}

}  // namespace skein::worker
