#include "protocol/codec/moves_codec.h"

#include "protocol/base/status_macros.h"
#include "protocol/codec/text_codec.h"

namespace skein::protocol {
namespace {

absl::Status ReadSide(uint8_t in, std::string_view field, MoveSide& out) {
  if (in > static_cast<uint8_t>(MoveSide::kFetch)) {
    return Malformed(field, Concat(in, " names no side"));
  }
  out = static_cast<MoveSide>(in);
  return absl::OkStatus();
}

}  // namespace

absl::Status Write(const MoveBlocks& in, wire::MoveBlocks::Builder out) {
  if (in.blocks.size() > kMovedBlocksMax) {
    return TooLarge("MoveBlocks.blocks", in.blocks.size(), kMovedBlocksMax);
  }
  out.setTransfer(in.transfer.value());
  out.setGroup(in.group.value());
  out.setEpoch(in.epoch.value());
  out.setSide(static_cast<uint8_t>(in.side));
  auto blocks = out.initBlocks(static_cast<uint32_t>(in.blocks.size()));
  for (uint32_t i = 0; i < blocks.size(); ++i) blocks.set(i, in.blocks[i].value());
  out.setCheckpoint(in.checkpoint.value());
  out.setPosition(in.position);
  WriteText(in.address, [&](capnp::Text::Reader text) { out.setAddress(text); });
  WriteText(in.cache_layout, [&](capnp::Text::Reader text) { out.setCacheLayout(text); });
  WriteText(in.numerics, [&](capnp::Text::Reader text) { out.setNumerics(text); });
  out.setTimeoutMs(in.timeout_ms);
  return absl::OkStatus();
}

absl::Status Read(wire::MoveBlocks::Reader in, MoveBlocks& out) {
  out.transfer = TransferId(in.getTransfer());
  out.group = GroupId(in.getGroup());
  out.epoch = Epoch(in.getEpoch());
  SKEIN_RETURN_IF_ERROR(ReadSide(in.getSide(), "MoveBlocks.side", out.side));
  const auto blocks = in.getBlocks();
  SKEIN_RETURN_IF_ERROR(CheckSize(blocks, "MoveBlocks.blocks", kMovedBlocksMax));
  out.blocks.reserve(blocks.size());
  for (const uint32_t block : blocks) out.blocks.push_back(BlockId(block));
  out.checkpoint = SlotId(in.getCheckpoint());
  out.position = in.getPosition();
  out.timeout_ms = in.getTimeoutMs();
  SKEIN_RETURN_IF_ERROR(ReadText(in.getAddress(), "MoveBlocks.address", out.address));
  SKEIN_RETURN_IF_ERROR(ReadText(in.getCacheLayout(), "MoveBlocks.cache_layout", out.cache_layout));
  return ReadText(in.getNumerics(), "MoveBlocks.numerics", out.numerics);
}

absl::Status Write(const BlocksMoved& in, wire::BlocksMoved::Builder out) {
  out.setTransfer(in.transfer.value());
  out.setGroup(in.group.value());
  out.setEpoch(in.epoch.value());
  out.setSide(static_cast<uint8_t>(in.side));
  out.setStatus(static_cast<uint8_t>(in.status));
  WriteText(in.message, [&](capnp::Text::Reader text) { out.setMessage(text); });
  out.setBytes(in.bytes);
  out.setTookUs(in.took_us);
  return absl::OkStatus();
}

absl::Status Read(wire::BlocksMoved::Reader in, BlocksMoved& out) {
  out.transfer = TransferId(in.getTransfer());
  out.group = GroupId(in.getGroup());
  out.epoch = Epoch(in.getEpoch());
  SKEIN_RETURN_IF_ERROR(ReadSide(in.getSide(), "BlocksMoved.side", out.side));
  if (in.getStatus() > static_cast<uint8_t>(MoveStatus::kExpired)) {
    return Malformed("BlocksMoved.status", Concat(in.getStatus(), " names no status"));
  }
  out.status = static_cast<MoveStatus>(in.getStatus());
  out.bytes = in.getBytes();
  out.took_us = in.getTookUs();
  return ReadText(in.getMessage(), "BlocksMoved.message", out.message);
}

}  // namespace skein::protocol
