// What a peer may do to a block channel that speaks its words where they have no place: pieces that
// nobody asked for, ends of other people's transfers, silence, and more connections than there are
// places. A transfer ends with what its own two sides say, or with its time.
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "protocol/base/crc32c.h"
#include "protocol/tensor/block_wire.h"
#include "protocol/tensor/ucx_block_channel.h"
#include "protocol/tensor/ucx_port.h"
#include "tests/protocol/block_sides.h"

namespace skein::tests {
namespace {

using absl::StatusCode;
using protocol::BlockHeader;
using protocol::BlockWord;
using protocol::MonotonicNow;
using protocol::TransferId;
using protocol::UcxBlockChannel;
using protocol::UcxLink;

constexpr size_t kBytes = 1000;
// Of transfers that only time ends: longer than all cases together take on a busy machine.
constexpr absl::Duration kShort = absl::Seconds(5);

BlockHeader Word(BlockWord kind, uint64_t transfer, uint64_t number = 0, uint64_t bytes = 0) {
  BlockHeader header;
  header.kind = kind;
  header.transfer = transfer;
  header.number = number;
  header.bytes = bytes;
  return header;
}
uint64_t Code(StatusCode code) { return static_cast<uint64_t>(code); }

// A port without a channel: it says what it is told to.
class RawPeer {
 public:
  struct Heard {
    UcxLink* link;
    BlockHeader header;
  };
  RawPeer() {
    auto made = protocol::UcxPort::Create({}, [this](const protocol::UcxMessage& message) {
      Heard heard{nullptr, {}};
      if (message.header.size() != sizeof(heard.header)) return;
      std::memcpy(&heard.header, message.header.data(), sizeof(heard.header));
      for (const auto& link : links_) {
        if (link->endpoint == message.from) heard.link = link.get();
      }
      if (heard.link != nullptr) heard_.push_back(heard);
    });
    if (made.ok()) port_ = *std::move(made);
  }
  ~RawPeer() {
    std::vector<UcxLink*> links;
    for (const auto& link : links_) links.push_back(link.get());
    if (port_ != nullptr) port_->End(links);
  }
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;

  bool ok() const { return port_ != nullptr; }
  const std::string& address() const { return port_->address(); }
  UcxLink& Connect(const char* address) {
    links_.push_back(std::make_unique<UcxLink>());
    const auto to = protocol::ParseBlockAddress(address);
    if (to.ok()) port_->Connect(*links_.back(), *to).IgnoreError();
    return *links_.back();
  }
  void Say(UcxLink& link, const BlockHeader& header, std::string_view text = {}) {
    SayBytes(link, std::as_bytes(std::span(&header, 1)), text);
  }
  void SayBytes(UcxLink& link, std::span<const std::byte> header, std::string_view text = {}) {
    if (link.endpoint != nullptr) port_->Send(link, {header, {}, text}).IgnoreError();
  }
  void Close(UcxLink& link) { port_->Close(link); }
  // Goes on until then; words that come go to `answer`.
  bool Run(const std::function<bool()>& done,
           const std::function<void(const Heard&)>& answer = nullptr) {
    return Await([&] {
      port_->Progress();
      for (ucp_conn_request_h request : port_->TakeArrived()) {
        links_.push_back(std::make_unique<UcxLink>());
        port_->Accept(request, *links_.back());
      }
      for (const Heard& heard : std::exchange(heard_, {})) {
        if (answer) answer(heard);
      }
      for (const auto& link : links_) {
        port_->Reap(*link, [](const protocol::UcxRequest&) {});
        if (!link->broken.ok()) port_->Close(*link);
      }
      return done();
    });
  }
  void Pass(absl::Duration time) {
    Run([until = In(time)] { return MonotonicNow() >= until; });
  }

 private:
  std::unique_ptr<protocol::UcxPort> port_;
  std::vector<std::unique_ptr<UcxLink>> links_;
  std::vector<Heard> heard_;
};

// A child that is no channel. `lends`: the others find it at the address.
pid_t StartRaw(Shared& shared, bool lends, const std::function<std::string(RawPeer&)>& body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  std::string wrong = "no port";
  if (RawPeer peer; peer.ok()) {
    if (lends) std::snprintf(shared.address, sizeof(shared.address), "%s", peer.address().c_str());
    if (lends) shared.has_address = true;
    wrong = Await([&] { return shared.has_address.load(); }) ? body(peer) : "no address";
  }
  if (!wrong.empty()) std::fprintf(stderr, "peer: %s\n", wrong.c_str());
  std::fflush(stderr);
  ::_exit(wrong.empty() ? 0 : 1);
}

class BlockChannelPeersTest : public ::testing::Test {
 protected:
  Shared* shared_ = new (MapShared<Shared>()) Shared();
};

// The bytes of a piece, and the word in front of it.
std::string TextOf(const Buffer& piece) {
  return {reinterpret_cast<const char*>(piece.data()), piece.size()};
}
BlockHeader PieceWord(uint64_t transfer, uint64_t number) {
  BlockHeader header = Word(BlockWord::kPiece, transfer, number, kBytes);
  header.crc = protocol::Crc32c(0, Filled(kBytes, number));
  return header;
}

// What a lender says when it is asked for two pieces, and how the fetch ends.
struct LenderCase {
  const char* what;
  StatusCode ends;
  std::function<void(RawPeer&, UcxLink&, uint64_t id)> says;
};

// It says the piece as it should.
void SayPiece(RawPeer& peer, UcxLink& link, uint64_t id, uint64_t number) {
  peer.Say(link, PieceWord(id, number), TextOf(Filled(kBytes, number)));
}

std::vector<LenderCase> PieceCases() {
  return {
      {"both pieces", StatusCode::kOk,
       [](RawPeer& peer, UcxLink& link, uint64_t id) {
         for (const uint64_t number : {1, 0}) SayPiece(peer, link, id, number);
       }},
      {"a piece out of range", StatusCode::kFailedPrecondition,
       [](RawPeer& peer, UcxLink& link, uint64_t id) { SayPiece(peer, link, id, 2); }},
      {"a piece far out of range", StatusCode::kFailedPrecondition,
       [](RawPeer& peer, UcxLink& link, uint64_t id) { SayPiece(peer, link, id, ~uint64_t{0}); }},
      {"a piece that is short", StatusCode::kFailedPrecondition,
       [](RawPeer& peer, UcxLink& link, uint64_t id) {
         peer.Say(link, PieceWord(id, 0), "short");
       }},
      {"a piece that says another size", StatusCode::kFailedPrecondition,
       [](RawPeer& peer, UcxLink& link, uint64_t id) {
         BlockHeader header = PieceWord(id, 0);
         header.bytes = 5;
         peer.Say(link, header, TextOf(Filled(kBytes, 0)));
       }},
      {"a piece twice", StatusCode::kFailedPrecondition,
       [](RawPeer& peer, UcxLink& link, uint64_t id) {
         for (const uint64_t number : {0, 0}) SayPiece(peer, link, id, number);
       }},
      {"other bytes", StatusCode::kDataLoss,
       [](RawPeer& peer, UcxLink& link, uint64_t id) {
         peer.Say(link, PieceWord(id, 0), TextOf(Filled(kBytes, 7)));
       }},
      {"other bytes, and it is gone", StatusCode::kUnavailable,
       [](RawPeer& peer, UcxLink& link, uint64_t id) {
         peer.Say(link, PieceWord(id, 0), TextOf(Filled(kBytes, 7)));
         peer.Close(link);
       }},
  };
}

std::vector<LenderCase> WordCases() {
  return {
      {"a refusal without a reason", StatusCode::kUnknown,
       [](RawPeer& peer, UcxLink& link, uint64_t id) {
         peer.Say(link, Word(BlockWord::kRefused, id, Code(StatusCode::kOk)));
       }},
      {"a refusal behind both pieces", StatusCode::kOk,
       [](RawPeer& peer, UcxLink& link, uint64_t id) {
         for (const uint64_t number : {0, 1}) SayPiece(peer, link, id, number);
         peer.Say(link, Word(BlockWord::kRefused, id, Code(StatusCode::kAborted)));
       }},
      {"pieces and refusals of others", StatusCode::kDeadlineExceeded,
       [](RawPeer& peer, UcxLink& link, uint64_t id) {
         SayPiece(peer, link, 1000, 0);
         peer.Say(link, Word(BlockWord::kRefused, id == 1 ? 2 : 1, Code(StatusCode::kAborted)));
       }},
      {"words of the other side, of nobody, and none", StatusCode::kDeadlineExceeded,
       [](RawPeer& peer, UcxLink& link, uint64_t id) {
         peer.Say(link, Word(BlockWord::kTaken, id, Code(StatusCode::kOk)));
         peer.Say(link, Word(BlockWord::kAsk, id, 2, 2 * kBytes));
         peer.Say(link, Word(static_cast<BlockWord>(77), id));
         BlockHeader foreign = PieceWord(id, 0);
         foreign.magic = 1;
         peer.Say(link, foreign, TextOf(Filled(kBytes, 0)));
         peer.SayBytes(link, std::as_bytes(std::span("short")));
       }},
      {"nothing", StatusCode::kDeadlineExceeded, [](RawPeer&, UcxLink&, uint64_t) {}},
      {"nothing, and it is gone", StatusCode::kUnavailable,
       [](RawPeer& peer, UcxLink& link, uint64_t) { peer.Close(link); }},
  };
}

TEST_F(BlockChannelPeersTest, AFetchEndsAsItsLenderDeserves) {
  std::vector<LenderCase> cases = PieceCases();
  for (LenderCase& one : WordCases()) cases.push_back(std::move(one));
  const pid_t lends = StartRaw(*shared_, true, [&](RawPeer& peer) -> std::string {
    const auto answer = [&](const RawPeer::Heard& heard) {
      const uint64_t id = heard.header.transfer;
      if (heard.header.kind == BlockWord::kTaken) peer.Close(*heard.link);
      if (heard.header.kind != BlockWord::kAsk || id == 0 || id > cases.size()) return;
      cases[id - 1].says(peer, *heard.link, id);
    };
    return peer.Run([&] { return shared_->stage == 9; }, answer) ? "" : "the fetcher does not end";
  });
  const pid_t fetches = Start(*shared_, false, [&](UcxBlockChannel& channel, Shared& shared) {
    std::vector<std::vector<Buffer>> all(cases.size(), {Buffer(kBytes), Buffer(kBytes)});
    for (size_t i = 0; i < cases.size(); ++i) {
      const auto begun =
          channel.Fetch(TransferId(i + 1), shared.address, Wanted(all[i]), In(kShort));
      if (!begun.ok()) return std::string(begun.message());
    }
    const auto ends = Ends(channel, cases.size());
    shared.stage = 9;
    std::string wrong;
    for (size_t i = 0; i < cases.size(); ++i) {
      const std::string one = Expect(ends, cases[i].ends, i + 1);
      if (!one.empty()) wrong += protocol::Concat(cases[i].what, ": ", one, "\n");
    }
    return wrong;
  });
  EXPECT_EQ(End(fetches), 0);
  EXPECT_EQ(End(lends), 0);
}

// What a fetcher says of the loan of this number, and how the loan ends.
struct FetcherCase {
  const char* what;
  StatusCode ends;
  std::function<void(RawPeer&, UcxLink&, UcxLink& other, uint64_t id)> says;
};

std::vector<FetcherCase> FetcherCases() {
  const auto ask = [](RawPeer& peer, UcxLink& link, uint64_t id) {
    peer.Say(link, Word(BlockWord::kAsk, id, 1, kBytes));
    // Until it is heard: what is said before is of no transfer.
    bool heard = false;
    peer.Run([&] { return heard; },
             [&](const RawPeer::Heard& word) {
               if (word.header.kind == BlockWord::kPiece) heard = true;
             });
  };
  const auto taken = [](RawPeer& peer, UcxLink& link, uint64_t id, StatusCode code) {
    peer.Say(link, Word(BlockWord::kTaken, id, Code(code)), "as it says");
  };
  return {
      {"it has them, twice", StatusCode::kOk,
       [=](RawPeer& peer, UcxLink& link, UcxLink&, uint64_t id) {
         ask(peer, link, id);
         taken(peer, link, id, StatusCode::kOk);
         taken(peer, link, id, StatusCode::kDataLoss);
       }},
      {"they are wrong", StatusCode::kDataLoss,
       [=](RawPeer& peer, UcxLink& link, UcxLink&, uint64_t id) {
         ask(peer, link, id);
         taken(peer, link, id, StatusCode::kDataLoss);
       }},
      {"it wants others", StatusCode::kFailedPrecondition,
       [=](RawPeer& peer, UcxLink& link, UcxLink&, uint64_t id) {
         peer.Say(link, Word(BlockWord::kAsk, id, 2, kBytes));
       }},
      {"it has what it never asked for", StatusCode::kDeadlineExceeded,
       [=](RawPeer& peer, UcxLink& link, UcxLink&, uint64_t id) {
         taken(peer, link, id, StatusCode::kOk);
       }},
      {"a stranger has what another asked for", StatusCode::kDeadlineExceeded,
       [=](RawPeer& peer, UcxLink& link, UcxLink& other, uint64_t id) {
         ask(peer, link, id);
         peer.Say(other, Word(BlockWord::kAsk, 999, 1, kBytes));
         taken(peer, other, id, StatusCode::kOk);
       }},
      {"it asks for one and has another", StatusCode::kDeadlineExceeded,
       [=](RawPeer& peer, UcxLink& link, UcxLink&, uint64_t id) {
         ask(peer, link, id);
         peer.Say(link, Word(BlockWord::kAsk, id + 1, 1, kBytes));
         taken(peer, link, id + 1, StatusCode::kOk);
       }},
      {"nobody asks but as above", StatusCode::kDeadlineExceeded,
       [](RawPeer&, UcxLink&, UcxLink&, uint64_t) {}},
      {"words of the other side", StatusCode::kDeadlineExceeded,
       [=](RawPeer& peer, UcxLink& link, UcxLink&, uint64_t id) {
         ask(peer, link, id);
         peer.Say(link, PieceWord(id, 0), TextOf(Filled(kBytes, 0)));
         peer.Say(link, Word(BlockWord::kRefused, id, Code(StatusCode::kAborted)));
       }},
      {"it asks and is gone", StatusCode::kUnavailable,
       [=](RawPeer& peer, UcxLink& link, UcxLink&, uint64_t id) {
         ask(peer, link, id);
         peer.Close(link);
       }},
  };
}

TEST_F(BlockChannelPeersTest, ALoanEndsAsItsOwnFetcherSays) {
  const std::vector<FetcherCase> cases = FetcherCases();
  const pid_t lends = Start(*shared_, true, [&](UcxBlockChannel& channel, Shared& shared) {
    const Buffer piece = Filled(kBytes, 0);
    for (size_t i = 0; i < cases.size(); ++i) {
      const auto lent = channel.Lend(TransferId(i + 1), {piece}, In(kShort));
      if (!lent.ok()) return std::string(lent.message());
    }
    shared.stage = 1;
    const auto ends = Ends(channel, cases.size());
    shared.stage = 9;
    std::string wrong;
    for (size_t i = 0; i < cases.size(); ++i) {
      const std::string one = Expect(ends, cases[i].ends, i + 1);
      if (!one.empty()) wrong += protocol::Concat(cases[i].what, ": ", one, "\n");
    }
    return wrong;
  });
  const pid_t fetches = StartRaw(*shared_, false, [&](RawPeer& peer) -> std::string {
    if (!peer.Run([&] { return shared_->stage == 1; })) return "nothing is lent";
    for (size_t i = 0; i < cases.size(); ++i) {
      UcxLink& link = peer.Connect(shared_->address);
      cases[i].says(peer, link, peer.Connect(shared_->address), i + 1);
    }
    return peer.Run([&] { return shared_->stage == 9; }) ? "" : "the lender does not end";
  });
  EXPECT_EQ(End(fetches), 0);
  EXPECT_EQ(End(lends), 0);
}

// A fetcher that gives up as soon as it has asked: its words come together, before the lender has
// looked for the loan.
TEST_F(BlockChannelPeersTest, ALastWordThatComesWithTheFirstCounts) {
  const pid_t lends = Start(*shared_, true, [&](UcxBlockChannel& channel, Shared& shared) {
    // The connection is taken, and then nothing is looked at while both words come.
    while (shared.stage < 1 && channel.Poll(In(absl::Milliseconds(10))).ok()) {
    }
    shared.stage = 2;
    if (!Await([&] { return shared.stage == 3; })) return std::string("no words");
    const Buffer piece = Filled(kBytes, 0);
    const absl::Time begin = MonotonicNow();
    if (!channel.Lend(TransferId(1), {piece}, In(kLimit)).ok()) return std::string("not lent");
    const std::string wrong = Expect(Ends(channel, 1), StatusCode::kDataLoss);
    shared.stage = 9;
    return MonotonicNow() - begin < absl::Milliseconds(900) ? wrong : wrong + " late";
  });
  const pid_t fetches = StartRaw(*shared_, false, [&](RawPeer& peer) -> std::string {
    UcxLink& link = peer.Connect(shared_->address);
    peer.Pass(absl::Milliseconds(300));
    shared_->stage = 1;
    if (!peer.Run([&] { return shared_->stage == 2; })) return "the lender does not wait";
    peer.Say(link, Word(BlockWord::kAsk, 1, 1, kBytes));
    peer.Say(link, Word(BlockWord::kTaken, 1, Code(StatusCode::kDataLoss)), "as it says");
    peer.Pass(absl::Milliseconds(300));
    shared_->stage = 3;
    return peer.Run([&] { return shared_->stage == 9; }) ? "" : "the loan does not end";
  });
  EXPECT_EQ(End(fetches), 0);
  EXPECT_EQ(End(lends), 0);
}

// Somebody knows the name of a fetch and reaches its channel.
TEST_F(BlockChannelPeersTest, AStrangerGivesNoPieces) {
  char* const own = MapShared<char>(64);
  const pid_t lends = Start(*shared_, true, [&](UcxBlockChannel& channel, Shared& shared) {
    while (shared.stage < 2 && channel.Poll(In(absl::Milliseconds(10))).ok()) {
    }
    const Buffer piece = Filled(kBytes, 0);
    if (!channel.Lend(TransferId(1), {piece}, In(kLimit)).ok()) return std::string("not lent");
    return Expect(Ends(channel, 1), StatusCode::kOk);
  });
  const pid_t fetches = Start(*shared_, false, [&](UcxBlockChannel& channel, Shared& shared) {
    std::vector<Buffer> pieces = {Buffer(kBytes)};
    const auto begun = channel.Fetch(TransferId(1), shared.address, Wanted(pieces), In(kLimit));
    if (!begun.ok()) return std::string(begun.message());
    std::snprintf(own, 64, "%s", channel.address().c_str());
    shared.stage = 1;
    const std::string wrong = Expect(Ends(channel, 1), StatusCode::kOk);
    return pieces[0] == Filled(kBytes, 0) ? wrong : wrong + " with other bytes";
  });
  const pid_t stranger = StartRaw(*shared_, false, [&](RawPeer& peer) -> std::string {
    if (!Await([&] { return shared_->stage == 1; })) return "nobody fetches";
    UcxLink& link = peer.Connect(own);
    BlockHeader other = PieceWord(1, 0);
    other.crc = protocol::Crc32c(0, Filled(kBytes, 5));
    peer.Say(link, other, TextOf(Filled(kBytes, 5)));
    peer.Say(link, Word(BlockWord::kRefused, 1, Code(StatusCode::kAborted)));
    peer.Pass(absl::Milliseconds(500));
    shared_->stage = 2;
    return "";
  });
  EXPECT_EQ(End(stranger), 0);
  EXPECT_EQ(End(fetches), 0);
  EXPECT_EQ(End(lends), 0);
}

// A lender that stands still once it has given everything: nobody waits for it to say goodbye.
TEST_F(BlockChannelPeersTest, ALenderThatStopsAfterTheLastPieceHoldsUpNobody) {
  const pid_t lends = StartRaw(*shared_, true, [&](RawPeer& peer) -> std::string {
    bool given = false;
    const auto answer = [&](const RawPeer::Heard& heard) {
      peer.Say(*heard.link, PieceWord(1, 0), TextOf(Filled(kBytes, 0)));
      given = true;
    };
    if (!peer.Run([&] { return given; }, answer)) return "nobody asks";
    return Await([&] { return shared_->stage == 9; }) ? "" : "the fetch does not end";
  });
  const pid_t fetches = Start(*shared_, false, [&](UcxBlockChannel& channel, Shared& shared) {
    std::vector<Buffer> pieces = {Buffer(kBytes)};
    const auto begun = channel.Fetch(TransferId(1), shared.address, Wanted(pieces), In(kLimit));
    if (!begun.ok()) return std::string(begun.message());
    const std::string wrong = Expect(Ends(channel, 1), StatusCode::kOk);
    shared.stage = 9;
    return wrong;
  });
  EXPECT_EQ(End(fetches), 0);
  EXPECT_EQ(End(lends), 0);
}

// A fetch may be refused by the worker that was to make it, and minutes may be allowed for many
// pieces: a loan that nobody asks for ends sooner, one that was asked for does not.
TEST_F(BlockChannelPeersTest, ALoanThatNobodyAsksForEndsBeforeItsTime) {
  const pid_t lends = Start(*shared_, true, [](UcxBlockChannel& channel, Shared& shared) {
    const Buffer piece = Filled(kBytes, 0);
    const absl::Time begin = MonotonicNow();
    for (const auto& [id, time] : {std::pair(1, 14), std::pair(2, 25)}) {
      const auto lent = channel.Lend(TransferId(static_cast<uint64_t>(id)), {piece},
                                     begin + absl::Seconds(time));
      if (!lent.ok()) return std::string(lent.message());
    }
    shared.stage = 1;
    const std::string unasked = Expect(Ends(channel, 1), StatusCode::kDeadlineExceeded, 2);
    const absl::Duration took = MonotonicNow() - begin;
    const std::string asked = Expect(Ends(channel, 1), StatusCode::kDeadlineExceeded, 1);
    const absl::Duration both = MonotonicNow() - begin;
    shared.stage = 9;
    if (took > absl::Seconds(14)) return std::string("a loan that nobody wants ends late");
    if (both < absl::Seconds(14)) return std::string("a loan that was asked for ends early");
    return unasked + asked;
  });
  const pid_t asks = StartRaw(*shared_, false, [&](RawPeer& peer) -> std::string {
    if (!peer.Run([&] { return shared_->stage == 1; })) return "nothing is lent";
    peer.Say(peer.Connect(shared_->address), Word(BlockWord::kAsk, 1, 1, kBytes));
    return peer.Run([&] { return shared_->stage == 9; }) ? "" : "the lender does not end";
  });
  EXPECT_EQ(End(asks), 0);
  EXPECT_EQ(End(lends), 0);
}

// Connections that ask for nothing make room for each other, not in the place of one that has asked
// for a loan that is to come.
TEST_F(BlockChannelPeersTest, WhoAskedKeepsItsPlaceAmongSilentConnections) {
  const pid_t lends = Start(*shared_, true, [](UcxBlockChannel& channel, Shared& shared) {
    while (shared.stage < 2 && channel.Poll(In(absl::Milliseconds(10))).ok()) {
    }
    const Buffer piece = Filled(kBytes, 0);
    if (!channel.Lend(TransferId(1), {piece}, In(kLimit)).ok()) return std::string("not lent");
    return Expect(Ends(channel, 1), StatusCode::kOk);
  });
  const pid_t fetches = Start(*shared_, false, [](UcxBlockChannel& channel, Shared& shared) {
    std::vector<Buffer> pieces = {Buffer(kBytes)};
    const auto begun = channel.Fetch(TransferId(1), shared.address, Wanted(pieces), In(kLimit));
    if (!begun.ok()) return std::string(begun.message());
    const absl::Time asked = In(absl::Milliseconds(500));
    while (MonotonicNow() < asked) {
      if (const auto early = channel.Poll(asked); !early.ok() || !early->empty())
        return std::string("an early end");
    }
    shared.stage = 1;
    const std::string wrong = Expect(Ends(channel, 1), StatusCode::kOk);
    shared.stage = 9;
    return wrong;
  });
  const pid_t floods = StartRaw(*shared_, false, [&](RawPeer& peer) -> std::string {
    if (!peer.Run([&] { return shared_->stage == 1; })) return "nobody asks";
    for (size_t i = 0; i < 2 * protocol::kTransfersMax; ++i) peer.Connect(shared_->address);
    peer.Pass(absl::Seconds(1));
    shared_->stage = 2;
    return peer.Run([&] { return shared_->stage == 9; }) ? "" : "the fetcher does not end";
  });
  EXPECT_EQ(End(fetches), 0);
  EXPECT_EQ(End(floods), 0);
  EXPECT_EQ(End(lends), 0);
}

TEST_F(BlockChannelPeersTest, SilentConnectionsKeepNobodyOut) {
  const pid_t lends = Start(*shared_, true, [](UcxBlockChannel& channel, Shared&) {
    const Buffer piece = Filled(kBytes, 0);
    if (!channel.Lend(TransferId(1), {piece}, In(kLimit)).ok()) return std::string("not lent");
    return Expect(Ends(channel, 1), StatusCode::kOk);
  });
  const pid_t floods = StartRaw(*shared_, false, [&](RawPeer& peer) -> std::string {
    for (size_t i = 0; i < 2 * protocol::kTransfersMax; ++i) peer.Connect(shared_->address);
    peer.Pass(absl::Seconds(1));
    shared_->stage = 1;
    return peer.Run([&] { return shared_->stage == 9; }) ? "" : "the fetcher does not end";
  });
  const pid_t fetches = Start(*shared_, false, [](UcxBlockChannel& channel, Shared& shared) {
    if (!Await([&] { return shared.stage == 1; })) return std::string("no flood");
    std::vector<Buffer> pieces = {Buffer(kBytes)};
    const auto begun = channel.Fetch(TransferId(1), shared.address, Wanted(pieces), In(kLimit));
    if (!begun.ok()) return std::string(begun.message());
    const std::string wrong = Expect(Ends(channel, 1), StatusCode::kOk);
    shared.stage = 9;
    return wrong;
  });
  EXPECT_EQ(End(fetches), 0);
  EXPECT_EQ(End(floods), 0);
  EXPECT_EQ(End(lends), 0);
}

}  // namespace
}  // namespace skein::tests
