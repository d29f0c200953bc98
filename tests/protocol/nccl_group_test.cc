// Groups over a library that has NCCL's functions: what each rank gets, who does not come, what an
// abort ends, and what is said of a library that will not do. With NCCL itself: worker_nccl_test.
#include "protocol/tensor/nccl_group.h"

#include <array>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "protocol/base/clock.h"

namespace skein::protocol {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<const NcclLibrary> Library() {
  auto library = NcclLibrary::Open(SKEIN_FAKE_NCCL);
  EXPECT_TRUE(library.ok()) << library.status();
  return *library;
}

absl::Time Soon() { return MonotonicNow() + absl::Seconds(20); }

TEST(NcclLibrary, WhatWillNotDoIsNamedWithTheRemedy) {
  const auto none = NcclLibrary::Open("libno-such-nccl.so.2");
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(none.status().message(), HasSubstr("libno-such-nccl.so.2"));
  EXPECT_THAT(none.status().message(), HasSubstr("install libnccl2 2.18 or later"));
  const auto other = NcclLibrary::Open("libm.so.6");
  EXPECT_EQ(other.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(other.status().message(), HasSubstr("libm.so.6 has no ncclGetVersion"));
  const auto old = NcclLibrary::Open(SKEIN_OLD_NCCL);
  EXPECT_EQ(old.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(old.status().message(), HasSubstr("is version 21703; install libnccl2 2.18"));
}

// body(group, rank) for all ranks of a communicator.
template <typename Body>
void ForEach(int ranks, Body body) {
  const auto library = Library();
  const auto id = library->MakeId();
  ASSERT_TRUE(id.ok()) << id.status();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      NcclGroup group(library, rank, ranks, "group 3 epoch 9");
      const absl::Status joined = group.Join(*id, Soon(), nullptr);
      EXPECT_TRUE(joined.ok()) << joined;
      if (joined.ok()) body(group, rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(NcclGroup, EveryRankGetsWhatEveryRankGives) {
  for (const int ranks : {1, 2, 3, 4}) {
    std::atomic<int> left = ranks;
    ForEach(ranks, [&](NcclGroup& group, int rank) {
      for (int round = 0; round < 50; ++round) {
        std::vector<int32_t> mine = {rank, round}, all(2 * static_cast<size_t>(ranks));
        std::vector<char> letters(3 * static_cast<size_t>(ranks));
        // In place: the rank's own is already there.
        std::memset(letters.data() + 3 * rank, 'a' + rank + round % 9, 3);
        const std::array parts = {NcclGroup::Part{mine.data(), all.data(), 8},
                                  NcclGroup::Part{letters.data() + 3 * rank, letters.data(), 3}};
        ASSERT_TRUE(group.AllGather(parts, {nullptr, Soon()}).ok());
        for (int other = 0; other < ranks; ++other) {
          EXPECT_EQ(all[2 * static_cast<size_t>(other)], other);
          EXPECT_EQ(all[2 * static_cast<size_t>(other) + 1], round);
          EXPECT_EQ(letters[3 * static_cast<size_t>(other) + 2], 'a' + other + round % 9);
        }
      }
      // Nobody ends it under the others.
      --left;
      while (left.load() > 0) std::this_thread::yield();
    });
  }
}

TEST(NcclGroup, EveryRankGetsWhatIsForIt) {
  for (const int ranks : {1, 2, 4}) {
    std::atomic<int> left = ranks;
    ForEach(ranks, [&](NcclGroup& group, int rank) {
      std::vector<int32_t> send, receive(static_cast<size_t>(ranks));
      for (int to = 0; to < ranks; ++to) send.push_back(rank * 100 + to);
      ASSERT_TRUE(group.AllToAll(send.data(), receive.data(), 4, {nullptr, Soon()}).ok());
      for (int from = 0; from < ranks; ++from) {
        EXPECT_EQ(receive[static_cast<size_t>(from)], from * 100 + rank);
      }
      --left;
      while (left.load() > 0) std::this_thread::yield();
    });
  }
}

TEST(NcclGroup, WhoDoesNotComeIsWaitedForUntilTheDeadlineOrTheEndOfTheGroup) {
  const auto library = Library();
  const auto id = library->MakeId();
  ASSERT_TRUE(id.ok());
  NcclGroup late(library, 0, 2, "group 3 epoch 9");
  const absl::Status missed = late.Join(*id, MonotonicNow() + absl::Milliseconds(20), nullptr);
  EXPECT_EQ(missed.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(missed.message(), "group 3 epoch 9: meeting: the other ranks did not come");
  const auto next = library->MakeId();
  NcclGroup ended(library, 0, 2, "group 3 epoch 10");
  const absl::Status over =
      ended.Join(*next, Soon(), [] { return absl::AbortedError("rank 1 is gone"); });
  EXPECT_EQ(over, absl::AbortedError("rank 1 is gone"));
}

TEST(NcclGroup, AnAbortEndsAnExchangeThatWaitsAndEveryOneAfterIt) {
  std::atomic<bool> waits = false;
  ForEach(2, [&](NcclGroup& group, int rank) {
    int32_t mine = rank;
    std::array<int32_t, 2> all{};
    const NcclGroup::Part part{&mine, all.data(), 4};
    if (rank == 0) {
      while (!waits.load()) std::this_thread::yield();
      EXPECT_TRUE(group.Check().ok());
      group.Abort();
      EXPECT_EQ(group.Check(), absl::AbortedError("group 3 epoch 9: it was aborted"));
      EXPECT_EQ(group.AllGather({&part, 1}, {nullptr, Soon()}),
                absl::AbortedError("group 3 epoch 9: it was aborted"));
      return;
    }
    waits.store(true);
    const absl::Status status = group.AllGather({&part, 1}, {nullptr, Soon()});
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(status.message(), HasSubstr("NCCL: group 3 epoch 9: a gather: remote process"));
    EXPECT_EQ(group.Check().code(), absl::StatusCode::kAborted);
  });
}

// Who leaves a group says so and then ends its communicator. Another rank finds the latter when it
// looks; the reason is the former.
TEST(NcclGroup, WhatEndedTheGroupIsToldAndNotWhatNcclMakesOfIt) {
  const auto library = Library();
  const auto id = library->MakeId();
  ASSERT_TRUE(id.ok());
  absl::Status live;
  NcclGroup stays(library, 0, 2, "group 3 epoch 9");
  {
    NcclGroup leaves(library, 1, 2, "group 3 epoch 9");
    std::thread other([&] { EXPECT_TRUE(leaves.Join(*id, Soon(), nullptr).ok()); });
    EXPECT_TRUE(stays.Join(*id, Soon(), [&] { return live; }).ok());
    other.join();
  }
  int32_t mine = 0;
  std::array<int32_t, 2> all{};
  const NcclGroup::Part part{&mine, all.data(), 4};
  EXPECT_THAT(stays.AllGather({&part, 1}, {nullptr, Soon()}).message(), HasSubstr("NCCL: group 3"));
  EXPECT_THAT(stays.Check().message(), HasSubstr("NCCL: group 3"));
  live = absl::AbortedError("rank 1 leaves");
  EXPECT_EQ(stays.AllGather({&part, 1}, {nullptr, Soon()}), live);
  EXPECT_EQ(stays.Check(), live);
}

// Connections are made on the way of the first exchange: a rank that joined and then dies, or is
// late, is waited for no longer than the group says.
TEST(NcclGroup, AnExchangeWaitsUntilItsDeadlineOrTheEndOfTheGroup) {
  const auto library = Library();
  const auto id = library->MakeId();
  ASSERT_TRUE(id.ok());
  std::atomic<int> asked = -1;  // negative: the group lives
  NcclGroup waits(library, 0, 2, "group 3 epoch 9");
  NcclGroup silent(library, 1, 2, "group 3 epoch 9");
  std::thread other([&] { EXPECT_TRUE(silent.Join(*id, Soon(), nullptr).ok()); });
  const absl::Status joined = waits.Join(*id, Soon(), [&] {
    if (asked.load() < 0) return absl::OkStatus();
    return ++asked < 20 ? absl::OkStatus() : absl::AbortedError("rank 1 is gone");
  });
  other.join();
  ASSERT_TRUE(joined.ok()) << joined;
  std::array<int32_t, 2> from{}, to{};
  const NcclGroup::Part part{from.data(), to.data(), 4};
  const absl::Time begin = MonotonicNow();
  const auto in20ms = [] { return MonotonicNow() + absl::Milliseconds(20); };
  const absl::Status gather = waits.AllGather({&part, 1}, {nullptr, in20ms()});
  EXPECT_EQ(gather.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(gather.message(), "group 3 epoch 9: a gather: the other ranks did not come");
  const absl::Status exchange = waits.AllToAll(from.data(), to.data(), 4, {nullptr, in20ms()});
  EXPECT_EQ(exchange.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(exchange.message(), "group 3 epoch 9: an exchange: the other ranks did not come");
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(10));
  asked = 0;
  EXPECT_EQ(waits.AllToAll(from.data(), to.data(), 4, {nullptr, Soon()}),
            absl::AbortedError("rank 1 is gone"));
  EXPECT_EQ(asked.load(), 20);
}

}  // namespace
}  // namespace skein::protocol
