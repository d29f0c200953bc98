// `skein status`, `skein drain` and `skein rollout`: a coordinator seen and steered over its
// operator listener.
// Main thread of skein. Must never reach a coordinator in another way.
#pragma once

#include <span>
#include <string>

#include "protocol/json/json.h"

namespace skein::worker {

// The answer of GET /admin/status for people, at most 80 columns wide.
std::string ClusterStatusText(const protocol::JsonValue& status);
// The answer of GET /admin/requests, a line each, likewise.
std::string SlowRequestsText(const protocol::JsonValue& requests);
// The rollout part of it: one line, and a second one with the reason if there is one.
std::string RolloutText(const protocol::JsonValue& rollout);

// Whole commands; the result is the exit code of the program: 0, 1 when what was asked for did not
// come about, 64 wrong flags, 75 when no coordinator answers.
int RunStatus(std::span<const std::string> arguments);
int RunDrain(std::span<const std::string> arguments);
int RunRollout(std::span<const std::string> arguments);

}  // namespace skein::worker
