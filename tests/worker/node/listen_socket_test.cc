// Tests of worker/node/listen_socket: the port that was bound, and refusals that name the way out.
#include "worker/node/listen_socket.h"

#include <string>

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "protocol/base/strings.h"

namespace skein::worker {
namespace {

using ::testing::HasSubstr;

TEST(ListenSocketTest, AFreePortListensBeforeAnybodyAccepts) {
  auto listening = OpenListenSocket("127.0.0.1", 0);
  ASSERT_TRUE(listening.ok()) << listening.status();
  ASSERT_NE(listening->port, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(listening->port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const Descriptor client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0)
      << "it waits in the backlog";
}

TEST(ListenSocketTest, ATakenPortAndANameAreRefused) {
  const auto first = OpenListenSocket("127.0.0.1", 0);
  ASSERT_TRUE(first.ok());
  const auto second = OpenListenSocket("127.0.0.1", first->port);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(protocol::StatusText(second.status())),
              HasSubstr("Address already in use; end what listens there"));
  const auto named = OpenListenSocket("localhost", 0);
  EXPECT_THAT(std::string(protocol::StatusText(named.status())),
              HasSubstr("cannot listen on localhost:0: the host must be a numeric"));
}

}  // namespace
}  // namespace skein::worker
