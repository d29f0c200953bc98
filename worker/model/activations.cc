#include "worker/model/activations.h"

#include <algorithm>
#include <cstdint>

#include "protocol/base/log.h"

namespace skein::worker {

namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kSlabBytes = size_t{16} << 20;

size_t Aligned(size_t bytes, size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

Arena::~Arena() {
  for (void* block : blocks_) device_->Free(block);
}

void* Arena::Own(absl::StatusOr<void*> memory) {
  if (!memory.ok()) {
    if (status_.ok()) status_ = memory.status();
    return nullptr;
  }
  blocks_.push_back(*memory);
  return *memory;
}

void* Arena::Bytes(size_t bytes) {
  total_ += bytes;
  bytes = std::max<size_t>(bytes, 1);
  // A block each on a host, where a sanitizer sees what lies beside it.
  if (device_->is_host()) return Own(device_->Allocate(bytes));
  const size_t wanted = Aligned(bytes, kAlignment);
  if (wanted > kSlabBytes / 4) return Own(device_->Allocate(wanted));
  if (wanted > slab_left_) {
    void* slab = Own(device_->Allocate(kSlabBytes));
    if (slab == nullptr) return nullptr;
    slab_ = static_cast<std::byte*>(slab);
    slab_left_ = kSlabBytes;
  }
  void* memory = slab_;
  slab_ += wanted;
  slab_left_ -= wanted;
  return memory;
}

void* Arena::HostBytes(size_t bytes) {
  return Own(device_->AllocateHost(std::max<size_t>(bytes, 1)));
}

kernels::TensorView Arena::Copy(const kernels::TensorView& host) {
  const size_t bytes = static_cast<size_t>(host.size()) * kernels::DTypeBytes(host.dtype);
  kernels::TensorView view = host;
  view.data = Bytes(bytes);
  if (view.data == nullptr || bytes == 0) return view;
  absl::Status status = device_->CopyIn(view.data, host.data, bytes);
  // The values may go once this returns.
  if (status.ok()) status = device_->Wait();
  if (status_.ok()) status_ = status;
  return view;
}

void Arena::Fill(void* to, const void* from, size_t bytes) {
  const absl::Status status = device_->CopyIn(to, from, bytes);
  if (status_.ok()) status_ = status;
}

Staging::Staging(Arena& arena, size_t bytes) : device_(&arena.device()), bytes_(bytes) {
  device_side_ = static_cast<std::byte*>(arena.Bytes(bytes));
  host_side_ =
      arena.device().is_host() ? device_side_ : static_cast<std::byte*>(arena.HostBytes(bytes));
}

kernels::TensorView Staging::Next(kernels::DType dtype, std::initializer_list<int64_t> shape) {
  constexpr size_t kLine = 64;
  kernels::TensorView view = kernels::MakeView(nullptr, dtype, shape);
  const size_t bytes = static_cast<size_t>(view.size()) * kernels::DTypeBytes(dtype);
  if (device_ != nullptr) {
    SKEIN_CHECK(used_ + Aligned(bytes, kLine) <= bytes_) << "a layout outgrew its staging";
    view.data = host_side_ + used_;
  }
  used_ += Aligned(bytes, kLine);
  return view;
}

void Staging::EndWith(const kernels::TensorView& last) {
  used_ = static_cast<size_t>(last.as<std::byte>() - host_side_) +
          static_cast<size_t>(last.size()) * kernels::DTypeBytes(last.dtype);
}

kernels::TensorView Staging::OnDevice(kernels::TensorView host) const {
  if (host.data != nullptr) {
    host.data = device_side_ + (host.as<std::byte>() - host_side_);
  }
  return host;
}

}  // namespace skein::worker
