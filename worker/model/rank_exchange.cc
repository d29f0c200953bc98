#include "worker/model/rank_exchange.h"

#include <algorithm>
#include <array>

#include "protocol/base/log.h"

namespace skein::worker {

using kernels::DType;
using kernels::TensorView;

namespace {

size_t BytesOf(const TensorView& view) {
  return static_cast<size_t>(view.size()) * kernels::DTypeBytes(view.dtype);
}

std::span<std::byte> SpanOf(const TensorView& view) {
  return {view.as<std::byte>(), BytesOf(view)};
}

}  // namespace

absl::Status RankExchange::Gather(std::initializer_list<Gathered> arrays) {
  std::array<protocol::GatherPart, protocol::kGatherPartsMax> parts;
  SKEIN_CHECK(arrays.size() <= parts.size());
  size_t count = 0;
  for (const Gathered& array : arrays) {
    if (array.all.absent()) continue;
    const auto ranks = static_cast<size_t>(size());
    protocol::GatherPart& part = parts[count++];
    part.mine = array.mine.absent() ? std::span<const std::byte>{} : SpanOf(array.mine);
    part.all = SpanOf(array.all);
    part.each = part.all.size() / ranks;
    if (group_ == nullptr) std::copy(part.mine.begin(), part.mine.end(), part.all.begin());
  }
  if (group_ == nullptr) return absl::OkStatus();
  return group_->AllGather({parts.data(), count}, deadline_);
}

absl::Status RankExchange::GatherValue(std::span<const std::byte> mine, std::span<std::byte> all) {
  const protocol::GatherPart part{mine, all, mine.size()};
  return group_->AllGather({&part, 1}, deadline_);
}

absl::Status RankExchange::Put(int to, size_t offset, std::span<const std::byte> bytes) {
  return group_->Put(to, offset, bytes);
}

absl::Status RankExchange::Collect(const TensorView& mine) {
  return group_->Collect(SpanOf(mine), deadline_);
}

size_t ExchangeBytes(const ModelSpec& spec, const Numerics& numerics, int max_rows) {
  constexpr size_t kPad = 64 * protocol::kGatherPartsMax;
  const auto rows = static_cast<size_t>(max_rows);
  const auto hidden = static_cast<size_t>(spec.hidden);
  const auto k =
      static_cast<size_t>(std::max(spec.experts_per_token, spec.dspark.experts_per_token));
  const size_t act = kernels::DTypeBytes(numerics.act);
  const size_t wide = kernels::DTypeBytes(numerics.wide);
  const size_t dispatch = rows * (hidden * act + (hidden + 31) / 32 + k * (4 + wide)) + kPad;
  const size_t combine = rows * k * hidden * act;
  const auto table =
      static_cast<size_t>(spec.engram.columns()) * static_cast<size_t>(spec.engram.head_dim);
  const size_t engram =
      std::max(rows * table * act, rows * static_cast<size_t>(spec.engram.ngram) * 4 + kPad);
  return std::max({dispatch, combine, engram, size_t{4096}});
}

}  // namespace skein::worker
