#include "tests/sim/sim_system.h"

#include <algorithm>

#include "protocol/base/log.h"

namespace skein::tests {

void SimSystem::At(absl::Time time, std::function<void()> action) {
  heap_.push_back({std::max(time, now_), ++last_ordinal_, std::move(action)});
  std::push_heap(heap_.begin(), heap_.end());
}

bool SimSystem::Step() {
  if (heap_.empty()) return false;
  std::pop_heap(heap_.begin(), heap_.end());
  const Event event = std::move(heap_.back());
  heap_.pop_back();
  now_ = event.time;
  ++num_events_;
  event.action();
  return true;
}

void SimProcess::Start(protocol::ActorSystemOptions options,
                       std::unique_ptr<protocol::Transport> transport,
                       protocol::ActorFactory factory) {
  options.clock = [this] { return system_.Now(); };
  options.random_seed = system_.random().Next();
  const bool listens = options.term != protocol::Term();
  actors_ = std::make_unique<protocol::ThreadedActorSystem>(options, std::move(transport));
  const auto spawned = actors_->Spawn("simulated", std::move(factory));
  SKEIN_CHECK(spawned.ok()) << spawned.status().message();
  const absl::Status reached =
      listens ? actors_->Listen("sim://coordinator")
              : actors_->Connect(protocol::kCoordinatorActor, "sim://coordinator");
  SKEIN_CHECK(reached.ok()) << reached.message();
  const absl::Status started = actors_->Start();
  SKEIN_CHECK(started.ok()) << started.message();
  ScheduleRound(actors_->next_round());
}

void SimProcess::Wake() {
  // A thread is woken a little later, sooner or later than its peers are.
  if (alive()) ScheduleRound(system_.Now() + absl::Microseconds(system_.random().Below(100)));
}

void SimProcess::ScheduleRound(absl::Time at) {
  if (at >= next_round_ || at == absl::InfiniteFuture()) return;
  next_round_ = at;
  const uint64_t round = ++round_;
  system_.At(at, [weak = weak_from_this(), round] {
    const auto self = weak.lock();
    if (self != nullptr && self->alive() && self->round_ == round) self->Round();
  });
}

void SimProcess::Round() {
  next_round_ = absl::InfiniteFuture();
  if (paused()) return ScheduleRound(paused_until_);
  actors_->Round();
  if (!alive()) return;
  if (after_round_) after_round_();
  if (actors_->running()) return ScheduleRound(std::max(actors_->next_round(), system_.Now()));
  const absl::Status reason = actors_->stop_reason();
  Kill();
  on_exit_(reason);
}

void SimProcess::Kill() {
  ++round_;
  actors_.reset();
}

}  // namespace skein::tests
