// The part of ControlLoop that forms groups of workers and ends their epochs: names, deadlines, and
// what is said to the ranks that live.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/control_loop.h"
#include "protocol/base/form_time.h"
#include "protocol/base/log.h"

namespace skein::coordinator {

using protocol::Context;
using protocol::Envelope;

namespace {

// Until a group that was not formed is formed anew.
constexpr absl::Duration kFormPause = absl::Milliseconds(500);
// A step that ended for want of another rank has its cause within so many leases.
constexpr int kAbortedLeases = 2;
constexpr std::string_view kRebalanced = "rebalanced";

// A worker whose death is not explained for so long is not coming back.
constexpr absl::Duration kUnexplained = absl::Seconds(60);

}  // namespace

// Where the ranks are, for those of different hosts; nothing if one of them does not say, since
// then all are on one.
std::vector<protocol::RankAddress> ControlLoop::PlacesOf(const WorkerGroup& group) const {
  std::vector<protocol::RankAddress> places;
  for (const GroupRank& rank : group.ranks) {
    const protocol::RegisterWorker& said = workers_.registration(rank.worker);
    if (said.host.empty()) return {};
    places.push_back({said.host, said.group_address});
  }
  return places;
}

// The ranks meet under a name that no other epoch, and no other cluster of the host, has.
bool ControlLoop::SendForm(Context& context, const WorkerGroup& group) {
  const auto num_ranks = static_cast<uint32_t>(group.ranks.size());
  protocol::FormGroup form{group.group, protocol::RankId(0), num_ranks, group.epoch};
  if (num_ranks > 1) {
    form.communicator = absl::StrCat(cluster_, "-", group.epoch.value());
    form.places = PlacesOf(group);
    if (!TakesPlacement(group)) balance_.Forget(group.group);
    form.placement = balance_.placement(group.group);
  }
  for (const GroupRank& rank : group.ranks) {
    form.rank = rank.rank;
    if (context.Send(rank.worker, group.epoch, form).ok()) continue;
    const WorkerGroup left = group;
    const protocol::ActorId gone = rank.worker;
    workers_.Remove(gone);
    TellRanks(context, left, gone, "a rank of the group cannot be reached");
    balance_.Ended(left.group);
    return false;
  }
  return true;
}

// A send that fails costs the table a worker, so this ends.
void ControlLoop::FormGroups(Context& context) {
  while (const WorkerGroup* group = workers_.Form(context.Now())) {
    if (!SendForm(context, *group)) SKEIN_LOG(kWarn, "group not formed, its worker is gone");
  }
}

void ControlLoop::Handle(Context& context, const Envelope& envelope,
                         const protocol::GroupFormed& message) {
  const WorkerGroup* group = workers_.Confirm(envelope.from, message);
  if (group == nullptr) return;
  std::vector<protocol::CacheGeometry> geometry;
  for (const GroupRank& rank : group->ranks) {
    geometry.push_back(workers_.registration(rank.worker).geometry);
  }
  const std::vector<scheduler::SequenceDelta> gone =
      scheduler_.StartEpoch(group->group, group->epoch, geometry);
  DeliverEnds(gone);
  if (!first_formed_) first_formed_ = context.Now();
  balance_.Formed(group->group, context.Now());
  SKEIN_LOG(kInfo, "group ready")
      .Field("group", group->group)
      .Field("epoch", group->epoch)
      .Field("worker", group->ranks.front().worker.node)
      .Field("ranks", static_cast<uint64_t>(group->ranks.size()))
      .Field("drafts", DraftsOf(group->ranks.front().worker))
      .Field("ready", NumReady())
      .Field("of", scheduler_.num_groups());
  UpdateReadiness(context.Now());
}

void ControlLoop::Handle(Context& context, const Envelope& envelope,
                         const protocol::AbortEpoch& message) {
  const WorkerGroup* group = workers_.Find(envelope.from);
  if (group == nullptr || group->epoch != message.epoch) return;
  const protocol::GroupId id = group->group;
  if (!group->formed()) {
    SKEIN_LOG(kError, "group not formed")
        .Field("group", id)
        .Field("worker", envelope.from.node)
        .Field("reason", message.reason);
    workers_.Postpone(id, context.Now() + kFormPause);
  }
  EndEpoch(context, id,
           {.cause = "step_failed", .reason = message.reason, .worker = envelope.from});
  UpdateReadiness(context.Now());
  FormGroups(context);
}

// Ends the epoch at the ranks of a group that is dissolved. Who cannot be told has to register
// again.
void ControlLoop::TellRanks(Context& context, const WorkerGroup& group,
                            std::optional<protocol::ActorId> but, std::string_view reason) {
  for (const GroupRank& rank : group.ranks) {
    if (rank.worker == but) continue;
    const absl::Status sent =
        context.Send(rank.worker, group.epoch,
                     protocol::AbortEpoch{group.group, group.epoch, std::string(reason)});
    if (sent.ok()) continue;
    workers_.Remove(rank.worker);
    balance_.Ended(group.group);  // nobody knows when it is formed next
  }
}

// One rank is enough to end the epoch of all: without it no step of the others can end.
void ControlLoop::EndEpoch(Context& context, protocol::GroupId id, const EpochEnd& end) {
  const WorkerGroup group = *workers_.group(id);
  workers_.Dissolve(id);
  steps_.Forget(id);
  TellRanks(context, group, end.worker, end.reason);
  if (end.cause != kRebalanced) balance_.Ended(id);
  if (!scheduler_.has_epoch(id)) return;
  SKEIN_LOG(kWarn, "epoch ended")
      .Field("group", id)
      .Field("cause", end.cause)
      .Field("reason", end.reason);
  metrics_.epoch_changes.At({end.cause}).Increment();
  const uint32_t node = end.worker ? end.worker->node.value() : 0;
  DeliverEnds(scheduler_.AbortInflight(id, end.abort, node, end.failed_lane));
}

// Groups whose ranks do not find each other, and those with steps that ended for want of a rank
// that is not lost: they begin anew, and no request is to blame.
void ControlLoop::CheckGroups(Context& context) {
  const absl::Time now = context.Now();
  for (uint32_t i = 0; i < scheduler_.num_groups(); ++i) {
    const protocol::GroupId id(i);
    const std::optional<WorkerGroup>& group = workers_.group(id);
    if (!group || group->ranks.size() == 1) continue;
    const absl::Duration load =
        balance_.placement(id).empty() ? absl::ZeroDuration() : protocol::kFormLoadTime;
    if (!group->formed() && now - group->since > protocol::FormTime() + load) {
      SKEIN_LOG(kError, "group not formed").Field("group", id).Field("reason", "out of time");
      workers_.Postpone(id, now + kFormPause);
      EndEpoch(context, id, {.cause = "step_aborted", .reason = "its ranks did not meet in time"});
    } else if (group->aborted && now - *group->aborted > kAbortedLeases * options_.lease) {
      EndEpoch(context, id, {.cause = "step_aborted", .reason = "a step ended for want of a rank"});
    }
  }
  FormGroups(context);
}

// A worker before 1.6 would not see a placement.
bool ControlLoop::TakesPlacement(const WorkerGroup& group) const {
  constexpr uint32_t kSince = 6;
  return std::all_of(group.ranks.begin(), group.ranks.end(), [this](const GroupRank& rank) {
    return workers_.registration(rank.worker).protocol_minor >= kSince;
  });
}

bool ControlLoop::InFlight(protocol::GroupId group) const {
  for (uint32_t rank = 0; rank < options_.num_ranks; ++rank) {
    if (scheduler_.engine(scheduler_.EngineOf(group, protocol::RankId(rank))).in_flight())
      return true;
  }
  return false;
}

// Nothing is out of service or about to be: a group that leaves for its experts is the only one.
bool ControlLoop::AllServe(absl::Time now) const {
  if (operations_.PlannedOutage() || door_.draining()) return false;
  for (uint32_t i = 0; i < scheduler_.num_groups(); ++i) {
    if (!operations_.Serves(protocol::GroupId(i), now)) return false;
  }
  return true;
}

void ControlLoop::ProposeRebalance(absl::Time now) {
  balance_.Tick(now);
  if (!AllServe(now)) return;
  for (uint32_t i = 0; i < scheduler_.num_groups(); ++i) {
    const protocol::GroupId id(i);
    if (TakesPlacement(*workers_.group(id)) && balance_.Propose(id, now)) return;
  }
}

// A quiet group whose steps have ended: its sequences go back to the queue with their tokens, and
// its ranks meet with other experts.
void ControlLoop::BeginRebalance(Context& context) {
  for (uint32_t i = 0; i < scheduler_.num_groups(); ++i) {
    const protocol::GroupId id(i);
    if (!balance_.quiet(id) || InFlight(id)) continue;
    // Its last step may have taken long.
    if (!AllServe(context.Now())) {
      balance_.Ended(id);
      continue;
    }
    balance_.Begin(id);
    EndEpoch(context, id, {.cause = kRebalanced, .reason = "its experts change places"});
    UpdateReadiness(context.Now());
    FormGroups(context);
  }
}

void ControlLoop::PlanMoves(Context& context) {
  const absl::Time now = context.Now();
  const auto serves = [&](protocol::GroupId group) { return operations_.Serves(group, now); };
  for (const protocol::ActorId worker : moves_.Plan(context, serves)) {
    LoseWorker(context, worker, "an order to move cache blocks cannot be sent");
  }
}

void ControlLoop::SettleDeath(protocol::ActorId worker, bool own) {
  deaths_.erase(worker);
  DeliverEnds(scheduler_.SettleDeath(worker.node.value(), own));
}

// A worker that its supervisor gave up will not say how it ended: it ended too often.
void ControlLoop::SettleForgotten(absl::Time now) {
  for (auto at = deaths_.begin(); at != deaths_.end();) {
    const auto [worker, since] = *at++;
    if (now - since > kUnexplained) SettleDeath(worker, true);
  }
}

// The worker cannot be reached: its epoch is over, and it has to register again.
void ControlLoop::LoseWorker(Context& context, protocol::ActorId worker, std::string_view reason) {
  if (const WorkerGroup* group = workers_.Find(worker)) {
    deaths_[worker] = context.Now();
    EndEpoch(context, group->group,
             {scheduler::AbortCause::kWorkerLost, "peer_down", reason, worker});
  }
  workers_.Remove(worker);
  UpdateReadiness(context.Now());
  FormGroups(context);
}

}  // namespace skein::coordinator
