// Where a worker meets ranks of its group on other hosts: a UCX port that lives as long as the
// process, and a thread that carries messages of the group between the ports and the memory of the
// host. Two ranks of different hosts that speak to each other have one connection. What belongs to
// an older epoch is dropped and counted. A connection that breaks ends its group at once.
// Unauthenticated and unencrypted, for private networks: the name of the communicator is the key.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "protocol/tensor/group_span.h"

namespace skein::protocol {

struct UcxPortOptions;

class UcxGroupPort {
 public:
  // Errors as UcxPort::Create.
  static absl::StatusOr<std::unique_ptr<UcxGroupPort>> Create(UcxPortOptions options);
  // Ends the groups that are left, closes every endpoint and ends the thread.
  ~UcxGroupPort();
  UcxGroupPort(const UcxGroupPort&) = delete;
  UcxGroupPort& operator=(const UcxGroupPort&) = delete;

  // "ADDRESS:PORT".
  const std::string& address() const;

  // Any thread. From now on messages of older epochs than this one are dropped.
  void NoteEpoch(uint64_t epoch);
  // Carries a group until it is over.
  void Begin(std::shared_ptr<GroupSpan> span);
  // A group that it carries has something to say.
  void Wake();
  // Messages of older epochs, since the start.
  uint64_t stale_dropped() const { return stale_dropped_; }

 private:
  struct Core;
  struct Begun {
    std::shared_ptr<GroupSpan> span;
    Begun* next = nullptr;
  };

  UcxGroupPort();
  void Loop();
  void TakeBegun();

  std::unique_ptr<Core> core_;           // of the thread
  std::atomic<Begun*> begun_ = nullptr;  // groups that the thread has not taken
  std::atomic<uint64_t> newest_ = 0;     // epoch
  std::atomic<uint64_t> stale_dropped_ = 0;
  std::atomic<bool> ending_ = false;
  std::thread thread_;
};

}  // namespace skein::protocol
