// What goes wrong in a simulated cluster, what its operators do meanwhile, and how they repair it
// in the end.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/sim_cluster.h"

namespace skein::tests {

using coordinator::OperatorCommand;
using coordinator::RolloutState;

namespace {

bool Active(const coordinator::ClusterStatus& status) {
  return status.rollout.state == RolloutState::kRunning ||
         status.rollout.state == RolloutState::kPaused;
}

OperatorCommand Verb(OperatorCommand::Verb verb, std::optional<uint32_t> group = std::nullopt) {
  OperatorCommand command;
  command.verb = verb;
  command.group = group;
  return command;
}

OperatorCommand RolloutVerb(std::string action, std::string build = "") {
  OperatorCommand command = Verb(OperatorCommand::Verb::kRollout);
  command.action = std::move(action);
  command.build = std::move(build);
  return command;
}

}  // namespace

// Spread over the time, some together.
void SimCluster::SubmitNext() {
  const absl::Duration at = random_.Between(absl::Milliseconds(200), config_.horizon);
  system_.After(at, [this] {
    Submit(workload_.Draw());
    if (random_.OneIn(config_.burst_one_in)) Submit(workload_.Draw());
  });
}

// Each kind that this run has, again and again at random distances.
void SimCluster::ScheduleFaults() {
  if (config_.Has(Fault::kRollout) || config_.Has(Fault::kRolloutOfBadBuild)) Watch();
  for (size_t i = 0; i < kNumFaults; ++i) ScheduleFault(static_cast<Fault>(i));
}

// Operators look how it goes.
void SimCluster::Watch() {
  system_.After(absl::Milliseconds(300), [this] {
    if (healed_) return;
    Ask(Verb(OperatorCommand::Verb::kStatus));
    Watch();
  });
}

void SimCluster::ScheduleFault(Fault fault) {
  if (!config_.Has(fault)) return;
  const absl::Duration every = config_.every[static_cast<size_t>(fault)];
  system_.After(random_.Between(absl::ZeroDuration(), 2 * every), [this, fault] {
    if (healed_) return;
    Inject(fault);
    ScheduleFault(fault);
  });
}

void SimCluster::Inject(Fault fault) {
  const size_t node = random_.Below(static_cast<uint32_t>(nodes_.size()));
  const uint32_t group = random_.Below(config_.num_groups);
  system_.Trace(static_cast<uint64_t>(fault) << 32 | node);
  // Shorter than suspicion, about a lease, or longer.
  const absl::Duration while_ = random_.Between(config_.beat, 3 * config_.lease);
  switch (fault) {
    case Fault::kKillWorker:
      return EndWorker(node, protocol::PredecessorEnd::kOutside);
    case Fault::kCrashWorker:
      return EndWorker(node, protocol::PredecessorEnd::kOwn);
    case Fault::kPauseWorker:
      if (nodes_[node].process != nullptr) nodes_[node].process->Pause(while_);
      return;
    case Fault::kPauseCoordinator:
      return coordinator_.process->Pause(while_);
    case Fault::kCut:
      return network_.Cut(ActorOf(node));
    case Fault::kClogUp:
      return network_.Clog(ActorOf(node), Direction::kUp, while_);
    case Fault::kClogDown:
      return network_.Clog(ActorOf(node), Direction::kDown, while_);
    case Fault::kPartition:
      network_.Clog(ActorOf(node), Direction::kUp, while_);
      network_.Clog(ActorOf(node), Direction::kDown, while_);
      return;
    case Fault::kRefuse:
      network_.Refuse(ActorOf(node), while_);
      return network_.Cut(ActorOf(node));
    case Fault::kCrashCoordinator:
      marks_.Reach(Mark::kCoordinatorCrashed);
      if (coordinator_.loop != nullptr) EndCoordinator();
      return;
    case Fault::kDrainCoordinator:
      if (coordinator_.loop != nullptr) coordinator_.door->StartDraining();
      return;
    case Fault::kDrainGroup:
      return Ask(Verb(OperatorCommand::Verb::kDrain, group));
    case Fault::kUndrainGroup:
      return Ask(Verb(OperatorCommand::Verb::kUndrain, group));
    case Fault::kCloseServer:
      return Ask(Verb(OperatorCommand::Verb::kDrain));
    case Fault::kOpenServer:
      return Ask(Verb(OperatorCommand::Verb::kUndrain));
    case Fault::kRollout:
      return StartRollout(false);
    case Fault::kRolloutOfBadBuild:
      return StartRollout(true);
    case Fault::kRolloutVerb: {
      const uint32_t verb = random_.Below(3);
      return Ask(RolloutVerb(verb == 0 ? "pause" : verb == 1 ? "resume" : "abort"));
    }
  }
}

// A new program is installed everywhere; workers that are told to end come back with it.
void SimCluster::StartRollout(bool bad) {
  Build build;
  build.name = absl::StrCat("build ", ++num_builds_);
  build.wrong_model = bad && random_.OneIn(2);
  build.dies_at_start = bad && !build.wrong_model;
  for (Node& node : nodes_) node.installed = build;
  Ask(RolloutVerb("start", random_.OneIn(2) ? build.name : ""));
}

// ---- the end of the run

void SimCluster::Heal() {
  healed_ = true;
  network_.Heal();
  size_t tokens = 1;
  for (const auto& client : clients_) {
    tokens += client->request().submit.prompt_ids.size() + client->request().answer.size();
  }
  absl::Duration step = absl::Milliseconds(1);
  for (DeviceOptions& device : devices_) {
    step = std::max(step, device.step_max * 20);
    device.slow_one_in = device.fail_one_in = device.hang_one_in = device.death_one_in = 0;
    device.lose_moves_one_in = 0;
  }
  for (Node& node : nodes_) node.installed.reset();
  // What is held for a verdict waits for a minute; a rollout goes through all its timeouts.
  deadline_ = system_.Now() + absl::Seconds(400) + static_cast<int64_t>(tokens) * step;
  Settle();
}

// Operators end what is under way, let all groups in again, and replace what was left out. One
// question at a time; one whose coordinator is gone is asked again.
bool SimCluster::Repaired() {
  const std::optional<coordinator::ClusterStatus> status = std::exchange(status_, std::nullopt);
  if (!status) {
    Ask(Verb(OperatorCommand::Verb::kStatus));
    return false;
  }
  if (Active(*status)) {
    Ask(repairing_ ? Verb(OperatorCommand::Verb::kStatus) : RolloutVerb("abort"));
    return false;
  }
  const bool cordoned = std::any_of(status->groups.begin(), status->groups.end(),
                                    [](const auto& group) { return group.cordoned; });
  if (!cordoned && !status->closed) return true;
  if (std::exchange(undrained_, !undrained_)) {
    repairing_ = true;
    StartRollout(false);
  } else {
    Ask(Verb(OperatorCommand::Verb::kUndrain));
  }
  return false;
}

}  // namespace skein::tests
