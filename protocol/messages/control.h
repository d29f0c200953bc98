// The control plane: membership, leases, drain. Plain value types.
#pragma once

#include <cstdint>
#include <string>

#include "protocol/base/ids.h"
#include "protocol/messages/step.h"

namespace skein::protocol {

// Raised when a message changes meaning. A coordinator speaks to workers of its own version.
inline constexpr uint32_t kProtocolVersion = 1;

// First message of a worker, and again after every reconnect. Sender: worker.
struct RegisterWorker {
  uint32_t protocol_version = kProtocolVersion;
  std::string build;    // version of the program
  std::string backend;  // "cpu", "reference"
  std::string model;    // identity of the weights: config hash
  Incarnation incarnation;
  CacheGeometry geometry;
  friend bool operator==(const RegisterWorker&, const RegisterWorker&) = default;
};

// Makes the worker rank `rank` of a group; its cache starts empty. Sender: coordinator.
struct FormGroup {
  GroupId group;
  RankId rank;
  uint32_t num_ranks = 1;
  Epoch epoch;
  friend bool operator==(const FormGroup&, const FormGroup&) = default;
};

// The rank is ready for plans of the epoch. Sender: worker.
struct GroupFormed {
  GroupId group;
  RankId rank;
  Epoch epoch;
  friend bool operator==(const GroupFormed&, const GroupFormed&) = default;
};

// The epoch is over: run no more of its plans, forget its cache, keep the weights. Both ways.
struct AbortEpoch {
  GroupId group;
  Epoch epoch;
  std::string reason;
  friend bool operator==(const AbortEpoch&, const AbortEpoch&) = default;
};

// Sent by a worker every 100 ms; carries the progress of its device thread.
struct Heartbeat {
  StepId last_step;  // last step whose result was sent
  uint32_t queued_plans = 0;
  friend bool operator==(const Heartbeat&, const Heartbeat&) = default;
};

// Answer to a heartbeat: the worker may compute for this long from its receipt. Sender:
// coordinator.
struct LeaseGrant {
  uint32_t duration_ms = 0;
  friend bool operator==(const LeaseGrant&, const LeaseGrant&) = default;
};

// Take no plans after those already sent, then answer Drained. Sender: coordinator.
struct Drain {
  GroupId group;
  friend bool operator==(const Drain&, const Drain&) = default;
};

struct Drained {
  GroupId group;
  friend bool operator==(const Drained&, const Drained&) = default;
};

// End the process in good order. Sender: coordinator.
struct Shutdown {
  std::string reason;
  friend bool operator==(const Shutdown&, const Shutdown&) = default;
};

}  // namespace skein::protocol
