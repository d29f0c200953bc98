// Ranks that exchange memory of their GPUs over NCCL, which is opened at run time. A collective is
// queued behind what the device's stream has and never waits for the host, so it can be part of a
// graph; who waits for the stream asks Check meanwhile. One communicator per epoch: after an error
// it is of no use. Thread: the device thread, whose current device is the one of the communicator.
// Must never go on without another rank.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "protocol/base/dynamic_library.h"

namespace skein::protocol {

// What names a communicator; rank 0 makes it and brings it to the others.
using NcclId = std::array<std::byte, 128>;

// NCCL's functions. Any thread.
class NcclLibrary {
 public:
  // NotFound when there is no library, FailedPrecondition when it is older than 2.18 or lacks a
  // function; each says what to install.
  static absl::StatusOr<std::shared_ptr<const NcclLibrary>> Open(std::string_view name);

  absl::StatusOr<NcclId> MakeId() const;
  int version() const { return version_; }  // 22809: 2.28.9

 private:
  friend class NcclGroup;
  using Communicator = void*;
  struct Configuration;
  explicit NcclLibrary(DynamicLibrary library) : library_(std::move(library)) {}
  absl::Status Load();
  absl::Status StatusOf(int result, std::string_view what) const;

  DynamicLibrary library_;
  int version_ = 0;
  int (*get_version_)(int*) = nullptr;
  int (*get_unique_id_)(NcclId*) = nullptr;
  int (*init_)(Communicator*, int, NcclId, int, Configuration*) = nullptr;
  int (*get_async_error_)(Communicator, int*) = nullptr;
  int (*abort_)(Communicator) = nullptr;
  int (*all_gather_)(const void*, void*, size_t, int, Communicator, void*) = nullptr;
  int (*send_)(const void*, size_t, int, int, Communicator, void*) = nullptr;
  int (*receive_)(void*, size_t, int, int, Communicator, void*) = nullptr;
  int (*begin_)() = nullptr;
  int (*end_)() = nullptr;
  const char* (*error_text_)(int) = nullptr;
};

class NcclGroup {
 public:
  // One array of a gather: `each` bytes of every rank, those of rank r at r * each of `all`. `mine`
  // is apart from `all` or is this rank's place in it.
  struct Part {
    const void* mine = nullptr;
    void* all = nullptr;
    size_t each = 0;
  };

  // `label`: of the group, in errors: "group 1 epoch 7".
  NcclGroup(std::shared_ptr<const NcclLibrary> library, int rank, int size, std::string label)
      : library_(std::move(library)), rank_(rank), size_(size), label_(std::move(label)) {}
  // Ends the communicator. What was recorded with it is gone before: NCCL waits for it.
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Where an exchange is queued, and until when its connections may be made.
  struct Queue {
    void* stream = nullptr;  // a cudaStream_t
    absl::Time deadline;
  };

  // Meets the other ranks of `id`. Whatever waits for another rank, here and in exchanges, asks
  // `live` meanwhile and ends with its error; DeadlineExceeded when the rank did not come. An error
  // of NCCL counts while `live` has none.
  using Live = std::function<absl::Status()>;
  absl::Status Join(const NcclId& id, absl::Time deadline, Live live);
  // Queue an exchange. All ranks make the same calls with the same sizes. The first of each kind,
  // whose connections are made on the way, waits for them, so it cannot be recorded.
  absl::Status AllGather(std::span<const Part> parts, const Queue& queue);
  // `each` bytes for rank r from r * each of `send`; rank r's lie at r * each of `receive`.
  absl::Status AllToAll(const void* send, void* receive, size_t each, const Queue& queue);
  // What NCCL says of what was queued so far.
  absl::Status Check() const;
  // Ends what runs and the communicator: kernels of collectives that wait for a rank return. Does
  // not wait itself, since NCCL does until nothing recorded is left.
  void Abort();
  // Whether nothing that was queued waits for a rank any more.
  bool ended() const { return communicator_ == nullptr; }

 private:
  absl::Status Settle(int result, std::string_view what, absl::Time deadline) const;
  // An error, or what ended the group: who leaves it ends its communicator after that, and what
  // NCCL then says here is neither the reason nor this rank's own.
  absl::Status Told(absl::Status status) const;

  const std::shared_ptr<const NcclLibrary> library_;
  const int rank_, size_;
  const std::string label_;
  Live live_;
  NcclLibrary::Communicator communicator_ = nullptr;
  std::thread aborting_;
};

}  // namespace skein::protocol
