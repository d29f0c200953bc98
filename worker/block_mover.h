// Carries out the coordinator's orders to lend and to fetch cache blocks, beside the steps: a
// thread of its own owns the channel, copies between pools and parcels are calls on the device's. A
// fetched parcel reaches the pools only after every checksum was right, and only through the actor
// thread, which knows whether its epoch still runs: nothing of an ended one is ever written.
// Move, Reset and TakeMoved belong to the actor thread.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "protocol/actor/mailbox.h"
#include "protocol/messages/move.h"
#include "protocol/tensor/block_channel.h"
#include "worker/block_parcel.h"

namespace skein::worker {

// Transfers of a worker at a time, both sides together.
inline constexpr size_t kMovesMax = 16;

// A call on the device thread, between steps.
using DeviceCall = std::function<void(LoadedModel& model)>;

// What a worker registers with of its cache.
struct CacheIdentity {
  std::string layout, numerics;
};

class BlockMover {
 public:
  // `on_device` queues a call behind the plans that were submitted before, from the actor thread;
  // what it queued is run or dropped before the mover dies. `actor` outlives the mover.
  BlockMover(std::unique_ptr<protocol::BlockChannel> channel, CacheIdentity own,
             const ParcelShape& shape, protocol::Waker& actor,
             std::function<absl::Status(DeviceCall)> on_device);
  // Closes every endpoint.
  ~BlockMover();
  BlockMover(const BlockMover&) = delete;
  BlockMover& operator=(const BlockMover&) = delete;

  // Begins a side of a transfer; its end comes with TakeMoved, whatever becomes of it.
  void Move(protocol::MoveBlocks move);
  // The epoch is over: transfers end and are not reported.
  void Reset();
  // Sides that ended since the last call.
  std::vector<protocol::BlocksMoved> TakeMoved();

 private:
  // Bytes of all parcels that are held, those of ended epochs among them.
  using HeldBytes = std::shared_ptr<std::atomic<uint64_t>>;
  // A side of a transfer. Its parcel belongs to the device thread while a call copies, to the
  // channel between an order and its end, else to nobody.
  struct Side {
    Side(protocol::MoveBlocks order, const ParcelShape& shape, HeldBytes held_bytes, absl::Time now)
        : move(std::move(order)),
          parcel(shape, move.blocks.size()),
          held(std::move(held_bytes)),
          began(now),
          deadline(now + absl::Milliseconds(move.timeout_ms)) {
      *held += parcel.bytes();
    }
    ~Side() { *held -= parcel.bytes(); }
    Side(const Side&) = delete;
    Side& operator=(const Side&) = delete;

    const protocol::MoveBlocks move;
    BlockParcel parcel;
    const HeldBytes held;
    const absl::Time began, deadline;
    size_t copied = 0;               // blocks that calls were queued for; actor thread
    std::atomic<bool> over = false;  // its epoch is: calls that wait do nothing
  };
  using SharedSide = std::shared_ptr<Side>;
  struct Cancel {
    protocol::TransferId transfer;
  };
  struct End {};
  using Order = std::variant<SharedSide, Cancel, End>;

  // Wakes the thread that waits in the channel.
  class ChannelWaker final : public protocol::Waker {
   public:
    explicit ChannelWaker(protocol::BlockChannel& channel) : channel_(channel) {}
    void Wake() override { channel_.Wake(); }

   private:
    protocol::BlockChannel& channel_;
  };

  absl::Status Check(const protocol::MoveBlocks& move) const;
  void Copy(const SharedSide& side);
  void Finish(const Side& side, const absl::Status& status);
  void OnCopied(const protocol::ChannelEvent& event);
  void OnEnd(const protocol::ChannelEvent& event);
  void Report(const protocol::MoveBlocks& move, const absl::Status& status);

  void Loop();
  bool Take(Order& order);
  absl::Status Begin(Side& side);

  const CacheIdentity own_;
  const ParcelShape shape_;
  const HeldBytes held_bytes_ = std::make_shared<std::atomic<uint64_t>>(0);
  const std::function<absl::Status(DeviceCall)> on_device_;
  std::map<protocol::TransferId, SharedSide> sides_;  // actor thread
  std::vector<protocol::BlocksMoved> moved_;          // actor thread
  std::unique_ptr<protocol::BlockChannel> channel_;   // of its thread
  ChannelWaker waker_;
  protocol::Mailbox<Order> orders_;                   // to the channel's thread
  protocol::Mailbox<protocol::ChannelEvent> ends_;    // from it
  protocol::Mailbox<protocol::ChannelEvent> copied_;  // from the device thread
  std::map<protocol::TransferId, SharedSide> held_;   // whose parcels the channel may touch
  std::thread thread_;
};

}  // namespace skein::worker
