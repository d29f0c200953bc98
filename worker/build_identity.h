// What a worker says of itself when it registers. A program that stands for another build, in tests
// of rolling restarts, is the same source with these two names defined otherwise.
// Constants; any thread. Must never decide anything.
#pragma once

#include <cstdint>

#include "protocol/messages/control.h"

#ifndef SKEIN_WORKER_BUILD
#define SKEIN_WORKER_BUILD SKEIN_VERSION
#endif
#ifndef SKEIN_WORKER_MINOR
#define SKEIN_WORKER_MINOR ::skein::protocol::kProtocolMinor
#endif

namespace skein::worker {

inline constexpr char kBuild[] = SKEIN_WORKER_BUILD;
inline constexpr uint32_t kMinor = SKEIN_WORKER_MINOR;

}  // namespace skein::worker
