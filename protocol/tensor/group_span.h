// One rank of a group, as the threads see it that share it: the owner of the group, which writes
// and announces, the actor, which may abort it, and the thread of the port, which carries what is
// announced to other hosts and brings what comes from there. No lock: the owner fills a message,
// then raises a number. Lives until the last of them lets go.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <netinet/in.h>

#include "absl/status/statusor.h"
#include "protocol/tensor/group_memory.h"
#include "protocol/tensor/group_wire.h"

namespace skein::protocol {

// Where a rank of a group is.
struct RankPlace {
  std::string host;     // equal for ranks that can share memory
  std::string address;  // of its GroupPort, "10.0.0.1:4000"; may be empty where no other host is
};

// What ends a group, and its memory.
class GroupSeat {
 public:
  // Owns the descriptor, which becomes readable with the first Abort.
  GroupSeat(std::string label, int rank, int abort_fd)
      : label_(std::move(label)), rank_(rank), abort_fd_(abort_fd) {}
  ~GroupSeat();
  GroupSeat(const GroupSeat&) = delete;
  GroupSeat& operator=(const GroupSeat&) = delete;

  int rank() const { return rank_; }
  int abort_fd() const { return abort_fd_; }
  // Ends the group; the first reason stays. Any thread.
  void Abort(std::string_view reason);
  bool aborted() const { return aborted_; }
  const std::string& reason() const { return reason_; }  // once aborted

  // Owner's thread, once.
  void SetMemory(std::unique_ptr<GroupMemory> memory);
  GroupMemory* memory() const { return memory_.load(); }  // null before
  bool over() const { return aborted_ || (memory() != nullptr && memory()->over()); }

  // Collectives that were done here.
  void SetDone(uint64_t number) { done_ = number; }
  uint64_t done() const { return done_; }

  // "group 1 epoch 7: collective 3".
  std::string Name(uint64_t number) const;
  absl::Status AbortedStatus(uint64_t number) const;

 private:
  void EndMemory();

  const std::string label_;
  const int rank_;
  const int abort_fd_;
  std::unique_ptr<GroupMemory> owned_;
  std::atomic<GroupMemory*> memory_ = nullptr;
  std::atomic<uint64_t> done_ = 0;
  // The first call of Abort in this process writes the reason; then `aborted_` is set.
  std::atomic<bool> abort_begun_ = false;
  std::string reason_;
  std::atomic<bool> aborted_ = false;
  std::atomic<bool> told_ = false;
};

struct GroupSpanOptions {
  std::string name = {};  // of the communicator
  uint64_t epoch = 0;
  int rank = 0;
  size_t capacity = 0;
  std::vector<RankPlace> places = {};  // by rank
};

class GroupSpan {
 public:
  // Another host of the group, and this rank's messages to it, of two collectives in turn.
  struct Host {
    std::vector<int> ranks = {};  // that are there
    int receiver = 0;             // of them: takes what this rank sends
    std::array<std::unique_ptr<WriteBatch>, 2> batches = {};
    std::array<uint64_t, 2> numbers = {};  // of the collectives that they are for
    std::array<GroupHeader, 2> headers = {};
    std::array<std::span<const std::byte>, 2> payloads = {};
    // The last collective whose message the port's thread has read.
    std::unique_ptr<std::atomic<uint64_t>> taken = std::make_unique<std::atomic<uint64_t>>(0);
  };

  // A rank of another host with which this one has a connection, and what goes over it.
  struct Peer {
    int rank = 0;
    bool is_called = false;      // this side makes the connection: the lower rank does
    sockaddr_in address = {};    // of its port
    const Host* host = nullptr;  // for which it takes what this rank sends; null: none
    bool is_source = false;      // this rank takes for its host what that one sends
  };

  static absl::StatusOr<std::shared_ptr<GroupSpan>> Create(GroupSpanOptions options,
                                                           std::shared_ptr<GroupSeat> seat);

  // Owner's thread: a write into the window of a rank of another host, in this collective.
  absl::Status Put(uint64_t number, int to, size_t offset, std::span<const std::byte> bytes);
  // Of this rank's own window, on all other hosts.
  absl::Status Give(uint64_t number, size_t offset, std::span<const std::byte> bytes);
  // The messages of the collective are complete: wake the port. Nothing once the group is over.
  void Announce(const Announcement& announcement);
  bool here(int rank) const { return host_of_[static_cast<size_t>(rank)] < 0; }

  // The port's thread.
  uint64_t announced() const { return announced_.load(std::memory_order_acquire); }
  const std::vector<Peer>& peers() const { return peers_; }
  const std::string& address(int rank) const {
    return options_.places[static_cast<size_t>(rank)].address;
  }
  // Bytes behind the header of the largest message that may come here.
  size_t bytes_max() const { return bytes_max_; }
  // Takes over what a source says; the message was whole.
  absl::Status Apply(const GroupHeader& header, std::span<const std::byte> payload);

  GroupSeat& seat() const { return *seat_; }
  const GroupSpanOptions& options() const { return options_; }

 private:
  GroupSpan(GroupSpanOptions options, std::shared_ptr<GroupSeat> seat);
  std::vector<int> LayHosts();
  absl::Status LayPeers(const std::vector<int>& local);
  // The batch of the collective; null once the group is over.
  WriteBatch* Batch(Host& host, uint64_t number);
  absl::Status ApplyWrite(const GroupHeader& header, const WindowWrite& write,
                          std::span<const std::byte> bytes);

  const GroupSpanOptions options_;
  const std::shared_ptr<GroupSeat> seat_;
  std::vector<Host> hosts_;
  std::vector<int> host_of_;  // by rank: index of its host, -1: this one
  std::vector<Peer> peers_;   // by rank, ascending
  size_t bytes_max_ = 0;
  std::atomic<uint64_t> announced_ = 0;
};

}  // namespace skein::protocol
