// The control plane: membership, leases, the end. Plain value types.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/base/ids.h"
#include "protocol/messages/step.h"

namespace skein::protocol {

// The major version rises when a message changes meaning: then nobody speaks to the old one. The
// minor one rises when fields are added: neighbouring minors speak to each other in both orders,
// which is what a rolling restart needs. 1.1 added everything after `geometry` below.
inline constexpr uint32_t kProtocolMajor = 1;
inline constexpr uint32_t kProtocolMinor = 6;

// How the process before this one, of the same worker, ended; its supervisor knows. Numbers are
// those of the flag --predecessor-end.
enum class PredecessorEnd : uint8_t {
  kNone = 0,     // there was none under this supervisor
  kOwn = 1,      // of its own doing: a fault signal, an exit of its own, its memory limit
  kOutside = 2,  // killed from outside, or it followed the loss of something else
  kOrdered = 3,  // it was asked to
};

// First message of a worker, and again after every reconnect. Sender: worker.
struct RegisterWorker {
  uint32_t protocol_major = kProtocolMajor;
  uint32_t protocol_minor = kProtocolMinor;
  std::string build;    // version of the program
  std::string backend;  // "cpu", "reference"
  std::string model;    // identity of the weights: config hash
  Incarnation incarnation;
  CacheGeometry geometry;
  // Since 1.1; empty from an older worker. Equal ids mean: the same vocabulary, the same bytes of a
  // cache block, the same bits of a result.
  std::string tokenizer;
  std::string cache_layout;
  std::string numerics;
  std::vector<std::string> features;  // what it can beyond the minor version, by name
  PredecessorEnd predecessor_end = PredecessorEnd::kNone;
  // Since 1.2: the part of the model that it loaded, of num_ranks parts. A worker with the whole
  // model is rank 0 of 1.
  RankId rank;
  uint32_t num_ranks = 1;
  // Since 1.3: where other workers fetch cache blocks from this one; empty: it neither lends nor
  // fetches any.
  std::string block_address = {};
  // Since 1.5: the host, equal for workers that can share memory, and where ranks of other hosts
  // reach this one; empty: they do not.
  std::string host = {};
  std::string group_address = {};
  friend bool operator==(const RegisterWorker&, const RegisterWorker&) = default;
};

// By layer, those of the draft head last, and by expert: the rank that holds it.
using ExpertPlacement = std::vector<std::vector<uint16_t>>;

// Where a rank of a group is, as it registered.
struct RankAddress {
  std::string host;
  std::string address;
  friend bool operator==(const RankAddress&, const RankAddress&) = default;
};

// Makes the worker rank `rank` of a group; its cache starts empty. Rank and number are those that
// it registered with. Sender: coordinator.
struct FormGroup {
  GroupId group;
  RankId rank;
  uint32_t num_ranks = 1;
  Epoch epoch;
  // Since 1.2: the name under which the ranks of this epoch meet, new for every epoch of every term
  // and cluster of the host; empty for a group of one rank.
  std::string communicator = {};
  // Since 1.5: of all ranks, by rank; empty: all are on one host, or one did not say where it is.
  std::vector<RankAddress> places = {};
  // Since 1.6: which rank holds which expert in this epoch; empty: ranges of equal size, rank after
  // rank, which is what a worker has loaded first.
  ExpertPlacement placement = {};
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
  uint32_t running_ms = 0;  // since 1.1: age of the step on the device thread; 0 when none runs
  friend bool operator==(const Heartbeat&, const Heartbeat&) = default;
};

// Answer to a heartbeat: the worker may compute for this long from its receipt. Sender:
// coordinator.
struct LeaseGrant {
  uint32_t duration_ms = 0;
  friend bool operator==(const LeaseGrant&, const LeaseGrant&) = default;
};

// End the process: in good order, exit 0; or because its registration was refused, which another
// start does not cure, exit 78. Sender: coordinator.
struct Shutdown {
  std::string reason;
  bool refused = false;  // since 1.1
  friend bool operator==(const Shutdown&, const Shutdown&) = default;
};

}  // namespace skein::protocol
