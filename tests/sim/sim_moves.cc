// The part of SimStepRunner that moves cache blocks: packed and unpacked between steps at later
// virtual times, fetched by whoever is told the name, lost or late as the seed has it.
#include <utility>

#include "tests/sim/sim_step_runner.h"

namespace skein::tests {

using protocol::MoveSide;
using protocol::MoveStatus;

namespace {

constexpr absl::Duration kMoveMax = absl::Milliseconds(40);
constexpr absl::Duration kAskAgain = absl::Milliseconds(30);

}  // namespace

void SimStepRunner::Later(absl::Duration delay, protocol::TransferId transfer,
                          void (SimStepRunner::*what)(protocol::TransferId)) {
  system_.After(delay, [this, what, transfer, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.expired() && moves_.contains(transfer)) (this->*what)(transfer);
  });
}

absl::Status SimStepRunner::Move(protocol::MoveBlocks move) {
  const protocol::TransferId transfer = move.transfer;
  if (moves_.contains(transfer)) {
    events_.on_violation(3, "a transfer is ordered twice");
    return absl::OkStatus();
  }
  const bool lends = move.side == MoveSide::kLend;
  Later(absl::Milliseconds(move.timeout_ms), transfer, &SimStepRunner::ExpireMove);
  moves_.emplace(transfer, std::move(move));
  Later(system_.random().Between(absl::ZeroDuration(), kMoveMax), transfer,
        lends ? &SimStepRunner::PackMove : &SimStepRunner::FetchMove);
  return absl::OkStatus();
}

std::vector<protocol::BlocksMoved> SimStepRunner::TakeMoved() { return std::exchange(moved_, {}); }

void SimStepRunner::EndMove(protocol::TransferId transfer, MoveStatus status) {
  const protocol::MoveBlocks& move = moves_.at(transfer);
  protocol::BlocksMoved& moved = moved_.emplace_back();
  moved.transfer = transfer;
  moved.group = move.group;
  moved.epoch = move.epoch;
  moved.side = move.side;
  moved.status = status;
  if (move.side == MoveSide::kLend) transfers_.Withdraw(transfer);
  moves_.erase(transfer);
  actor_.Wake();
}

void SimStepRunner::ExpireMove(protocol::TransferId transfer) {
  EndMove(transfer, MoveStatus::kExpired);
}

void SimStepRunner::PackMove(protocol::TransferId transfer) {
  const protocol::MoveBlocks& move = moves_.at(transfer);
  SimTransfers::Offer offer;
  offer.parcel = memory_.Export(move.blocks, move.checkpoint);
  offer.lender = alive_;
  offer.on_fetched = [this, transfer](bool taken) {
    if (moves_.contains(transfer)) EndMove(transfer, taken ? MoveStatus::kOk : MoveStatus::kLost);
  };
  transfers_.Lend(transfer, std::move(offer));
}

void SimStepRunner::FetchMove(protocol::TransferId transfer) {
  SimTransfers::Offer* offer = transfers_.Find(transfer);
  if (offer == nullptr) return Later(kAskAgain, transfer, &SimStepRunner::FetchMove);
  const bool lost = system_.random().OneIn(options_.lose_moves_one_in);
  if (!lost) arrived_[transfer] = offer->parcel;
  offer->on_fetched(!lost);
  if (lost) return EndMove(transfer, MoveStatus::kLost);
  Later(system_.random().Between(absl::ZeroDuration(), kMoveMax), transfer,
        &SimStepRunner::UnpackMove);
}

void SimStepRunner::UnpackMove(protocol::TransferId transfer) {
  const protocol::MoveBlocks& move = moves_.at(transfer);
  memory_.Import(arrived_.at(transfer), move.blocks, move.checkpoint);
  arrived_.erase(transfer);
  EndMove(transfer, MoveStatus::kOk);
}

// The epoch is over: nothing of its transfers is written or reported.
void SimStepRunner::ForgetMoves() {
  for (const auto& [transfer, move] : moves_) {
    if (move.side == MoveSide::kLend) transfers_.Withdraw(transfer);
  }
  moves_.clear();
  moved_.clear();
  arrived_.clear();
}

}  // namespace skein::tests
