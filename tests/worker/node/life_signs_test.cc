// Tests of worker/node/life_signs, notify_socket and ready_probe with sockets of their own.
#include "worker/node/life_signs.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <string>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "protocol/base/clock.h"
#include "protocol/base/strings.h"
#include "worker/node/listen_socket.h"
#include "worker/node/notify_socket.h"
#include "worker/node/ready_probe.h"

namespace skein::worker {
namespace {

using protocol::MonotonicNow;
using ::testing::HasSubstr;

// A service manager's end.
class Manager {
 public:
  explicit Manager(const std::string& address) {
    socket_ = Descriptor(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path, address.data(), address.size());
    if (address[0] == '@') name.sun_path[0] = '\0';
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&name),
                     static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size())),
              0);
  }
  // The next message; empty when there is none.
  std::string Next() const {
    char text[256];
    const ssize_t count = ::recv(socket_.get(), text, sizeof text, 0);
    return count < 0 ? "" : std::string(text, static_cast<size_t>(count));
  }

 private:
  Descriptor socket_;
};

class LifeSignsTest : public ::testing::Test {
 protected:
  LifeSignsTest() {
    char path[] = "/tmp/skein_life_XXXXXX";
    directory_ = ::mkdtemp(path);
  }
  ~LifeSignsTest() override { std::filesystem::remove_all(directory_); }
  std::string directory_;
};

TEST_F(LifeSignsTest, MessagesReachPathsAndAbstractNames) {
  for (const std::string& address :
       {directory_ + "/notify", protocol::Concat("@skein-test-", ::getpid())}) {
    const Manager manager(address);
    const auto notify = NotifySocket::Open(address);
    ASSERT_TRUE(notify.ok()) << notify.status();
    EXPECT_TRUE(notify->Send("READY=1\nSTATUS=x"));
    EXPECT_EQ(manager.Next(), "READY=1\nSTATUS=x");
  }
}

TEST_F(LifeSignsTest, NoAddressIsSilentAndAWrongOneIsRefused) {
  const auto none = NotifySocket::Open("");
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->Send("READY=1"));
  const auto nobody = NotifySocket::Open(directory_ + "/nobody");
  ASSERT_TRUE(nobody.ok());
  EXPECT_FALSE(nobody->Send("READY=1")) << "and does not wait";
  for (const std::string& wrong :
       {std::string("relative"), std::string("/"), "/" + std::string(200, 'x')}) {
    EXPECT_THAT(std::string(protocol::StatusText(NotifySocket::Open(wrong).status())),
                HasSubstr("is neither /path nor @name of at most 107 bytes"));
  }
}

TEST_F(LifeSignsTest, TheLoopTouchesItsFileAndFeedsTheWatchdog) {
  const std::string alive = directory_ + "/alive";
  const Manager manager(directory_ + "/notify");
  auto signs = LifeSigns::Create(alive, directory_ + "/notify");
  ASSERT_TRUE(signs.ok()) << signs.status();
  EXPECT_EQ(manager.Next(), "STATUS=starting");
  const timespec past[2] = {{1000, 0}, {1000, 0}};
  const auto modified = [&] {
    struct stat status {};
    EXPECT_EQ(::stat(alive.c_str(), &status), 0);
    return status.st_mtim.tv_sec;
  };
  const absl::Time now = MonotonicNow();
  ASSERT_EQ(::utimensat(AT_FDCWD, alive.c_str(), past, 0), 0);
  signs->Tick(now);
  EXPECT_GT(modified(), 1000);
  EXPECT_EQ(manager.Next(), "WATCHDOG=1");
  EXPECT_EQ(signs->next(), now + LifeSigns::kTouchEvery);
  ASSERT_EQ(::utimensat(AT_FDCWD, alive.c_str(), past, 0), 0);
  signs->Tick(now + absl::Seconds(1));
  EXPECT_EQ(modified(), 1000) << "not before it is due";
  signs->Tick(now + absl::Seconds(3));
  EXPECT_GT(modified(), 1000);
  EXPECT_EQ(manager.Next(), "WATCHDOG=1");
  EXPECT_EQ(manager.Next(), "");
}

TEST_F(LifeSignsTest, WithoutAnApiTheChildrenDecideAndStoppingIsToldOnce) {
  const Manager manager(directory_ + "/notify");
  auto signs = LifeSigns::Create("", directory_ + "/notify");
  ASSERT_TRUE(signs.ok());
  const absl::Time now = MonotonicNow();
  signs->ChildrenReady(-1, now);
  signs->ChildrenReady(-1, now);
  signs->Stopping();
  signs->Stopping();
  EXPECT_EQ(manager.Next(), "READY=1\nSTATUS=serving");
  EXPECT_EQ(manager.Next(), "STOPPING=1\nSTATUS=draining");
  EXPECT_EQ(manager.Next(), "");
}

// Answers the connection that waits on `listening` with `text`; the request it came with.
std::string Answer(int listening, std::string_view text) {
  pollfd wait{listening, POLLIN, 0};
  EXPECT_EQ(::poll(&wait, 1, 10'000), 1);
  const Descriptor peer(::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC));
  char request[512];
  const ssize_t count = ::read(peer.get(), request, sizeof request);
  EXPECT_EQ(::write(peer.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  return std::string(request, count > 0 ? static_cast<size_t>(count) : 0);
}

TEST_F(LifeSignsTest, ReadyIsSaidAfterTheApiAnswered200) {
  const auto listening = OpenListenSocket("0.0.0.0", 0);
  ASSERT_TRUE(listening.ok());
  const Manager manager(directory_ + "/notify");
  auto signs = LifeSigns::Create("", directory_ + "/notify");
  ASSERT_TRUE(signs.ok());
  absl::Time now = MonotonicNow();
  const auto step = [&] { signs->Tick(now = std::max(now, signs->next())); };
  signs->Tick(now);  // the watchdog's first, which is due at once
  signs->ChildrenReady(listening->socket.get(), now);
  step();  // sends
  EXPECT_THAT(Answer(listening->socket.get(), "HTTP/1.1 503 no\r\n\r\n"),
              HasSubstr("GET /health/ready HTTP/1.1\r\nHost: "));
  step();  // reads 503, pauses
  step();  // asks again
  step();  // sends
  Answer(listening->socket.get(), "HTTP/1.1 200 OK\r\n\r\n");
  step();
  std::string all;
  for (std::string text = manager.Next(); !text.empty(); text = manager.Next()) all += text + "\n";
  EXPECT_THAT(all, HasSubstr("STATUS=testing the API\n"));
  EXPECT_THAT(all, HasSubstr("READY=1\nSTATUS=serving\n"));
}

TEST_F(LifeSignsTest, AProbeWithoutAnAnswerTriesAgain) {
  const auto listening = OpenListenSocket("127.0.0.1", 0);
  ASSERT_TRUE(listening.ok());
  ReadyProbe probe;
  EXPECT_EQ(probe.next(), absl::InfiniteFuture());
  absl::Time now = MonotonicNow();
  probe.Begin(listening->socket.get(), now);
  now += ReadyProbe::kTryMax;
  EXPECT_FALSE(probe.Step(now));
  EXPECT_EQ(probe.next(), now + ReadyProbe::kAgain);
}

}  // namespace
}  // namespace skein::worker
