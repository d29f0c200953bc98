// Groups whose ranks are on several hosts, each rank a real process with a port of its own. A host
// is a name here: ranks of one share memory, the others meet over UCX. Values, order, aborts,
// deadlines, ranks that are killed or stopped, and epochs that are over.
#include "protocol/tensor/ucx_group_port.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "protocol/base/clock.h"
#include "protocol/base/strings.h"
#include "protocol/tensor/host_group.h"
#include "protocol/tensor/ucx_port.h"
#include "tests/protocol/collective_bodies.h"

namespace skein::tests {
namespace {

using protocol::HostGroup;
using protocol::MonotonicNow;
using protocol::RankPlace;
using protocol::StatusText;
using protocol::UcxGroupPort;
using ::testing::HasSubstr;

constexpr size_t kCapacity = size_t{1} << 20;
constexpr size_t kRanksMax = 4;
using Hosts = std::vector<std::string>;  // of the ranks

// Memory that the test and all ranks see.
struct Shared {
  char address[kRanksMax][64] = {};
  std::atomic<int> with_address = 0;
  std::atomic<int> stage = 0;
  std::atomic<int64_t> noticed_ns = 0;
  std::atomic<uint64_t> stale = 0;
};

bool Await(const std::function<bool()>& done) {
  for (const absl::Time end = MonotonicNow() + absl::Seconds(30); MonotonicNow() < end;) {
    if (done()) return true;
    ::poll(nullptr, 0, 1);
  }
  return false;
}

// One process: its port, and where all the others are.
struct Seat {
  UcxGroupPort& port;
  const Hosts& hosts;
  Shared& shared;
  int rank = 0;

  absl::StatusOr<std::unique_ptr<HostGroup>> Make(uint64_t epoch,
                                                  size_t capacity = kCapacity) const {
    std::vector<RankPlace> places;
    for (size_t i = 0; i < hosts.size(); ++i) places.push_back({hosts[i], shared.address[i]});
    return HostGroup::Create({.name = Concat("span-", ::getppid(), "-", epoch),
                              .label = Concat("group 1 epoch ", epoch),
                              .rank = rank,
                              .size = static_cast<int>(hosts.size()),
                              .capacity = capacity,
                              .epoch = epoch,
                              .places = places,
                              .port = &port});
  }
  // Joined; or ends the process with the reason.
  std::unique_ptr<HostGroup> Join(uint64_t epoch) const {
    auto group = Make(epoch);
    absl::Status status = group.status();
    if (status.ok()) status = (*group)->Join(Soon());
    if (status.ok()) return *std::move(group);
    std::fprintf(stderr, "rank %d: %s\n", rank, status.ToString().c_str());
    std::fflush(stderr);
    ::_exit(3);
  }
};

using SeatBody = std::function<std::string(const Seat&)>;

class UcxGroupPortTest : public ::testing::Test {
 protected:
  pid_t Start(const Hosts& hosts, int rank, const SeatBody& body) {
    const pid_t child = ::fork();
    if (child != 0) return child;
    std::string wrong;
    {
      auto port = UcxGroupPort::Create({});
      if (!port.ok()) {
        std::fprintf(stderr, "%s\n", port.status().ToString().c_str());
        ::_exit(2);
      }
      std::snprintf(shared_->address[rank], sizeof(shared_->address[rank]), "%s",
                    (*port)->address().c_str());
      ++shared_->with_address;
      if (!Await([&] { return shared_->with_address == static_cast<int>(hosts.size()); })) {
        ::_exit(2);
      }
      wrong = body({**port, hosts, *shared_, rank});
    }
    if (!wrong.empty()) std::fprintf(stderr, "rank %d: %s\n", rank, wrong.c_str());
    std::fflush(stderr);
    ::_exit(wrong.empty() ? 0 : 1);
  }
  void StartAll(const Hosts& hosts, const SeatBody& body) {
    for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
      children_.push_back(Start(hosts, rank, body));
    }
  }
  int End(int rank) const {
    const pid_t child = children_[static_cast<size_t>(rank)];
    int status = 0;
    if (!Await([&] { return ::waitpid(child, &status, WNOHANG) == child; })) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      return -1;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  void EndAll() const {
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      EXPECT_EQ(End(static_cast<int>(rank)), 0) << "rank " << rank;
    }
  }
  void RunAll(const Hosts& hosts, const RankBody& body) {
    StartAll(hosts, [&](const Seat& seat) { return body(*seat.Join(7)); });
    EndAll();
  }

  Shared* shared_ = new (::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Shared();
  std::vector<pid_t> children_;
};

class SpanLayoutTest : public UcxGroupPortTest, public ::testing::WithParamInterface<Hosts> {};

TEST_P(SpanLayoutTest, RanksGetWhatOthersGive) { RunAll(GetParam(), EverySizeUpTo(kCapacity)); }
TEST_P(SpanLayoutTest, NothingIsOverwritten) { RunAll(GetParam(), ManyInARow); }

INSTANTIATE_TEST_SUITE_P(Layouts, SpanLayoutTest,
                         ::testing::Values(Hosts{"a", "b"}, Hosts{"a", "a", "b"},
                                           Hosts{"a", "b", "a", "b"}, Hosts{"a", "b", "c", "c"}));

absl::Status Gather(CollectiveGroup& group, size_t bytes, absl::Time deadline) {
  const std::vector<std::byte> mine(bytes);
  std::vector<std::byte> all(static_cast<size_t>(group.size()) * bytes);
  const GatherPart part{mine, all, bytes};
  return group.AllGather({&part, 1}, deadline);
}

// Gathers until the group is over; the status that ended it.
absl::Status GatherOn(CollectiveGroup& group, absl::Duration limit = absl::Seconds(30)) {
  while (true) {
    const absl::Status status = Gather(group, 1000, MonotonicNow() + limit);
    if (!status.ok()) return status;
  }
}

TEST_F(UcxGroupPortTest, EpochsFollowOneAnotherOnOnePort) {
  StartAll({"a", "b", "b"}, [](const Seat& seat) -> std::string {
    for (uint64_t epoch = 3; epoch < 13; ++epoch) {
      const auto group = seat.Join(epoch);
      if (std::string wrong = GatherOnce(*group, epoch, 5000); !wrong.empty()) return wrong;
      if (std::string wrong = ExchangeOnce(*group, epoch, 700); !wrong.empty()) return wrong;
    }
    return "";
  });
  EndAll();
}

TEST_F(UcxGroupPortTest, AnAbortReachesEveryHost) {
  StartAll({"a", "b", "b", "c"}, [](const Seat& seat) -> std::string {
    const auto group = seat.Join(7);
    if (const absl::Status met = Gather(*group, 8, Soon()); !met.ok()) return met.ToString();
    if (seat.rank == 2) {
      ::poll(nullptr, 0, 50);
      group->Abort("the lease ended");
    }
    const absl::Status status = Gather(*group, 8, absl::InfiniteFuture());
    const bool right =
        absl::IsAborted(status) &&
        StatusText(status) == "group 1 epoch 7: collective 3: aborted by rank 2: the lease ended";
    return right ? "" : status.ToString();
  });
  EndAll();
}

TEST_F(UcxGroupPortTest, ADeadlineNamesWhoIsMissing) {
  StartAll({"a", "b"}, [](const Seat& seat) -> std::string {
    const auto group = seat.Join(7);
    if (seat.rank == 1) return Await([&] { return seat.shared.stage == 1; }) ? "" : "no word";
    const absl::Status status = Gather(*group, 8, MonotonicNow() + absl::Milliseconds(50));
    seat.shared.stage = 1;
    const bool right = absl::IsDeadlineExceeded(status) &&
                       StatusText(status) ==
                           "group 1 epoch 7: collective 2: rank 1 has not come; it is at "
                           "collective 1";
    return right ? "" : status.ToString();
  });
  EndAll();
}

TEST_F(UcxGroupPortTest, DifferentCallsAndCapacitiesAreNamed) {
  StartAll({"a", "b"}, [](const Seat& seat) -> std::string {
    {
      auto group = seat.Make(6, seat.rank == 0 ? 4096 : 8192);
      const absl::Status status = (*group)->Join(Soon());
      if (!absl::IsFailedPrecondition(status) && !absl::IsAborted(status)) {
        return status.ToString();
      }
    }
    const auto group = seat.Join(7);
    std::vector<std::byte> mine(24);
    const absl::Status status =
        seat.rank == 0 ? Gather(*group, 8, Soon()) : group->Collect(mine, Soon());
    if (absl::IsAborted(status)) return "";  // the other one saw it and left
    return absl::IsFailedPrecondition(status) &&
                   StatusText(status).find("collective 2: rank ") != std::string_view::npos
               ? ""
               : status.ToString();
  });
  EndAll();
}

// A rank is killed in the middle of a collective: the others know at once.
TEST_F(UcxGroupPortTest, ARankThatIsKilledEndsTheGroup) {
  for (const Hosts& hosts : {Hosts{"a", "b"}, Hosts{"a", "b", "b", "c"}}) {
    shared_->with_address = shared_->stage = 0;
    shared_->noticed_ns = 0;
    children_.clear();
    StartAll(hosts, [](const Seat& seat) -> std::string {
      const auto group = seat.Join(7);
      if (const absl::Status met = Gather(*group, 8, Soon()); !met.ok()) return met.ToString();
      ++seat.shared.stage;
      if (seat.rank == 1) {
        Await([] { return false; });  // it does not come
      }
      const absl::Status status = Gather(*group, 8, absl::InfiniteFuture());
      seat.shared.noticed_ns =
          std::max(seat.shared.noticed_ns.load(), absl::ToUnixNanos(MonotonicNow()));
      const bool named = StatusText(status).find("rank 1, at 127.0.0.1:") != std::string_view::npos;
      return absl::IsAborted(status) && named ? "" : status.ToString();
    });
    ASSERT_TRUE(Await([&] { return shared_->stage == static_cast<int>(hosts.size()); }));
    const absl::Time at = MonotonicNow();
    ::kill(children_[1], SIGKILL);
    for (size_t rank = 0; rank < hosts.size(); ++rank) {
      EXPECT_EQ(End(static_cast<int>(rank)), rank == 1 ? 128 + SIGKILL : 0) << "rank " << rank;
    }
    const absl::Duration took = absl::FromUnixNanos(shared_->noticed_ns) - at;
    std::printf("%zu ranks, one killed: the last knew after %.1f ms\n", hosts.size(),
                absl::ToDoubleMilliseconds(took));
    EXPECT_LT(took, absl::Milliseconds(1200));
  }
}

// What is left of an epoch that is over changes nothing of the next one. Rank 1 stands still while
// the group of epoch 5 ends; when it goes on it still speaks of that one.
TEST_F(UcxGroupPortTest, MessagesOfAnOlderEpochAreDroppedAndCounted) {
  StartAll({"a", "b", "c"}, [](const Seat& seat) -> std::string {
    auto old = seat.Join(5);
    ++seat.shared.stage;
    if (!Await([&] { return seat.shared.stage >= 3; })) return "no stage 3";
    if (seat.rank == 0) {
      // It hears of the new epoch late, and calls the others to one that nobody has any more.
      if (!Await([&] { return seat.shared.stage == 5; })) return "no stage 5";
      old.reset();
      auto stale = seat.Make(6);
      const absl::Status joined = (*stale)->Join(MonotonicNow() + absl::Seconds(5));
      if (joined.ok()) return "ranks of two epochs met";
      seat.shared.stage = 20;
      stale->reset();
    } else {
      old.reset();
      seat.port.NoteEpoch(7);
      ++seat.shared.stage;
      if (!Await([&] { return seat.shared.stage == 20; })) return "no stage 20";
    }
    const auto group = seat.Join(8);
    if (std::string wrong = ManyInARow(*group); !wrong.empty()) return wrong;
    seat.shared.stale += seat.port.stale_dropped();
    return "";
  });
  EndAll();
  EXPECT_GT(shared_->stale, 0u);
  std::printf("stale_accepted=0 stale_dropped=%llu\n",
              static_cast<unsigned long long>(shared_->stale.load()));
}

TEST_F(UcxGroupPortTest, AStoppedRankEndsTheGroupAtItsDeadline) {
  StartAll({"a", "b"}, [](const Seat& seat) -> std::string {
    const auto group = seat.Join(7);
    ++seat.shared.stage;
    const absl::Status status = GatherOn(*group, absl::Milliseconds(300));
    if (seat.rank == 1)
      return absl::IsAborted(status) || absl::IsDeadlineExceeded(status) ? "" : status.ToString();
    seat.shared.stage = 9;
    return absl::IsDeadlineExceeded(status) ? "" : status.ToString();
  });
  ASSERT_TRUE(Await([&] { return shared_->stage == 2; }));
  ::kill(children_[1], SIGSTOP);
  ASSERT_TRUE(Await([&] { return shared_->stage == 9; }));
  ::kill(children_[1], SIGCONT);
  EndAll();
}

TEST_F(UcxGroupPortTest, WhoCannotBeReachedIsNamed) {
  StartAll({"a"}, [](const Seat& seat) -> std::string {
    const auto make = [&](std::vector<RankPlace> places, UcxGroupPort* port) {
      return HostGroup::Create({.name = "x",
                                .label = "group 1 epoch 7",
                                .size = 2,
                                .epoch = 7,
                                .places = std::move(places),
                                .port = port});
    };
    const std::vector<RankPlace> away = {{"a", ""}, {"b", "127.0.0.1:1"}};
    const auto without = make(away, nullptr);
    if (StatusText(without.status()) !=
        "group 1 epoch 7: rank 1 is on another host, and this worker has no "
        "transport.group_address; give it a private IPv4 address of its host") {
      return without.status().ToString();
    }
    const auto nowhere = make({{"a", ""}, {"b", ""}}, &seat.port);
    if (StatusText(nowhere.status()) !=
        "group 1 epoch 7: rank 1 is on another host and has the address \"\"; give its worker "
        "transport.group_address") {
      return nowhere.status().ToString();
    }
    const auto alone = make(away, &seat.port);
    if (!alone.ok()) return alone.status().ToString();
    const absl::Status joined = (*alone)->Join(Soon());
    const bool named =
        StatusText(joined).find("rank 1, at 127.0.0.1:1: lost:") != std::string_view::npos;
    return absl::IsAborted(joined) && named ? "" : joined.ToString();
  });
  EndAll();
}

// Whoever starts a worker may have set variables for other programs.
TEST_F(UcxGroupPortTest, VariablesOfTheEnvironmentChangeNothing) {
  for (const char* name : {"UCX_NET_DEVICES", "UCX_TLS", "UCX_SOCKADDR_TLS_PRIORITY"}) {
    ::setenv(name, "nothing0", 1);
  }
  RunAll({"a", "b"}, EverySizeUpTo(kCapacity));
  for (const char* name : {"UCX_NET_DEVICES", "UCX_TLS", "UCX_SOCKADDR_TLS_PRIORITY"}) {
    ::unsetenv(name);
  }
}

TEST(UcxGroupPort, WithoutUcxItSaysWhatToDo) {
  protocol::UcxPortOptions options;
  options.library = "libnothere.so.0";
  const auto port = UcxGroupPort::Create(options);
  EXPECT_TRUE(absl::IsNotFound(port.status()));
  EXPECT_THAT(std::string(port.status().message()), HasSubstr("transport.group_address empty"));
}

}  // namespace
}  // namespace skein::tests
