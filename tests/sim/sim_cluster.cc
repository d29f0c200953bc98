#include "tests/sim/sim_cluster.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "protocol/base/log.h"

namespace skein::tests {

using coordinator::FinishReason;
using coordinator::OperatorCommand;

namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(200);

// Tells a process that something was left for it.
class ProcessWaker final : public protocol::Waker {
 public:
  explicit ProcessWaker(std::weak_ptr<SimProcess> process) : process_(std::move(process)) {}
  void Wake() override {
    if (const auto process = process_.lock()) process->Wake();
  }

 private:
  const std::weak_ptr<SimProcess> process_;
};

// Metrics are written and never read by what runs, and expensive to declare: all runs share them.
coordinator::CoordinatorMetrics& MetricsOf(uint32_t engines) {
  struct Declared {
    explicit Declared(uint32_t engines) : metrics(registry, engines, 5) {}
    protocol::MetricsRegistry registry{{}};
    coordinator::CoordinatorMetrics metrics;
  };
  static auto* declared = new std::map<uint32_t, std::unique_ptr<Declared>>();
  std::unique_ptr<Declared>& found = (*declared)[engines];
  if (found == nullptr) found = std::make_unique<Declared>(engines);
  return found->metrics;
}

std::chrono::steady_clock::time_point ToSteady(absl::Time time) {
  return std::chrono::steady_clock::time_point(absl::ToChronoNanoseconds(time - absl::UnixEpoch()));
}

}  // namespace

SimCluster::SimCluster(uint64_t seed, const SimConfig& config)
    : config_(config),
      system_(seed),
      random_(system_.random().Fork()),
      workload_(config_, system_.random().Fork()),
      network_(system_, config.network),
      meetings_([this](std::string what) { oracles_.Violate(8, std::move(what)); }),
      nodes_(config.workers.size()),
      devices_(config.workers),
      losses_before_(Losses()),
      stale_results_before_(Metrics().stale_results.value()) {}

SimCluster::~SimCluster() {
  if (coordinator_.process != nullptr) coordinator_.process->Kill();
  for (Node& node : nodes_) {
    if (node.process != nullptr) node.process->Kill();
  }
}

// ---- processes

void SimCluster::StartCoordinator() {
  coordinator_.drained = false;
  coordinator_.process = std::make_shared<SimProcess>(system_, [this](const absl::Status&) {
    marks_.Reach(Mark::kCoordinatorDrained);
    EndCoordinator();
  });
  const std::shared_ptr<SimProcess> process = coordinator_.process;
  coordinator_.waker = std::make_unique<ProcessWaker>(process);
  coordinator_.door = std::make_unique<coordinator::FrontDoorQueue>(
      config_.door, *coordinator_.waker, [this] { return ToSteady(system_.Now()); });
  coordinator_.operators = std::make_unique<coordinator::OperatorQueue>(*coordinator_.waker);
  process->SetAfterRound([this] { AfterControlRound(); });
  protocol::ActorSystemOptions options;
  options.self = protocol::kCoordinatorActor;
  options.term = protocol::Term(++term_);
  options.beat_interval = config_.beat;
  options.lease = config_.lease;
  coordinator::ControlOptions control;
  control.limits = config_.limits;
  control.num_groups = config_.num_groups;
  control.num_ranks = config_.num_ranks;
  control.term = options.term;
  control.queued_tokens_max = config_.door.queued_tokens_max;
  control.lease = config_.lease;
  control.shutdown_timeout = config_.shutdown_timeout;
  control.rollout = config_.rollout;
  control.rebalance_interval = config_.rebalance_interval;
  control.cache_secret = coordinator::HmacSha256("simulation", std::to_string(term_));
  process->Start(options, std::make_unique<SimTransport>(network_, options.self, process),
                 [&](protocol::Waker&) {
                   auto loop = std::make_unique<coordinator::ControlLoop>(
                       control, *coordinator_.door, MetricsOf(config_.num_engines()),
                       coordinator_.drained, coordinator_.operators.get());
                   coordinator_.loop = loop.get();
                   return loop;
                 });
}

// The process is gone; its clients see their connections close.
void SimCluster::EndCoordinator() {
  if (coordinator_.process->alive()) ObserveLast(*coordinator_.process);
  coordinator_.process->Kill();
  coordinator_.loop = nullptr;
  for (const auto& client : clients_) {
    if (!client->over()) client->Lose();
  }
  system_.After(random_.Between(absl::Milliseconds(20), absl::Seconds(3)),
                [this] { StartCoordinator(); });
}

void SimCluster::StartWorker(size_t index) {
  Node& node = nodes_[index];
  node.process = std::make_shared<SimProcess>(
      system_, [this, index](const absl::Status& reason) { OnWorkerExit(index, reason); });
  const std::shared_ptr<SimProcess> process = node.process;
  const protocol::Incarnation incarnation(++node.incarnation);
  if (node.running.dies_at_start && !healed_) {
    system_.After(absl::Milliseconds(50), [this, index, incarnation] {
      if (nodes_[index].incarnation == incarnation.value()) {
        EndWorker(index, protocol::PredecessorEnd::kOwn);
      }
    });
    return;
  }
  worker::WorkerActorOptions actor;
  actor.registration.build = node.running.name;
  actor.registration.backend = actor.registration.numerics = "simulated";
  actor.registration.model = "simulated";
  actor.registration.incarnation = incarnation;
  actor.registration.geometry = config_.workers[index].geometry;
  actor.registration.predecessor_end = node.end;
  actor.registration.rank = protocol::RankId(static_cast<uint32_t>(index) % config_.num_ranks);
  actor.registration.num_ranks = config_.num_ranks;
  actor.registration.cache_layout = "simulated";
  if (config_.limits.moves_blocks) actor.registration.block_address = "simulated";
  actor.beat = config_.beat;
  actor.coordinator_wait = config_.coordinator_wait;
  actor.on_group_formed = [this, index] { nodes_[index].failed_starts = 0; };
  protocol::ActorSystemOptions options;
  options.self = ActorOf(index);
  options.incarnation = incarnation;
  options.beat_interval = config_.beat;
  options.lease = config_.lease;
  DeviceEvents events;
  events.on_violation = [this](int oracle, std::string what) {
    oracles_.Violate(oracle, std::move(what));
  };
  events.on_death = [this, index](const std::string&) {
    EndWorker(index, protocol::PredecessorEnd::kOwn);
  };
  const bool wrong = node.running.wrong_model;
  process->Start(options, std::make_unique<SimTransport>(network_, options.self, process),
                 [&](protocol::Waker& waker) {
                   return std::make_unique<worker::WorkerActor>(
                       std::move(actor), std::make_unique<SimStepRunner>(
                                             system_, meetings_, transfers_, devices_[index], wrong,
                                             std::move(events), waker));
                 });
}

// The process ended, or is killed now; its supervisor starts it again.
void SimCluster::EndWorker(size_t index, protocol::PredecessorEnd end) {
  Node& node = nodes_[index];
  if (node.process == nullptr) return;
  if (node.process->alive()) ObserveLast(*node.process);
  marks_.Reach(Mark::kWorkerOrdered, end == protocol::PredecessorEnd::kOrdered);
  marks_.Reach(Mark::kWorkerOwnDeath, end == protocol::PredecessorEnd::kOwn);
  own_deaths_ += end == protocol::PredecessorEnd::kOwn ? 1 : 0;
  marks_.Reach(Mark::kKilledDuringRollout, rolling_ && end == protocol::PredecessorEnd::kOutside);
  node.process->Kill();
  node.process.reset();
  node.end = end;
  if (end == protocol::PredecessorEnd::kOrdered && node.installed) {
    node.before = std::exchange(node.running, *std::exchange(node.installed, std::nullopt));
    node.failed_starts = 0;
  } else if (end == protocol::PredecessorEnd::kOwn && ++node.failed_starts >= 2 &&
             node.running.dies_at_start) {
    node.running = node.before;
  }
  system_.After(random_.Between(absl::Milliseconds(50), absl::Seconds(2)),
                [this, index] { StartWorker(index); });
}

// As JudgeEnd has it: the codes of a refusal and of its own failures are its own doing.
void SimCluster::OnWorkerExit(size_t index, const absl::Status& reason) {
  if (reason.ok()) return EndWorker(index, protocol::PredecessorEnd::kOrdered);
  if (absl::IsFailedPrecondition(reason)) {
    marks_.Reach(Mark::kWorkerRefused);
    nodes_[index].running = nodes_[index].before;
    return EndWorker(index, protocol::PredecessorEnd::kOwn);
  }
  if (!absl::IsUnavailable(reason)) {
    oracles_.Violate(6, absl::StrCat("worker ", index + 1, " gave up: ", reason.message()));
  }
  marks_.Reach(Mark::kWorkerGaveUp);
  if (!config_.may_lose_workers()) {
    oracles_.Violate(6, "a worker gave up although its coordinator was there all the time");
  }
  EndWorker(index, protocol::PredecessorEnd::kOutside);
}

void SimCluster::AfterControlRound() {
  if (coordinator_.loop == nullptr) return;
  ObserveRound();
  oracles_.CheckScheduler(coordinator_.loop->scheduler());
  oracles_.CheckDoor(*coordinator_.door, config_.door);
  CheckDeadlines();
  // As the listener does it when its last connection is closed.
  if (coordinator_.door->draining() && !AnyOpen()) coordinator_.drained = true;
}

// A loop that runs looks at deadlines each 100 ms.
void SimCluster::CheckDeadlines() {
  if (config_.Has(Fault::kPauseCoordinator)) return;
  const auto& sequences = coordinator_.loop->scheduler().sequences();
  for (const auto& client : clients_) {
    const coordinator::SubmitRequest& submit = client->request().submit;
    if (client->over() || !submit.deadline ||
        ToSteady(system_.Now() - absl::Milliseconds(200)) < *submit.deadline) {
      continue;
    }
    const auto found = sequences.find(coordinator::SequenceOf(submit.id));
    if (found != sequences.end() && found->second->cancelled) continue;
    oracles_.Violate(2, absl::StrCat("request ", submit.id.value(), " goes on after its deadline"));
  }
}

// Transfers end by themselves, with or without those who waited for them.
bool SimCluster::AnyMoves() const {
  const scheduler::ClusterScheduler& scheduler = coordinator_.loop->scheduler();
  for (uint32_t i = 0; i < scheduler.num_engines(); ++i) {
    const scheduler::GroupScheduler& engine = scheduler.engine(i);
    if (!engine.loans().empty() || !engine.arrivals().empty()) return true;
  }
  return false;
}

bool SimCluster::AnyOpen() const {
  return std::any_of(clients_.begin(), clients_.end(),
                     [](const auto& client) { return !client->over(); });
}

// ---- clients and operators

bool SimCluster::HasCause(const SimClient& client, const absl::Status& error) const {
  const ClientRequest& request = client.request();
  switch (error.code()) {
    case absl::StatusCode::kCancelled:
      return client.cancelled();
    case absl::StatusCode::kDeadlineExceeded:
      return request.submit.deadline && *request.submit.deadline <= ToSteady(system_.Now());
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kResourceExhausted:
      return !request.fits;
    case absl::StatusCode::kUnavailable:  // the drain's deadline, or too many deaths beside others
      return coordinator_.door->draining() || own_deaths_ > scheduler::kCountedReplaysMax;
    case absl::StatusCode::kAborted:
      return request.poison || own_deaths_ > scheduler::kProbationMarks;
    case absl::StatusCode::kInternal:
      return request.failing || config_.failed_steps();
    default:
      return false;
  }
}

const coordinator::CoordinatorMetrics& SimCluster::Metrics() const {
  return MetricsOf(config_.num_engines());
}

// Workers that were lost, in all runs.
double SimCluster::Losses() const {
  const coordinator::CoordinatorMetrics& metrics = Metrics();
  return metrics.epoch_changes.At({"peer_down"}).value() +
         metrics.epoch_changes.At({"registered_again"}).value();
}

void SimCluster::Submit(ClientRequest request) {
  if (coordinator_.loop == nullptr) {
    ++refused_;
    return;
  }
  request.submit.arrival = ToSteady(system_.Now());
  if (!healed_ && random_.OneIn(config_.deadline_one_in)) {
    request.submit.deadline =
        ToSteady(system_.Now() + random_.Between(absl::Milliseconds(10), absl::Seconds(4)));
  }
  auto client = std::make_shared<SimClient>(
      std::move(request), oracles_,
      [this](const SimClient& of, const absl::Status& error) { return HasCause(of, error); });
  const absl::Status status = coordinator_.door->TrySubmit(client->Submit(client));
  system_.Trace(static_cast<uint64_t>(status.code()));
  if (!status.ok()) {
    ++refused_;
    ObserveRefusal(status);
    if (absl::IsInvalidArgument(status) || (absl::IsAborted(status) && !client->request().poison &&
                                            own_deaths_ <= scheduler::kProbationMarks)) {
      oracles_.Violate(2, absl::StrCat("the front door refuses: ", status.message()));
    }
    return;
  }
  clients_.push_back(client);
  if (!healed_ && random_.OneIn(config_.cancel_one_in)) {
    system_.After(random_.Between(absl::ZeroDuration(), absl::Seconds(2)), [this, client] {
      if (coordinator_.loop == nullptr) return;
      marks_.Reach(Mark::kCancelledTooLate, client->over());
      if (!client->over()) client->SetCancelled();
      coordinator_.door->Cancel({client->request().submit.id});
    });
  }
}

void SimCluster::Ask(OperatorCommand command) {
  if (coordinator_.loop == nullptr) return;
  command.actor = "simulation";
  command.reply = [this](coordinator::OperatorAnswer answer) {
    ObserveStatus(answer.cluster);
    status_ = std::move(answer.cluster);
  };
  // A coordinator that stands still refuses when enough wait.
  const absl::Status pushed = coordinator_.operators->TryPush(std::move(command));
  system_.Trace(static_cast<uint64_t>(pushed.code()));
}

// ---- the end of the run

std::string SimCluster::DescribeStall() const {
  if (coordinator_.loop == nullptr) return "the coordinator is gone";
  const size_t open = static_cast<size_t>(std::count_if(
      clients_.begin(), clients_.end(), [](const auto& client) { return !client->over(); }));
  std::string what = absl::StrCat(open, " requests have not ended, the cluster is ",
                                  coordinator_.door->ready() ? "ready" : "not ready");
  const scheduler::ClusterScheduler& scheduler = coordinator_.loop->scheduler();
  for (uint32_t i = 0; i < scheduler.num_engines(); ++i) {
    const scheduler::GroupScheduler& engine = scheduler.engine(i);
    absl::StrAppend(&what, "; engine ", i, ": epoch ", engine.has_epoch(), ", cordoned ",
                    engine.cordoned(), ", running ", engine.num_running(), ", probation ",
                    engine.probation() != nullptr, ", in flight ", engine.in_flight(), " with ",
                    engine.in_flight(0).parts.size(), ", free blocks ", engine.num_free_blocks(),
                    ", loans ", engine.loans().size(), ", arrivals ", engine.arrivals().size());
  }
  for (const auto& [id, sequence] : scheduler.sequences()) {
    const scheduler::Suspicion& suspicion = sequence->suspicion;
    absl::StrAppend(&what, "; sequence ", id.value(), ": state ", static_cast<int>(sequence->state),
                    ", engine ", sequence->engine, ", lane ", sequence->lane, ", computed ",
                    sequence->computed, " of ", sequence->length(), ", failures ",
                    sequence->step_failures, ", marks ", suspicion.marks(),
                    suspicion.held() ? ", held" : "", sequence->pinned ? ", pinned" : "",
                    sequence->awaits ? ", awaits blocks" : "",
                    sequence->moved_to ? absl::StrCat(", moved to ", *sequence->moved_to) : "");
  }
  return what;
}

void SimCluster::Settle() {
  if (system_.Now() > deadline_) {
    oracles_.Violate(7, DescribeStall());
    return;
  }
  system_.After(kPoll, [this] { Settle(); });
  if (!Repaired() || coordinator_.loop == nullptr) return;
  // What is left without a client is a check that a rollout does not need any more.
  if (AnyOpen() || coordinator_.door->draining() || !coordinator_.loop->scheduler().empty()) return;
  if (AnyMoves()) return;
  if (canary_ != nullptr && canary_->finish() == FinishReason::kLength) return CheckEnd();
  if (!coordinator_.door->ready()) return;
  // Ready means that a generation succeeds now.
  if (canary_ != nullptr && canary_->over() && canary_->finish()) {
    oracles_.Violate(7,
                     absl::StrCat("ready, and a generation fails: ", canary_->error().message()));
  }
  const size_t before = clients_.size();
  Submit(workload_.DrawCanary());
  if (clients_.size() == before) {
    return oracles_.Violate(7, "ready, and a generation is refused");
  }
  canary_ = clients_.back();
}

// I7: what a request finds in the cache was computed for its own tenant and salt.
void SimCluster::CheckIsolation(const SimClient& client) {
  const coordinator::SubmitRequest& submit = client.request().submit;
  for (const auto& other : clients_) {
    const ClientRequest& request = other->request();
    if (request.submit.id == submit.id || request.submit.tenant != submit.tenant ||
        request.submit.cache_salt != submit.cache_salt) {
      continue;
    }
    std::vector<int32_t> tokens = request.submit.prompt_ids;
    tokens.insert(tokens.end(), request.answer.begin(), request.answer.end());
    const auto end = std::mismatch(tokens.begin(), tokens.end(), submit.prompt_ids.begin(),
                                   submit.prompt_ids.end());
    if (end.first - tokens.begin() >= static_cast<std::ptrdiff_t>(client.cached_tokens())) return;
  }
  oracles_.Violate(1, absl::StrCat("request ", submit.id.value(), " finds ", client.cached_tokens(),
                                   " tokens that nobody of its tenant computed"));
}

void SimCluster::CheckEnd() {
  done_ = true;
  for (const auto& client : clients_) {
    if (client->cached_tokens() > 0) CheckIsolation(*client);
  }
  // What comes back within the lease is no loss.
  if (!config_.may_lose_workers() && Losses() > losses_before_) {
    oracles_.Violate(6, "a worker was lost although it was there all the time");
  }
  oracles_.CheckIdle(coordinator_.loop->scheduler(), *coordinator_.door);
}

SimOutcome SimCluster::Run() {
  StartCoordinator();
  for (size_t i = 0; i < nodes_.size(); ++i) {
    system_.After(random_.Between(absl::ZeroDuration(), absl::Seconds(1)),
                  [this, i] { StartWorker(i); });
  }
  for (uint32_t i = 0; i < config_.num_requests; ++i) SubmitNext();
  ScheduleFaults();
  system_.At(begin_ + config_.horizon, [this] { Heal(); });
  while (!done_ && oracles_.ok() && system_.Step()) {
  }
  SimOutcome outcome;
  outcome.violation = oracles_.what();
  outcome.trace = system_.trace();
  outcome.events = system_.num_events();
  outcome.lasted = Elapsed();
  outcome.refused = refused_;
  for (const auto& client : clients_) {
    const bool answered =
        client->finish() == FinishReason::kStop || client->finish() == FinishReason::kLength;
    outcome.answered += answered ? 1 : 0;
    outcome.failed += client->finish() == FinishReason::kError ? 1 : 0;
  }
  ObserveEnd();
  outcome.stale_dropped = stale_dropped_;
  outcome.marks = marks_;
  return outcome;
}

SimOutcome RunSeed(uint64_t seed, bool faults) {
  SimRandom random(seed);
  const SimConfig config = DrawConfig(random, faults);
  return SimCluster(random.Next(), config).Run();
}

}  // namespace skein::tests
