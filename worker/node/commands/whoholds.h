// `skein whoholds`: who holds each GPU, for people or as JSON; ends orphans of ours on request.
// Main thread of skein. Must never signal anything but orphans of ours.
#pragma once

#include <span>
#include <string>

#include "worker/node/who_holds.h"

namespace skein::worker {

// The report as one JSON object.
std::string HolderJson(const HolderReport& report);

// The whole command; the result is the exit code of the program.
int RunWhoholds(std::span<const std::string> arguments);

}  // namespace skein::worker
