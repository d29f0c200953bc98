// Tests of protocol/transport/control_transport: which side and which endpoint needs which keys.
#include "protocol/transport/control_transport.h"

#include <gtest/gtest.h>

#include "protocol/base/strings.h"
#include "tests/protocol/curve_fixture.h"

namespace skein::protocol {
namespace {

constexpr char kTcp[] = "tcp://127.0.0.1:*";

TEST(ControlTransportTest, IpcNeedsNoKeys) {
  EXPECT_TRUE(OpenControlTransport({.endpoint = "ipc:///run/skein/control", .curve = {}}).ok());
}

TEST(ControlTransportTest, TcpWithoutKeysIsRefusedBySide) {
  const auto coordinator =
      OpenControlTransport({.self = kCoordinatorActor, .endpoint = kTcp, .curve = {}});
  ASSERT_FALSE(coordinator.ok());
  EXPECT_NE(StatusText(coordinator.status()).find("transport.curve_"), std::string_view::npos);
  EXPECT_FALSE(OpenControlTransport({.self = {NodeId(1), 0}, .endpoint = kTcp, .curve = {}}).ok());
}

TEST(ControlTransportTest, EachSideReadsItsKeys) {
  const tests::CurveFixture keys;
  const CurveFiles coordinator = {"", keys.path("coordinator"), keys.path("allowed")};
  const CurveFiles worker = {keys.server_key(), keys.path("worker"), ""};
  auto listener =
      OpenControlTransport({.self = kCoordinatorActor, .endpoint = kTcp, .curve = coordinator});
  ASSERT_TRUE(listener.ok()) << listener.status();
  ASSERT_TRUE((*listener)->Listen(kTcp).ok());
  auto dealer = OpenControlTransport({.self = {NodeId(1), 0}, .endpoint = kTcp, .curve = worker});
  ASSERT_TRUE(dealer.ok()) << dealer.status();
  EXPECT_TRUE((*dealer)->Connect(kCoordinatorActor, (*listener)->bound_endpoint()).ok());
  // A worker's keys do not make a coordinator.
  EXPECT_FALSE(
      OpenControlTransport({.self = kCoordinatorActor, .endpoint = kTcp, .curve = worker}).ok());
}

}  // namespace
}  // namespace skein::protocol
