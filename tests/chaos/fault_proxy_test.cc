// Tests of the relay: where messages end, what passes unharmed, and that each fault does what its
// name says.
// Thread: the test's, and one that runs the relay.
// Must never: wait for time to pass without a condition.
#include "tests/chaos/fault_proxy.h"

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

namespace skein::tests {
namespace {

using ::testing::ElementsAre;

const std::string kGreeting(64, 'g');

std::string Frame(uint8_t flags, std::string_view body) {
  std::string frame = {static_cast<char>(flags), static_cast<char>(body.size())};
  return frame.append(body);
}

std::vector<std::string> Messages(std::string_view text, size_t piece) {
  MessageSplitter splitter;
  std::vector<std::string> messages;
  std::string waiting;
  for (size_t at = 0; at < text.size(); at += piece) {
    waiting += text.substr(at, piece);
    while (true) {
      const auto unit = splitter.Next(waiting);
      if (unit.kind == MessageSplitter::Kind::kNone) break;
      if (unit.kind == MessageSplitter::Kind::kMessage) {
        messages.push_back(waiting.substr(unit.body, unit.size - unit.body));
      }
      waiting.erase(0, unit.size);
    }
  }
  return messages;
}

TEST(MessageSplitterTest, FindsMessagesHoweverTheirBytesCome) {
  const std::string large(300, 'l');
  const std::string size = {0, 0, 0, 0, 0, 0, 1, 44};
  const std::string text = kGreeting + Frame(4, "READY") + Frame(0, "a") + Frame(1, "id") +
                           Frame(0, "b") + "\x02" + size + large + Frame(0, "");
  for (const size_t piece : {size_t{1}, size_t{7}, text.size()}) {
    EXPECT_THAT(Messages(text, piece), ElementsAre("a", "b", large, ""));
  }
}

// A socket of the test at one end of the relay.
class Socket {
 public:
  Socket() : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  explicit Socket(int fd) : fd_(fd) {}

  static sockaddr_un Address(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    return address;
  }
  bool Listen(const std::string& path) const {
    const sockaddr_un address = Address(path);
    return ::bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
           ::listen(fd_.get(), 8) == 0;
  }
  bool Dial(const std::string& path) const {
    const sockaddr_un address = Address(path);
    return ::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  Socket Accept() const { return Socket(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC)); }
  void Send(std::string_view text) const {
    // The other end may be gone already.
    [[maybe_unused]] const auto sent = ::send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL);
  }
  // The next bytes, `count` or those up to the end.
  std::string Read(size_t count) const {
    std::string text(count, '\0');
    size_t got = 0;
    while (got < count) {
      const ssize_t some = ::recv(fd_.get(), text.data() + got, count - got, 0);
      if (some <= 0) break;
      got += static_cast<size_t>(some);
    }
    return text.substr(0, got);
  }

 private:
  worker::Descriptor fd_;
};

class FaultProxyTest : public ::testing::Test {
 protected:
  FaultProxyTest() {
    char path[] = "/tmp/skein_proxy_XXXXXX";
    directory_ = ::mkdtemp(path);
    EXPECT_TRUE(server_.Listen(directory_ + "/server"));
  }
  ~FaultProxyTest() override {
    Stop();
    std::filesystem::remove_all(directory_);
  }
  void Start(uint64_t seed, uint32_t messages_per_fault) {
    FaultProxy::Options options;
    options.listen = directory_ + "/proxy";
    options.dial = directory_ + "/server";
    options.seed = seed;
    options.messages_per_fault = messages_per_fault;
    proxy_ = std::make_unique<FaultProxy>(options);
    thread_ = std::thread([this] { proxy_->Run([this] { return ends_.load(); }); });
  }
  void Stop() {
    ends_ = true;
    if (thread_.joinable()) thread_.join();
  }

  std::string directory_;
  Socket server_;
  std::atomic<bool> ends_ = false;
  std::unique_ptr<FaultProxy> proxy_;
  std::thread thread_;
};

TEST_F(FaultProxyTest, WithoutFaultsBytesPassAsTheyAre) {
  Start(1, 0);
  const Socket client;
  ASSERT_TRUE(client.Dial(directory_ + "/proxy"));
  const Socket peer = server_.Accept();
  std::string up = kGreeting, down = kGreeting;
  for (int i = 0; i < 200; ++i) up += Frame(0, std::string(static_cast<size_t>(i), 'u'));
  for (int i = 0; i < 200; ++i) down += Frame(i % 2 == 0 ? 1 : 0, "down");
  client.Send(up);
  peer.Send(down);
  EXPECT_EQ(peer.Read(up.size()), up);
  EXPECT_EQ(client.Read(down.size()), down);
  Stop();
  EXPECT_EQ(proxy_->counts().messages, 300u);
  for (const uint64_t count : proxy_->counts().faults) EXPECT_EQ(count, 0u);
}

// Every message is hit: greeting and command come as they are, and what follows is a part of the
// message or that with one bit changed.
TEST_F(FaultProxyTest, EachFaultIsDone) {
  constexpr uint64_t kRounds = 60;
  Start(7, 1);
  const std::string begin = kGreeting + Frame(4, "READY");
  const std::string message = Frame(0, "message");
  for (uint64_t round = 0; round < kRounds; ++round) {
    auto client = std::make_unique<Socket>();
    ASSERT_TRUE(client->Dial(directory_ + "/proxy"));
    const Socket peer = server_.Accept();
    client->Send(begin);
    ASSERT_EQ(peer.Read(begin.size()), begin);
    client->Send(message);
    client.reset();
    const std::string rest = peer.Read(1000);  // to the end: the relay has decided by then
    size_t flipped = 0;
    for (size_t i = 0; i < rest.size(); ++i) flipped += rest[i] != message[i] ? 1 : 0;
    EXPECT_LE(rest.size(), message.size());
    EXPECT_LE(flipped, 1u);
    EXPECT_EQ(rest.substr(0, 2), message.substr(0, rest.size() < 2 ? rest.size() : 2));
  }
  Stop();
  const FaultProxy::Counts& counts = proxy_->counts();
  EXPECT_EQ(counts.connections, kRounds);
  EXPECT_EQ(counts.messages, kRounds);
  for (size_t i = 0; i < counts.faults.size(); ++i) {
    EXPECT_GT(counts.faults[i], 0u) << kProxyFaultNames[i];
  }
}

}  // namespace
}  // namespace skein::tests
