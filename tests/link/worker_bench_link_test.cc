// Links worker_bench alone.
#include "worker/node/commands/bench_options.h"

#include <string>
#include <vector>

int main() {
  const std::vector<std::string> arguments = {"--no-such-flag"};
  return skein::worker::ParseBenchOptions(arguments).ok() ? 1 : 0;
}
