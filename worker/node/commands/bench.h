// `skein bench`: the load generator. Wiring of options, workload, server and report.
// Main thread, no other. Must never load a server it was not told to.
#pragma once

#include <span>
#include <string>

namespace skein::worker {

// The whole command; the result is the exit code of the program: 0, 64 for wrong flags, 65 for
// files that cannot be read, 70 when no request succeeded.
int RunBench(std::span<const std::string> arguments);

}  // namespace skein::worker
