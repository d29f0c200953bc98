#include "worker/model/rank_exchange.h"

#include <algorithm>
#include <array>
#include <vector>

#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"

namespace skein::worker {

using kernels::DType;
using kernels::TensorView;

namespace {

size_t BytesOf(const TensorView& view) {
  return static_cast<size_t>(view.size()) * kernels::DTypeBytes(view.dtype);
}

// What NCCL takes of a GPU for a rank of its communicator: buffers of each channel to each rank
// that it is connected with. An allowance, not a measurement.
constexpr uint64_t kNcclBytes = uint64_t{256} << 20;

// Of a token, in the layer that chooses most.
int MostExperts(const ModelSpec& spec) {
  return std::max(spec.experts_per_token, spec.dspark.experts_per_token);
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
    if (group_ == nullptr && !on_device())
      std::copy(part.mine.begin(), part.mine.end(), part.all.begin());
  }
  if (on_device()) return GatherOnDevice({parts.data(), count});
  if (group_ == nullptr) return absl::OkStatus();
  return group_->AllGather({parts.data(), count}, deadline_);
}

// Whoever has fewer rows sends what lies behind them in its place of `all`.
absl::Status RankExchange::GatherOnDevice(std::span<const protocol::GatherPart> parts) {
  std::array<protocol::NcclGroup::Part, protocol::kGatherPartsMax> queued;
  for (size_t i = 0; i < parts.size(); ++i) {
    const protocol::GatherPart& part = parts[i];
    std::byte* own = part.all.data() + static_cast<size_t>(rank()) * part.each;
    const bool whole = part.mine.size() == part.each && nccl_ != nullptr;
    if (!whole) SKEIN_RETURN_IF_ERROR(device_.Move(own, part.mine.data(), part.mine.size()));
    queued[i] = {whole ? part.mine.data() : own, part.all.data(), part.each};
  }
  return nccl_ == nullptr ? absl::OkStatus()
                          : nccl_->AllGather({queued.data(), parts.size()}, Queue());
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

absl::Status RankExchange::SendHome(const TensorView& rows, const TensorView& home) {
  const std::span<std::byte> from = SpanOf(rows);
  const std::span<std::byte> to = SpanOf(home);
  if (nccl_ == nullptr) return device_.Move(to.data(), from.data(), from.size());
  return nccl_->AllToAll(from.data(), to.data(), from.size() / static_cast<size_t>(size()),
                         Queue());
}

absl::Status RankExchange::Enter(protocol::CollectiveGroup& group, const std::string& label,
                                 absl::Time deadline) {
  group_ = &group;
  deadline_ = deadline;
  if (!on_device()) return absl::OkStatus();
  const absl::Status status = MeetOnDevice(label, deadline);
  if (status.ok()) return status;
  group.Abort(protocol::StatusText(status));
  Leave();
  return status;
}

absl::Status RankExchange::MeetOnDevice(const std::string& label, absl::Time deadline) {
  protocol::NcclId id{};
  std::vector<protocol::NcclId> all(static_cast<size_t>(size()));
  if (rank() == 0) {
    SKEIN_ASSIGN_OR_RETURN(id, library_->MakeId());
  }
  SKEIN_RETURN_IF_ERROR(
      GatherValue(std::as_bytes(std::span(&id, 1)), std::as_writable_bytes(std::span(all))));
  SKEIN_RETURN_IF_ERROR(device_.Wait());  // it is the current device of this thread from now on
  nccl_ = std::make_unique<protocol::NcclGroup>(library_, rank(), size(), label);
  SKEIN_RETURN_IF_ERROR(nccl_->Join(all[0], deadline, [this] { return group_->Live(); }));
  device_.SetWatch([this] { return Watch(); });
  return Connect();
}

absl::Status RankExchange::Connect() {
  constexpr size_t kEach = 256;
  const size_t bytes = kEach * static_cast<size_t>(size());
  SKEIN_ASSIGN_OR_RETURN(void* memory, device_.Allocate(2 * bytes));
  auto* from = static_cast<std::byte*>(memory);
  const protocol::NcclGroup::Part part{from, from + bytes, kEach};
  absl::Status status = nccl_->AllGather({&part, 1}, Queue());
  if (status.ok()) status = nccl_->AllToAll(from, from + bytes, kEach, Queue());
  const absl::Status waited = device_.Wait();
  device_.Free(memory);
  return status.ok() ? waited : status;
}

void RankExchange::Leave() {
  device_.SetWatch(nullptr);
  nccl_.reset();
  group_ = nullptr;
}

absl::Status RankExchange::Watch() {
  // Told once: what is queued after it waits for nobody.
  if (nccl_->ended()) return absl::OkStatus();
  absl::Status status = group_->Live();
  if (status.ok()) status = nccl_->Check();
  if (status.ok() && protocol::MonotonicNow() > deadline_) {
    status = absl::DeadlineExceededError("an exchange of the step did not end: a rank is late");
  }
  if (status.ok()) return status;
  group_->Abort(protocol::StatusText(status));
  nccl_->Abort();
  return status;
}

uint64_t GroupBytes(const ModelSpec& spec, const Numerics& numerics, const Shard& shard,
                    int max_rows) {
  if (shard.whole()) return 0;
  const auto rows = static_cast<uint64_t>(max_rows);
  const auto all = static_cast<uint64_t>(shard.num_ranks) * rows;
  const auto hidden = static_cast<uint64_t>(spec.hidden);
  const auto k = static_cast<uint64_t>(MostExperts(spec));
  const uint64_t act = kernels::DTypeBytes(numerics.act);
  const uint64_t wide = kernels::DTypeBytes(numerics.wide);
  // Those of MoeScratch: rows, scales, choices and weights; products on their way out and home.
  const uint64_t gathered =
      all * (hidden * act + (hidden + 31) / 32 + k * (4 + wide)) + rows * k * 4;
  const uint64_t products = 2 * all * k * hidden * act;
  // Every layer keeps its choices.
  const auto layers = static_cast<uint64_t>(spec.num_layers + spec.dspark.stages);
  return gathered + products + layers * rows * k * 4 +
         static_cast<uint64_t>(shard.num_ranks) * kNcclBytes;
}

size_t ExchangeBytes(const ModelSpec& spec, const Numerics& numerics, int max_rows) {
  constexpr size_t kPad = 64 * protocol::kGatherPartsMax;
  const auto rows = static_cast<size_t>(max_rows);
  const auto hidden = static_cast<size_t>(spec.hidden);
  const auto k = static_cast<size_t>(MostExperts(spec));
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
