// Blocks between two real processes: whole, or an end that says why not. Either side is killed,
// stopped, cut off; a checksum is wrong, sizes differ, time runs out. And whatever happens, memory
// whose end was reported is not touched any more. Each side is a child of the test: UCX is in
// neither the test itself nor two sides of one process.
#include "protocol/tensor/ucx_block_channel.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "tests/protocol/block_sides.h"

namespace skein::tests {
namespace {

using protocol::Concat;
using protocol::MonotonicNow;
using protocol::TransferId;
using protocol::UcxBlockChannel;

class UcxBlockChannelTest : public ::testing::Test {
 protected:
  void Both(const Body& lender, const Body& fetcher) {
    const pid_t lends = Start(*shared_, true, lender);
    const pid_t fetches = Start(*shared_, false, fetcher);
    EXPECT_EQ(End(fetches), 0);
    EXPECT_EQ(End(lends), 0);
  }
  Shared* shared_ = new (MapShared<Shared>()) Shared();
};

// A side that only lends one transfer and tells how it ended.
Body Lender(std::vector<size_t> sizes, absl::StatusCode code, absl::Duration time = kLimit) {
  return [=](UcxBlockChannel& channel, Shared&) -> std::string {
    std::vector<Buffer> pieces;
    for (size_t i = 0; i < sizes.size(); ++i) pieces.push_back(Filled(sizes[i], i));
    const auto lent = channel.Lend(TransferId(1), Lent(pieces), In(time));
    return lent.ok() ? Expect(Ends(channel, 1), code) : std::string(lent.message());
  };
}

// A fetch that is to fail: what was wrong, also if its memory changes after its end.
std::string FailFetch(UcxBlockChannel& channel, Shared& shared, std::vector<Buffer>& pieces,
                      absl::StatusCode code, absl::Duration time,
                      const std::function<void()>& round = nullptr) {
  const auto begun = channel.Fetch(TransferId(1), shared.address, Wanted(pieces), In(time));
  if (!begun.ok()) return std::string(begun.message());
  const std::string wrong = Expect(Ends(channel, 1, round), code);
  if (!wrong.empty()) return wrong;
  const std::vector<Buffer> left = pieces;
  shared.stage = 9;
  const absl::Time later = In(absl::Milliseconds(500));
  while (MonotonicNow() < later) {
    if (!channel.Poll(later).ok()) return "the channel is of no use any more";
  }
  return left == pieces ? "" : "memory was written after the end of its transfer";
}

const std::vector<size_t> kLarge(64, 1 << 20);

// Some of the large pieces have come.
bool Begun(const std::vector<Buffer>& pieces) {
  return std::any_of(pieces.begin(), pieces.end(),
                     [](const Buffer& piece) { return piece[1] != std::byte{0}; });
}

TEST_F(UcxBlockChannelTest, PiecesOfAllSizesArriveWhole) {
  const std::vector<size_t> sizes = {1, 100, 4096, 8191, 65'536, 1 << 20, 3 << 20, 7};
  Both(Lender(sizes, absl::StatusCode::kOk),
       [&](UcxBlockChannel& channel, Shared& shared) -> std::string {
         std::vector<Buffer> pieces;
         for (const size_t size : sizes) pieces.emplace_back(size);
         const auto begun =
             channel.Fetch(TransferId(1), shared.address, Wanted(pieces), In(kLimit));
         if (!begun.ok()) return std::string(begun.message());
         const std::string wrong = Expect(Ends(channel, 1), absl::StatusCode::kOk);
         if (!wrong.empty()) return wrong;
         for (size_t i = 0; i < sizes.size(); ++i) {
           if (pieces[i] != Filled(sizes[i], i)) return Concat("piece ", i, " is another one");
         }
         return "";
       });
}

TEST_F(UcxBlockChannelTest, TransfersRunBesideEachOther) {
  constexpr uint64_t kCount = 12;
  const auto piece = [](uint64_t id) { return Filled(100'000 + id * 1000, id); };
  Both(
      [&](UcxBlockChannel& channel, Shared&) -> std::string {
        std::vector<Buffer> pieces;
        for (uint64_t id = 1; id <= kCount; ++id) pieces.push_back(piece(id));
        for (uint64_t id = 1; id <= kCount; ++id) {
          if (!channel.Lend(TransferId(id), {pieces[id - 1]}, In(kLimit)).ok()) return "not lent";
        }
        const auto ends = Ends(channel, kCount);
        for (uint64_t id = 1; id <= kCount; ++id) {
          if (!Expect(ends, absl::StatusCode::kOk, id).empty()) return Concat("loan ", id);
        }
        return "";
      },
      [&](UcxBlockChannel& channel, Shared& shared) -> std::string {
        std::vector<Buffer> pieces;
        for (uint64_t id = 1; id <= kCount; ++id) pieces.emplace_back(piece(id).size());
        for (uint64_t id = 1; id <= kCount; ++id) {
          const auto begun =
              channel.Fetch(TransferId(id), shared.address, {pieces[id - 1]}, In(kLimit));
          if (!begun.ok()) return std::string(begun.message());
        }
        Ends(channel, kCount);
        for (uint64_t id = 1; id <= kCount; ++id) {
          if (pieces[id - 1] != piece(id)) return Concat("transfer ", id, " has other bytes");
        }
        return "";
      });
}

TEST_F(UcxBlockChannelTest, AFetchWaitsForALoanThatIsToCome) {
  Both(
      [](UcxBlockChannel& channel, Shared& shared) -> std::string {
        if (!Await([&] { return shared.stage == 1; })) return "nobody asks";
        if (!channel.Poll(In(absl::Milliseconds(300))).ok()) return "no poll";
        const Buffer piece = Filled(5000, 3);
        if (!channel.Lend(TransferId(1), {piece}, In(kLimit)).ok()) return "not lent";
        return Expect(Ends(channel, 1), absl::StatusCode::kOk);
      },
      [](UcxBlockChannel& channel, Shared& shared) -> std::string {
        Buffer piece(5000);
        const auto begun = channel.Fetch(TransferId(1), shared.address, {piece}, In(kLimit));
        if (!begun.ok()) return std::string(begun.message());
        const auto ends = Ends(channel, 1, [&] { shared.stage = 1; });
        if (piece != Filled(5000, 3)) return "other bytes";
        return Expect(ends, absl::StatusCode::kOk);
      });
}

TEST_F(UcxBlockChannelTest, DifferentSizesAreRefusedOnBothSides) {
  Both(Lender({1000, 1000}, absl::StatusCode::kFailedPrecondition),
       [](UcxBlockChannel& channel, Shared& shared) {
         std::vector<Buffer> pieces = {Buffer(1000), Buffer(1001)};
         return FailFetch(channel, shared, pieces, absl::StatusCode::kFailedPrecondition, kLimit);
       });
}

TEST_F(UcxBlockChannelTest, TimeRunsOutOnEitherSide) {
  Both(
      [](UcxBlockChannel& channel, Shared& shared) {
        const Buffer piece(1000);
        channel.Lend(TransferId(1), {piece}, In(absl::Milliseconds(300))).IgnoreError();
        const auto ends = Ends(channel, 1);
        while (shared.stage != 9 && channel.Poll(In(absl::Milliseconds(10))).ok()) {
        }
        return Expect(ends, absl::StatusCode::kDeadlineExceeded);
      },
      [](UcxBlockChannel& channel, Shared& shared) {
         std::vector<Buffer> pieces = {Buffer(1000)};
         const auto begun = channel.Fetch(TransferId(2), shared.address, Wanted(pieces),
                                          In(absl::Milliseconds(300)));
         if (!begun.ok()) return std::string(begun.message());
         const auto ends = Ends(channel, 1);
         shared.stage = 9;
         return Expect(ends, absl::StatusCode::kDeadlineExceeded, 2);
       });
}

TEST_F(UcxBlockChannelTest, ACancelledLoanEndsAtOnce) {
  const auto lender = [](UcxBlockChannel& channel, Shared&) -> std::string {
    const Buffer piece(100);
    if (!channel.Lend(TransferId(1), {piece}, In(kLimit)).ok()) return "not lent";
    if (!absl::IsAlreadyExists(channel.Lend(TransferId(1), {piece}, In(kLimit)))) return "twice";
    channel.Cancel(TransferId(1));
    return Expect(Ends(channel, 1), absl::StatusCode::kCancelled);
  };
  EXPECT_EQ(End(Start(*shared_, true, lender)), 0);
}

TEST_F(UcxBlockChannelTest, NobodyAtTheAddress) {
  const auto fetcher = [](UcxBlockChannel& channel, Shared& shared) -> std::string {
    Buffer piece(100);
    if (!absl::IsInvalidArgument(channel.Fetch(TransferId(1), "here", {piece}, In(kLimit)))) {
      return "\"here\" is an address";
    }
    std::snprintf(shared.address, sizeof(shared.address), "127.0.0.1:1");
    std::vector<Buffer> pieces = {piece};
    return FailFetch(channel, shared, pieces, absl::StatusCode::kUnavailable, kLimit);
  };
  shared_->has_address = true;
  EXPECT_EQ(End(Start(*shared_, false, fetcher)), 0);
}

// The lender breaks its promise while the pieces are on their way: no reader believes them.
TEST_F(UcxBlockChannelTest, AWrongChecksumIsAnError) {
  constexpr size_t kBytes = 64 << 20;
  auto* memory = MapShared<std::byte>(kBytes);
  const pid_t lends = Start(*shared_, true, [&](UcxBlockChannel& channel, Shared&) {
    const std::span<const std::byte> piece(memory, kBytes);
    if (!channel.Lend(TransferId(1), {piece}, In(kLimit)).ok()) return std::string("not lent");
    return Expect(Ends(channel, 1), absl::StatusCode::kDataLoss);
  });
  const pid_t fetches = Start(*shared_, false, [&](UcxBlockChannel& channel, Shared& shared) {
    std::vector<Buffer> pieces = {Buffer(kBytes)};
    return FailFetch(channel, shared, pieces, absl::StatusCode::kDataLoss, kLimit);
  });
  for (uint8_t value = 1; shared_->stage != 9; ++value) {
    for (size_t at = 0; at < kBytes; at += 1 << 16) memory[at] = static_cast<std::byte>(value);
    siginfo_t ended{};
    ::waitid(P_PID, static_cast<id_t>(fetches), &ended, WEXITED | WNOHANG | WNOWAIT);
    if (ended.si_pid != 0) break;
  }
  EXPECT_EQ(End(fetches), 0);
  EXPECT_EQ(End(lends), 0);
}

TEST_F(UcxBlockChannelTest, ALenderThatIsKilledEndsTheFetch) {
  const pid_t lends = Start(*shared_, true, Lender(kLarge, absl::StatusCode::kOk));
  const pid_t fetches = Start(*shared_, false, [&](UcxBlockChannel& channel, Shared& shared) {
    std::vector<Buffer> pieces(kLarge.size(), Buffer(kLarge[0]));
    return FailFetch(channel, shared, pieces, absl::StatusCode::kUnavailable, kLimit, [&] {
      if (Begun(pieces)) ::kill(lends, SIGKILL);
    });
  });
  EXPECT_EQ(End(fetches), 0);
  EXPECT_EQ(End(lends), 128 + SIGKILL);
}

TEST_F(UcxBlockChannelTest, AFetcherThatIsKilledGivesTheLoanBack) {
  const pid_t lends = Start(*shared_, true, Lender(kLarge, absl::StatusCode::kUnavailable));
  const pid_t fetches = Start(*shared_, false, [&](UcxBlockChannel& channel, Shared& shared) {
    std::vector<Buffer> pieces(kLarge.size(), Buffer(kLarge[0]));
    return FailFetch(channel, shared, pieces, absl::StatusCode::kUnavailable, kLimit, [&] {
      if (Begun(pieces)) ::raise(SIGKILL);
    });
  });
  EXPECT_EQ(End(fetches), 128 + SIGKILL);
  EXPECT_EQ(End(lends), 0);
}

// A stopped peer says nothing at all: time alone ends the fetch, and what the peer sends when it
// goes on is written nowhere. The time of the fetch begins when everything is ready for it.
TEST_F(UcxBlockChannelTest, AStoppedLenderEndsTheFetchAtItsDeadline) {
  const pid_t lends = Start(*shared_, true, [](UcxBlockChannel& channel, Shared& shared) {
    const std::vector<Buffer> pieces(kLarge.size(), Filled(kLarge[0], 0));
    const auto lent = channel.Lend(TransferId(1), Lent(pieces), In(kLimit));
    if (!lent.ok()) return std::string(lent.message());
    shared.stage = 1;
    // It finds the fetcher's last word, or nobody.
    const std::string gone = Expect(Ends(channel, 1), absl::StatusCode::kUnavailable);
    return gone.find("the blocks did not come in time") == std::string::npos ? gone : "";
  });
  const pid_t fetches = Start(*shared_, false, [&](UcxBlockChannel& channel, Shared& shared) {
    std::vector<Buffer> pieces(kLarge.size(), Buffer(kLarge[0]));
    if (!Await([&] { return shared.stage == 1; })) return std::string("nothing is lent");
    bool stopped = false;
    return FailFetch(channel, shared, pieces, absl::StatusCode::kDeadlineExceeded,
                     absl::Seconds(2), [&] {
                       if (!stopped && Begun(pieces)) ::kill(lends, SIGSTOP);
                       stopped = stopped || Begun(pieces);
                     });
  });
  EXPECT_TRUE(Await([&] { return shared_->stage == 9; }));
  ::kill(lends, SIGCONT);
  EXPECT_EQ(End(fetches), 0);
  EXPECT_EQ(End(lends), 0);
}

// Every TCP connection of this process ends, without a word of UCX's.
void CutConnections() {
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_in peer{};
    socklen_t size = sizeof(peer);
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0 &&
        peer.sin_family == AF_INET) {
      ::shutdown(fd, SHUT_RDWR);
    }
  }
}

TEST_F(UcxBlockChannelTest, ACutConnectionEndsBothSides) {
  const pid_t lends = Start(*shared_, true, Lender(kLarge, absl::StatusCode::kUnavailable));
  const pid_t fetches = Start(*shared_, false, [&](UcxBlockChannel& channel, Shared& shared) {
    std::vector<Buffer> pieces(kLarge.size(), Buffer(kLarge[0]));
    bool cut = false;
    return FailFetch(channel, shared, pieces, absl::StatusCode::kUnavailable, kLimit, [&] {
      if (!cut && Begun(pieces)) CutConnections();
      cut = cut || Begun(pieces);
    });
  });
  EXPECT_EQ(End(fetches), 0);
  EXPECT_EQ(End(lends), 0);
}

}  // namespace
}  // namespace skein::tests
