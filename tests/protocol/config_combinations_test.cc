// Keys that contradict each other: the operator listener and planted faults. The other
// combinations are in config_test, with the files that cause them.
#include "protocol/config/config_combinations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> Problems(const Config& config) {
  LoadOptions options;
  options.allow_auto_backend = true;
  return CombinationProblems(config, options,
                             [](std::string_view path) { return std::string(path); });
}

TEST(ConfigCombinationsTest, TheDefaultsAgree) { EXPECT_THAT(Problems(Config()), IsEmpty()); }

TEST(ConfigCombinationsTest, ATcpListenerForOperatorsNeedsACredential) {
  Config config;
  config.admin.listen = "127.0.0.1:9000";
  EXPECT_THAT(Problems(config),
              ElementsAre("admin.token_file: a TCP operator listener needs one; or listen on "
                          "unix:/path"));
  config.admin.token_file = "/etc/skein/token";
  EXPECT_THAT(Problems(config), IsEmpty());
  config.admin.listen = "anywhere";
  EXPECT_THAT(Problems(config),
              ElementsAre("admin.listen: \"anywhere\" is neither unix:/path nor 127.0.0.1:port"));
}

TEST(ConfigCombinationsTest, OperatorsHaveAPortOfTheirOwn) {
  Config config;
  config.admin.token_file = "/etc/skein/token";
  config.admin.listen = "127.0.0.1:8000";
  const auto refused =
      ElementsAre("admin.listen: its port is server.port = 8000; give another, or unix:/path");
  EXPECT_THAT(Problems(config), refused);
  config.server.host = "0.0.0.0";
  EXPECT_THAT(Problems(config), refused);
  config.server.host = "10.0.0.1";
  EXPECT_THAT(Problems(config), IsEmpty()) << "another address";
  config.server.host = "127.0.0.1";
  config.server.port = 0;
  config.admin.listen = "127.0.0.1:0";
  EXPECT_THAT(Problems(config), IsEmpty()) << "free ones";
}

TEST(ConfigCombinationsTest, ARootPathIsOne) {
  Config config;
  for (const char* path : {"", "/skein", "/a/b-c"}) {
    config.server.root_path = path;
    EXPECT_THAT(Problems(config), IsEmpty()) << path;
  }
  for (const char* path : {"/", "skein", "/skein/", "/a b", "/a?b"}) {
    config.server.root_path = path;
    EXPECT_THAT(Problems(config),
                ElementsAre(Concat("server.root_path: \"", path,
                                   "\" is no path of a URL; give one as /skein, without a / at its "
                                   "end")));
  }
  for (const char* path : {"/v1", "/v1/a", "/health", "/tokenize"}) {
    config.server.root_path = path;
    EXPECT_THAT(Problems(config),
                ElementsAre(Concat("server.root_path: \"", path,
                                   "\" is a path that is served itself; give one as /skein")));
  }
}

TEST(ConfigCombinationsTest, ProductsAreNotSharedOut) {
  Config config;
  config.scheduler.tensor_parallel_size = 2;
  EXPECT_THAT(Problems(config),
              ElementsAre("scheduler.tensor_parallel_size: 2 is refused: no backend shares single "
                          "products out; give 1, and scheduler.enable_expert_parallel to share the "
                          "experts out"));
}

TEST(ConfigCombinationsTest, FaultsAreForLoopbackAlone) {
  Config config;
  config.worker.enable_faults = "abort_on_token:5";
  EXPECT_THAT(Problems(config), IsEmpty());
  config.server.host = "0.0.0.0";
  EXPECT_THAT(Problems(config),
              ElementsAre("worker.enable_faults: refused while server.host is 0.0.0.0; faults are "
                          "for tests on 127.0.0.1"));
}

TEST(ConfigCombinationsTest, WorkersAreScrapedAtPortsOfTheirOwn) {
  Config config;
  config.worker.metrics_listen = "nowhere";
  ASSERT_EQ(Problems(config).size(), 1u);
  EXPECT_THAT(Problems(config)[0], HasSubstr("worker.metrics_listen: \"nowhere\" is no ADDRESS:"));
  config.scheduler.data_parallel_size = 4;
  config.worker.metrics_listen = "127.0.0.1:7996";
  EXPECT_THAT(Problems(config), IsEmpty());
  config.worker.metrics_listen = "127.0.0.1:7997";
  EXPECT_THAT(Problems(config),
              ElementsAre("worker.metrics_listen: the workers' ports 7997 to 8000 hold server.port "
                          "= 8000; give others"));
  config.worker.metrics_listen = "127.0.0.2:7997";
  EXPECT_THAT(Problems(config), IsEmpty()) << "another address";
  config.worker.metrics_listen = "127.0.0.1:9000";
  config.admin.token_file = "/etc/skein/token";
  config.admin.listen = "127.0.0.1:9003";
  EXPECT_THAT(Problems(config),
              ElementsAre("worker.metrics_listen: the workers' ports 9000 to 9003 hold "
                          "admin.listen = 9003; give others"));
  config.admin.listen = "127.0.0.1:9004";
  EXPECT_THAT(Problems(config), IsEmpty());
  config.worker.metrics_listen = "127.0.0.1:65533";
  EXPECT_THAT(
      Problems(config),
      ElementsAre("worker.metrics_listen: 4 workers need the ports 65533 to 65536, the last "
                  "port is 65535; give a lower one"));
  config.worker.metrics_listen = "127.0.0.1:0";
  EXPECT_THAT(Problems(config), IsEmpty()) << "free ones";
}

TEST(ConfigCombinationsTest, BlocksAreLentOnPrivateAddressesAlone) {
  Config config;
  for (const char* address : {"127.0.0.1", "10.1.2.3", "172.31.0.1", "192.168.7.8"}) {
    config.transport.block_address = address;
    EXPECT_THAT(Problems(config), IsEmpty()) << address;
  }
  for (const char* address : {"0.0.0.0", "8.8.8.8", "172.32.0.1", "node7", "127.0.0.1:80"}) {
    config.transport.block_address = address;
    EXPECT_THAT(Problems(config),
                ElementsAre(Concat("transport.block_address: \"", address,
                                   "\" is no private IPv4 address; cache blocks are not encrypted: "
                                   "use 10/8, 172.16/12, 192.168/16 or 127/8")));
  }
}

TEST(ConfigCombinationsTest, ANodeHasItsShareOfTheWorkers) {
  Config config;
  config.scheduler.data_parallel_size = 4;
  config.node.first_worker = 1;
  config.node.workers = 2;
  EXPECT_THAT(Problems(config), IsEmpty());
  EXPECT_EQ(protocol::WorkersOf(config).first, 1);
  EXPECT_EQ(protocol::WorkersOf(config).count, 2);
  config.node.workers = 0;
  EXPECT_EQ(protocol::WorkersOf(config).count, 3) << "all that are left";
  config.worker.metrics_listen = "127.0.0.1:65533";
  EXPECT_THAT(Problems(config), IsEmpty()) << "ports of this node's workers alone";
  config.worker.metrics_listen = "";
  for (const auto& [first, count] : {std::pair(3, 2), {4, 0}}) {
    config.node.first_worker = first;
    config.node.workers = count;
    EXPECT_THAT(Problems(config),
                ElementsAre(Concat("node.first_worker: ", first, " and node.workers = ", count,
                                   " are not within scheduler.data_parallel_size = 4, which "
                                   "counts the workers of all nodes")));
  }
}

TEST(ConfigCombinationsTest, AGroupOnTwoNodesNeedsAPrivateAddress) {
  Config config;
  config.scheduler.data_parallel_size = 4;
  config.scheduler.expert_parallel_size = 2;
  config.node.workers = 2;
  EXPECT_THAT(Problems(config), IsEmpty()) << "a whole group";
  config.node.first_worker = 1;
  EXPECT_THAT(Problems(config),
              ElementsAre("transport.group_address: the workers 1 to 2 of this node and groups of "
                          "scheduler.expert_parallel_size = 2 mean a group with ranks on another "
                          "node; give a private IPv4 of this host"));
  config.transport.group_address = "10.0.0.1";
  EXPECT_THAT(Problems(config), IsEmpty());
  config.transport.group_address = "8.8.8.8";
  EXPECT_THAT(Problems(config),
              ElementsAre("transport.group_address: \"8.8.8.8\" is no private IPv4 address; what "
                          "ranks exchange is not encrypted: use 10/8, 172.16/12, 192.168/16 or "
                          "127/8"));
}

TEST(ConfigCombinationsTest, ExpertsMoveBetweenRanksOfAGroupAlone) {
  Config config;
  config.scheduler.data_parallel_size = 2;
  config.scheduler.expert_rebalance_interval = absl::Seconds(60);
  EXPECT_THAT(Problems(config),
              ElementsAre("scheduler.expert_rebalance_interval: 60 seconds, but each worker has "
                          "every expert; raise scheduler.expert_parallel_size or give 0"));
  config.scheduler.expert_parallel_size = 2;
  EXPECT_THAT(Problems(config), IsEmpty());
}

TEST(ConfigCombinationsTest, PrefillGroupsHandOverToOthersThroughTheCache) {
  Config config;
  config.scheduler.data_parallel_size = 3;
  config.scheduler.prefill_groups = 2;
  config.transport.block_address = "127.0.0.1";
  EXPECT_THAT(Problems(config), IsEmpty());
  config.scheduler.prefill_groups = 3;
  EXPECT_THAT(Problems(config),
              ElementsAre("scheduler.prefill_groups: 3 of 3 groups leaves none that decodes; raise "
                          "scheduler.data_parallel_size"));
  config.scheduler.prefill_groups = 1;
  config.transport.block_address = "";
  config.scheduler.enable_prefix_caching = 0;
  EXPECT_THAT(
      Problems(config),
      ElementsAre("transport.block_address: scheduler.prefill_groups needs one, to hand cache "
                  "blocks over; give 127.0.0.1 on one host",
                  "scheduler.enable_prefix_caching: scheduler.prefill_groups needs it, since "
                  "blocks are handed over through the cache; give 1"));
}

TEST(ConfigCombinationsTest, AHangIsLongerThanAHealthyProcessMayBeLate) {
  Config config;
  config.node.hang_timeout = absl::ZeroDuration();
  EXPECT_THAT(Problems(config), IsEmpty()) << "never";
  config.node.hang_timeout = absl::Milliseconds(500);
  EXPECT_THAT(Problems(config),
              ElementsAre("node.hang_timeout: 0.5 is less than a second, which a healthy process "
                          "may be late; give 1 or more, or 0 for never"));
  config.node.hang_timeout = absl::Seconds(2);
  config.transport.heartbeat_interval = absl::Seconds(1);
  config.transport.heartbeat_timeout = absl::Seconds(3);
  config.transport.lease_timeout = absl::Seconds(5);
  EXPECT_THAT(Problems(config), ElementsAre("node.hang_timeout: must be at least three times "
                                            "transport.heartbeat_interval, or 0 for never"));
}

}  // namespace
}  // namespace skein::protocol
