// Which control endpoints are allowed, and what is said of the others.
#include "protocol/transport/control_endpoint.h"

#include <cstdlib>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

using ::testing::HasSubstr;

TEST(ControlEndpointTest, PrivateDirectoriesNeedNoKeys) {
  char path[] = "/tmp/skein_zmq_XXXXXX";
  const std::string directory = ::mkdtemp(path);
  const std::string endpoint = Concat("ipc://", directory, "/control");
  EXPECT_TRUE(CheckControlEndpoint(endpoint, false).ok());
  EXPECT_FALSE(NeedsKeys(endpoint));
  EXPECT_EQ(::chmod(directory.c_str(), 0755), 0);
  EXPECT_FALSE(CheckControlEndpoint(endpoint, true).ok());
  ::rmdir(directory.c_str());
}

TEST(ControlEndpointTest, NamedPrivateAddressesNeedKeys) {
  for (const std::string endpoint :
       {"tcp://127.0.0.1:5555", "tcp://127.1.2.3:*", "tcp://10.0.0.1:7000", "tcp://172.31.255.1:1",
        "tcp://192.168.3.4:65535"}) {
    EXPECT_TRUE(CheckControlEndpoint(endpoint, true).ok()) << endpoint;
    EXPECT_TRUE(NeedsKeys(endpoint));
    EXPECT_THAT(std::string(StatusText(CheckControlEndpoint(endpoint, false))),
                HasSubstr("a tcp endpoint needs transport.curve_secret_key_file; make one with "
                          "skein keygen FILE"));
  }
}

TEST(ControlEndpointTest, EverythingElseIsRefused) {
  const std::pair<std::string, std::string> cases[] = {
      {"tcp://0.0.0.0:5555", "0.0.0.0 is no private IPv4 address"},
      {"tcp://*:5555", "* is no private IPv4 address"},
      {"tcp://8.8.8.8:5555", "8.8.8.8 is no private IPv4 address"},
      {"tcp://172.32.0.1:5555", "172.32.0.1 is no private IPv4 address"},
      {"tcp://192.169.0.1:5555", "192.169.0.1 is no private IPv4 address"},
      {"tcp://10.0.0:5555", "10.0.0 is no private IPv4 address"},
      {"tcp://10.0.0.1.2:5555", "10.0.0.1.2 is no private IPv4 address"},
      {"tcp://10.0.0.256:5555", "10.0.0.256 is no private IPv4 address"},
      {"tcp://10.0.0.+1:5555", "10.0.0.+1 is no private IPv4 address"},
      {"tcp://eth0:5555", "eth0 is no private IPv4 address"},
      {"tcp://127.0.0.1.evil.org:5555", "is no private IPv4 address"},
      {"tcp://localhost:5555", "localhost is no private IPv4 address"},
      {"tcp://[::]:5555", "[::] is no private IPv4 address"},
      {"tcp://127.0.0.1", "a tcp endpoint is tcp://ADDRESS:PORT"},
      {"tcp://127.0.0.1:0", "\"0\" is not a port"},
      {"tcp://127.0.0.1:x", "\"x\" is not a port"},
      {"ipc://relative", "with an absolute path"},
      {"ipc://@abstract", "with an absolute path"},
      {"ipc:///no/such/directory/x",
       "transport.control_endpoint (--control-endpoint): ipc:///no/such/directory/x: directory "
       "/no/such/directory: No such file or directory; make it, with mode 0700, or choose another"},
      {"ipc:///tmp/x", "/tmp must be a directory of this user with mode 0700"},
      {Concat("ipc:///", std::string(120, 'x'), "/y"), "a socket path has at most 107"},
      {"udp://127.0.0.1:1", "is no control endpoint"},
  };
  for (const auto& [endpoint, text] : cases) {
    const absl::Status status = CheckControlEndpoint(endpoint, true);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << endpoint;
    EXPECT_THAT(std::string(StatusText(status)), HasSubstr(text)) << endpoint;
  }
}

}  // namespace
}  // namespace skein::protocol
