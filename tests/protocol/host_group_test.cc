// Ranks that share memory, as threads and as real processes: values, order, sizes, aborts,
// deadlines and ranks that are killed.
#include "protocol/tensor/host_group.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <functional>
#include <set>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "protocol/base/clock.h"
#include "protocol/base/strings.h"
#include "tests/protocol/collective_bodies.h"

namespace skein::tests {
namespace {

using protocol::CollectiveGroup;
using protocol::Concat;
using protocol::GatherPart;
using protocol::HostGroup;
using protocol::MonotonicNow;
using ::testing::HasSubstr;

constexpr size_t kCapacity = 4096;

// A name that no other test has.
std::string NewName() {
  static int number = 0;
  return Concat("test-", ::getpid(), "-", ++number);
}

std::unique_ptr<HostGroup> Make(const std::string& name, int rank, int size) {
  auto group = HostGroup::Create({.name = name,
                                  .label = "group 1 epoch 7",
                                  .rank = rank,
                                  .size = size,
                                  .capacity = kCapacity});
  EXPECT_TRUE(group.ok()) << group.status();
  return *std::move(group);
}

std::string JoinAndRun(const std::string& name, int rank, int size, const RankBody& body) {
  const auto group = Make(name, rank, size);
  const absl::Status joined = group->Join(Soon());
  if (!joined.ok()) return Concat("rank ", rank, ": ", protocol::StatusText(joined));
  const std::string wrong = body(*group);
  return wrong.empty() ? "" : Concat("rank ", rank, ": ", wrong);
}

void RunThreads(int size, const RankBody& body) {
  const std::string name = NewName();
  std::vector<std::string> wrong(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back(
        [&, rank] { wrong[static_cast<size_t>(rank)] = JoinAndRun(name, rank, size, body); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : wrong) EXPECT_EQ(text, "");
}

pid_t Fork(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  return child;
}

void RunProcesses(int size, const RankBody& body) {
  const std::string name = NewName();
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    children.push_back(Fork([&] {
      const std::string wrong = JoinAndRun(name, rank, size, body);
      if (!wrong.empty()) std::fprintf(stderr, "%s\n", wrong.c_str());
      return wrong.empty();
    }));
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
}

class HostGroupTest : public ::testing::TestWithParam<int> {};

TEST_P(HostGroupTest, ThreadsGetWhatOthersGive) {
  RunThreads(GetParam(), EverySizeUpTo(kCapacity));
}
TEST_P(HostGroupTest, ProcessesGetWhatOthersGive) {
  RunProcesses(GetParam(), EverySizeUpTo(kCapacity));
}
TEST_P(HostGroupTest, NothingIsOverwrittenInThreads) { RunThreads(GetParam(), ManyInARow); }
TEST_P(HostGroupTest, NothingIsOverwrittenInProcesses) { RunProcesses(GetParam(), ManyInARow); }

INSTANTIATE_TEST_SUITE_P(Ranks, HostGroupTest, ::testing::Values(1, 2, 4));

TEST(HostGroup, PartsMayBeShorterThanTheirPlace) {
  RunThreads(2, [](CollectiveGroup& group) -> std::string {
    const auto rank = static_cast<size_t>(group.rank());
    const auto first = Values(group.rank(), 1, 100 * rank);
    const auto second = Values(group.rank(), 2, 8);
    std::vector<std::byte> all(2 * 100, std::byte{0xEE});
    std::vector<std::byte> all_second(16);
    const GatherPart parts[] = {{first, all, 100}, {second, all_second, 8}};
    if (!group.AllGather(parts, Soon()).ok()) return "the gather failed";
    const auto untouched = std::all_of(all.begin(), all.begin() + 100,
                                       [](std::byte value) { return value == std::byte{0xEE}; });
    if (!untouched) return "what rank 0 did not give was written";
    const auto of_one = Values(1, 1, 100);
    if (!std::equal(of_one.begin(), of_one.end(), all.begin() + 100)) return "rank 1's first part";
    const auto second_of_one = Values(1, 2, 8);
    return std::equal(second_of_one.begin(), second_of_one.end(), all_second.begin() + 8)
               ? ""
               : "rank 1's second part";
  });
}

TEST(HostGroup, ItIsAllTheSameWhoComesFirst) {
  for (const int late : {0, 1, 2}) {
    const std::string name = NewName();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&name, late, rank] {
        if (rank == late) ::poll(nullptr, 0, 60);
        EXPECT_EQ(JoinAndRun(name, rank, 3,
                             [](CollectiveGroup& group) { return GatherOnce(group, 1, 9); }),
                  "");
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

// Two ranks that have met, in this thread.
struct Pair {
  Pair() : name(NewName()), zero(Make(name, 0, 2)), one(Make(name, 1, 2)) {
    std::thread other([this] { EXPECT_TRUE(one->Join(Soon()).ok()); });
    EXPECT_TRUE(zero->Join(Soon()).ok());
    other.join();
  }
  std::string name;
  std::unique_ptr<HostGroup> zero, one;
};

absl::Status Gather(HostGroup& group, size_t bytes, absl::Time deadline) {
  const std::vector<std::byte> mine(bytes);
  std::vector<std::byte> all(static_cast<size_t>(group.size()) * bytes);
  const GatherPart part{mine, all, bytes};
  return group.AllGather({&part, 1}, deadline);
}

TEST(HostGroup, AnAbortWakesWhoWaits) {
  for (const bool by_itself : {true, false}) {
    Pair pair;
    absl::Status status;
    std::thread waiting([&] { status = Gather(*pair.zero, 8, absl::InfiniteFuture()); });
    ::poll(nullptr, 0, 50);
    const absl::Time begin = MonotonicNow();
    (by_itself ? pair.zero : pair.one)->Abort("the lease ended");
    waiting.join();
    EXPECT_LT(MonotonicNow() - begin, absl::Seconds(5));
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_EQ(status.message(), Concat("group 1 epoch 7: collective 2: aborted by rank ",
                                       by_itself ? 0 : 1, ": the lease ended"));
    pair.one->Abort("a later reason");
    EXPECT_EQ(Gather(*pair.one, 8, Soon()), status) << "the first reason stays";
  }
}

TEST(HostGroup, AnAbortReachesRanksThatMeet) {
  const std::string name = NewName();
  const auto alone = Make(name, 0, 2);
  absl::Status status;
  std::thread waiting([&] { status = alone->Join(absl::InfiniteFuture()); });
  ::poll(nullptr, 0, 50);
  alone->Abort("a new group is formed");
  waiting.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("a new group is formed"));
  const auto late = Make(NewName(), 1, 2);
  late->Abort("over before it began");
  EXPECT_EQ(late->Join(Soon()).code(), absl::StatusCode::kAborted);
}

TEST(HostGroup, WhoLeavesEndsTheGroup) {
  Pair pair;
  pair.one.reset();
  const absl::Status status = Gather(*pair.zero, 8, Soon());
  EXPECT_EQ(status.message(),
            "group 1 epoch 7: collective 2: aborted by rank 1: the rank has left");
}

TEST(HostGroup, ADeadlineNamesWhoIsMissing) {
  Pair pair;
  const absl::Status status = Gather(*pair.zero, 8, MonotonicNow() + absl::Milliseconds(30));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(),
            "group 1 epoch 7: collective 2: rank 1 has not come; it is at collective 1");
  for (const int rank : {0, 1}) {
    const absl::Status met =
        Make(NewName(), rank, 2)->Join(MonotonicNow() + absl::Milliseconds(30));
    EXPECT_EQ(met.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(met.message()), HasSubstr(Concat("rank ", 1 - rank, " did not come")));
  }
}

TEST(HostGroup, DifferentCallsAreNamed) {
  Pair pair;
  absl::Status of_one;
  std::thread other([&] {
    std::vector<std::byte> mine(24);
    of_one = pair.one->Collect(mine, Soon());
  });
  const absl::Status of_zero = Gather(*pair.zero, 8, Soon());
  other.join();
  EXPECT_EQ(of_zero.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(
      of_zero.message(),
      "group 1 epoch 7: collective 2: rank 0 is in gather of 8 bytes, rank 1 in collect of 24 "
      "bytes");
  EXPECT_EQ(of_one.code(), absl::StatusCode::kFailedPrecondition);
}

TEST(HostGroup, NothingGoesBeyondTheCapacity) {
  Pair pair;
  EXPECT_EQ(Gather(*pair.zero, kCapacity + 1, Soon()).code(), absl::StatusCode::kInvalidArgument);
  std::vector<std::byte> bytes(kCapacity + 1);
  EXPECT_EQ(pair.zero->Collect(bytes, Soon()).code(), absl::StatusCode::kInvalidArgument);
  bytes.resize(8);
  const absl::Status put = pair.zero->Put(1, kCapacity - 7, bytes);
  EXPECT_EQ(put.message(),
            "group 1 epoch 7: collective 2: 8 bytes put at 4089, at most up to 4096");
  EXPECT_FALSE(pair.zero->Put(1, SIZE_MAX, bytes).ok());
  EXPECT_TRUE(pair.zero->Put(1, kCapacity - 8, bytes).ok());
}

TEST(HostGroup, RanksOfDifferentSizeDoNotMeet) {
  const std::string name = NewName();
  const auto zero = Make(name, 0, 2);
  auto one = HostGroup::Create({.name = name, .rank = 1, .size = 2, .capacity = 2 * kCapacity});
  absl::Status of_one;
  std::thread other([&] { of_one = (*one)->Join(MonotonicNow() + absl::Milliseconds(300)); });
  const absl::Status of_zero = zero->Join(MonotonicNow() + absl::Milliseconds(300));
  other.join();
  const bool named = absl::IsFailedPrecondition(of_zero) || absl::IsFailedPrecondition(of_one);
  EXPECT_TRUE(named) << of_zero << of_one;
  EXPECT_FALSE(of_zero.ok());
  EXPECT_FALSE(of_one.ok());
}

TEST(HostGroup, OptionsAreChecked) {
  EXPECT_FALSE(HostGroup::Create({.name = "x", .rank = 2, .size = 2}).ok());
  EXPECT_FALSE(HostGroup::Create({.name = "", .rank = 0, .size = 2}).ok());
  EXPECT_FALSE(HostGroup::Create({.name = std::string(91, 'x'), .size = 2}).ok());
  EXPECT_FALSE(HostGroup::Create({.name = "x", .rank = 0, .size = 65}).ok());
}

TEST(HostGroup, ANameIsUsedByOneProcessARank) {
  const std::string name = NewName();
  const auto first = Make(name, 1, 2);
  std::thread waiting([&] { EXPECT_FALSE(first->Join(absl::InfiniteFuture()).ok()); });
  ::poll(nullptr, 0, 50);
  const absl::Status second = Make(name, 1, 2)->Join(Soon());
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.message()), HasSubstr("rank 1 cannot take its name"));
  first->Abort("done");
  waiting.join();
}

std::set<std::string> SharedFiles() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename().string();
    if (name.find("skein") != std::string::npos) names.insert(name);
  }
  return names;
}

// Rank 1 is killed where `last` says: while the ranks meet, or inside the collective after it.
void KillOneRank(bool meets) {
  const auto before = SharedFiles();
  const std::string name = NewName();
  const pid_t child = Fork([&] {
    const auto group = Make(name, 1, 3);
    if (meets && !group->Join(Soon()).ok()) return false;
    while (meets && Gather(*group, 8, absl::InfiniteFuture()).ok()) {
    }
    return group->Join(absl::InfiniteFuture()).ok();
  });
  const pid_t third = Fork([&] {
    const auto group = Make(name, 2, 3);
    const absl::Status joined = group->Join(MonotonicNow() + absl::Seconds(20));
    if (!meets) return absl::IsAborted(joined) || absl::IsDeadlineExceeded(joined);
    while (true) {
      const absl::Status status = Gather(*group, 8, absl::InfiniteFuture());
      if (!status.ok()) return absl::IsAborted(status);
    }
  });
  const auto zero = Make(name, 0, 3);
  if (meets) {
    ASSERT_TRUE(zero->Join(Soon()).ok());
    ASSERT_TRUE(Gather(*zero, 8, Soon()).ok());
  }
  ::poll(nullptr, 0, 50);  // the others sleep, waiting for this one
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (meets) {
    // The one that it was in still ends, since it had given its part.
    EXPECT_TRUE(Gather(*zero, 8, Soon()).ok());
    const absl::Status lost = Gather(*zero, 8, MonotonicNow() + absl::Milliseconds(200));
    EXPECT_EQ(lost.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(lost.message()), HasSubstr("rank 1 has not come"));
    // What a coordinator that noticed makes of it: rank 2 returns from its collective.
    zero->Abort("rank 1 is gone");
  } else {
    EXPECT_FALSE(zero->Join(MonotonicNow() + absl::Milliseconds(200)).ok());
    zero->Abort("rank 1 is gone");
    ASSERT_EQ(::kill(third, SIGKILL), 0);
  }
  ASSERT_EQ(::waitpid(third, &status, 0), third);
  if (meets) {
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  EXPECT_EQ(SharedFiles(), before);
  // The names are free again: the next epoch has others, but nothing holds on to these.
  const auto again = Make(name, 1, 2);
  EXPECT_EQ(again->Join(MonotonicNow() + absl::Milliseconds(20)).code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST(HostGroup, ARankThatIsKilledInACollectiveLeavesNothing) { KillOneRank(true); }
TEST(HostGroup, ARankThatIsKilledWhileTheyMeetLeavesNothing) { KillOneRank(false); }

class CountingObserver final : public protocol::WaitObserver {
 public:
  void OnWait() override { ++waits; }
  void OnWaitOver() override { ++ends; }
  int waits = 0, ends = 0;
};

TEST(HostGroup, TheObserverSeesEveryWaitEnd) {
  const std::string name = NewName();
  CountingObserver observer;
  auto zero = HostGroup::Create(
      {.name = name, .rank = 0, .size = 2, .capacity = kCapacity, .observer = &observer});
  const auto one = Make(name, 1, 2);
  std::thread other([&] {
    EXPECT_TRUE(one->Join(Soon()).ok());
    ::poll(nullptr, 0, 50);
    EXPECT_TRUE(Gather(*one, 8, Soon()).ok());
  });
  EXPECT_TRUE((*zero)->Join(Soon()).ok());
  EXPECT_TRUE(Gather(**zero, 8, Soon()).ok());
  other.join();
  EXPECT_GE(observer.waits, 1);
  EXPECT_EQ(observer.waits, observer.ends);
}

}  // namespace
}  // namespace skein::tests
