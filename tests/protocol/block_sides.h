// The sides of a block transfer, each a child process of the test: UCX is in neither the test
// itself nor two sides of one process. Each side says what was wrong and ends.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "protocol/base/clock.h"
#include "protocol/base/strings.h"
#include "protocol/tensor/ucx_block_channel.h"

namespace skein::tests {

inline constexpr absl::Duration kLimit = absl::Seconds(30);
using Buffer = std::vector<std::byte>;

// Memory that the test and both sides see.
struct Shared {
  std::atomic<int> stage = 0;  // how far the sides are, for those that wait for each other
  char address[64] = {};       // of the lender
  std::atomic<bool> has_address = false;
};

template <typename T>
T* MapShared(size_t count = 1) {
  void* memory =
      ::mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<T*>(memory);
}

inline bool Await(const std::function<bool()>& done) {
  for (const absl::Time end = protocol::MonotonicNow() + kLimit; protocol::MonotonicNow() < end;) {
    if (done()) return true;
    ::poll(nullptr, 0, 1);
  }
  return false;
}

// What a side does; what was wrong, or nothing.
using Body = std::function<std::string(protocol::UcxBlockChannel&, Shared&)>;

inline pid_t Start(Shared& shared, bool lends, const Body& body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  std::string wrong;
  {
    auto channel = protocol::UcxBlockChannel::Create({});
    if (!channel.ok()) {
      wrong = std::string(channel.status().message());
    } else {
      if (lends) {
        std::snprintf(shared.address, sizeof(shared.address), "%s", (*channel)->address().c_str());
        shared.has_address = true;
      } else if (!Await([&] { return shared.has_address.load(); })) {
        ::_exit(2);
      }
      wrong = body(**channel, shared);
    }
  }
  if (!wrong.empty()) std::fprintf(stderr, "%s: %s\n", lends ? "lender" : "fetcher", wrong.c_str());
  std::fflush(stderr);
  ::_exit(wrong.empty() ? 0 : 1);
}

inline int End(pid_t child) {
  int status = 0;
  if (!Await([&] { return ::waitpid(child, &status, WNOHANG) == child; })) {
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    return -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

inline Buffer Filled(size_t bytes, uint64_t seed) {
  constexpr size_t kPeriod = 251;
  Buffer out(bytes);
  for (size_t i = 0; i < bytes && i < kPeriod; ++i) {
    out[i] = static_cast<std::byte>((i * 31 + seed) % kPeriod);
  }
  for (size_t done = kPeriod; done < bytes; done *= 2) {
    std::memcpy(out.data() + done, out.data(), std::min(done, bytes - done));
  }
  return out;
}

inline std::vector<std::span<const std::byte>> Lent(const std::vector<Buffer>& pieces) {
  return {pieces.begin(), pieces.end()};
}
inline std::vector<std::span<std::byte>> Wanted(std::vector<Buffer>& pieces) {
  return {pieces.begin(), pieces.end()};
}

// The ends of the channel's transfers until all of `count` have ended.
inline std::map<protocol::TransferId, absl::Status> Ends(
    protocol::BlockChannel& channel, size_t count, const std::function<void()>& round = nullptr) {
  std::map<protocol::TransferId, absl::Status> ends;
  for (const absl::Time limit = protocol::MonotonicNow() + kLimit;
       protocol::MonotonicNow() < limit;) {
    const auto polled =
        channel.Poll(protocol::MonotonicNow() + absl::Milliseconds(round ? 1 : 100));
    if (!polled.ok()) break;
    for (const protocol::ChannelEvent& event : *polled) ends[event.transfer] = event.status;
    if (round) round();
    if (ends.size() >= count) break;
  }
  return ends;
}

inline std::string Expect(const std::map<protocol::TransferId, absl::Status>& ends,
                          absl::StatusCode code, uint64_t id = 1) {
  const auto found = ends.find(protocol::TransferId(id));
  if (found == ends.end()) return "the transfer did not end";
  if (found->second.code() == code) return "";
  return protocol::Concat("ended with ", found->second.ToString());
}

inline absl::Time In(absl::Duration time) { return protocol::MonotonicNow() + time; }

}  // namespace skein::tests
