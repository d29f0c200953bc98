// How ranks of one group in one process meet: a thread each, exchange through memory of the host.
// Thread: the test's; the ranks' threads live for a call.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "protocol/base/clock.h"
#include "protocol/base/strings.h"
#include "protocol/tensor/host_group.h"
#include "worker/loaded_model.h"

namespace skein::tests {

inline std::string NewCommunicator() {
  static int number = 0;
  return protocol::Concat("ranks-", ::getpid(), "-", ++number);
}

// body(rank) for all at a time, that of rank 0 on the caller's thread.
template <typename Body>
void ForEachRank(size_t ranks, Body body) {
  std::vector<std::thread> threads;
  for (size_t rank = 1; rank < ranks; ++rank) {
    threads.emplace_back([&body, rank] { body(rank); });
  }
  body(0);
  for (std::thread& thread : threads) thread.join();
}

// A group for each part, which may run steps then; none for a model that is whole.
inline std::vector<std::unique_ptr<protocol::HostGroup>> MeetRanks(
    const std::vector<worker::LoadedModel*>& parts) {
  const std::string name = NewCommunicator();
  std::vector<std::unique_ptr<protocol::HostGroup>> groups(parts.size());
  ForEachRank(parts.size(), [&](size_t rank) {
    worker::RankExchange* const exchange = parts[rank]->ranks();
    if (exchange == nullptr) return;
    auto group = protocol::HostGroup::Create({.name = name,
                                              .label = "group 0 epoch 1",
                                              .rank = static_cast<int>(rank),
                                              .size = static_cast<int>(parts.size()),
                                              .capacity = exchange->capacity()});
    ASSERT_TRUE(group.ok()) << group.status();
    ASSERT_TRUE((*group)->Join(protocol::MonotonicNow() + absl::Seconds(30)).ok());
    const absl::Status entered = parts[rank]->EnterGroup(
        **group, "group 0 epoch 1", protocol::MonotonicNow() + absl::Seconds(30));
    ASSERT_TRUE(entered.ok()) << entered;
    const absl::Status recorded =
        parts[rank]->RecordInGroup(protocol::MonotonicNow() + absl::Seconds(60));
    ASSERT_TRUE(recorded.ok()) << recorded;
    groups[rank] = *std::move(group);
  });
  return groups;
}

}  // namespace skein::tests
