// skein-node: the supervisor of one node's workers. Wiring only.
// Main thread, no other. Must never know a device or a socket of the cluster.
#include <string>
#include <vector>

#include "protocol/config/config.h"
#include "worker/node/commands/serve.h"

int main(int argc, char** argv) {
  const std::vector<std::string> arguments = skein::protocol::TakeArguments(argc, argv);
  return skein::worker::RunNode(arguments, skein::worker::OwnPaths());
}
