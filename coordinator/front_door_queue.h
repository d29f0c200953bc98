// The front door as the HTTP thread sees it: bounds are checked at once against counters that the
// control loop keeps, and what passes is moved into its mailbox. Any thread calls TrySubmit and
// Cancel; TakeAll and the setters belong to the control thread. Must never wait.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/front_door.h"
#include "coordinator/queue_delay.h"
#include "protocol/actor/mailbox.h"
#include "scheduler/quarantine.h"

namespace skein::coordinator {

using FrontDoorEvent = std::variant<SubmitRequest, CancelRequest>;

struct FrontDoorLimits {
  uint32_t queued_requests_max = 0;
  uint64_t queued_tokens_max = 0;  // until SetQueuedTokensMax
  std::chrono::nanoseconds delay_max{0};  // see QueueDelay
};

class FrontDoorQueue final : public FrontDoor {
 public:
  using Clock = std::function<std::chrono::steady_clock::time_point()>;

  // `control` is woken for each event and outlives the queue. `clock` is that of arrivals and
  // deadlines; a simulation has its own. Any thread calls it.
  FrontDoorQueue(const FrontDoorLimits& limits, protocol::Waker& control,
                 Clock clock = &std::chrono::steady_clock::now);

  std::chrono::steady_clock::time_point Now() const { return clock_(); }

  absl::Status TrySubmit(SubmitRequest request) override;
  void Cancel(CancelRequest request) override;

  std::vector<FrontDoorEvent> TakeAll() { return events_.TakeAll(); }

  // `accepting`: requests are taken although nothing runs now, because what is missing comes back
  // within a planned time. Ready implies it.
  void SetReady(bool ready, bool accepting) {
    if (ready && !ready_) delay_.Begin(clock_());
    ready_ = ready;
    accepting_ = ready || accepting;
    if (ready) was_ready_ = true;
  }
  void SetReady(bool ready) { SetReady(ready, ready); }
  // Prompts to refuse from here on.
  void SetQuarantine(std::shared_ptr<const scheduler::Quarantine> quarantine) {
    quarantine_ = std::move(quarantine);
  }
  // An operator lets nobody in, or lets all in again; what runs goes on. Control thread.
  void SetClosed(bool closed) { closed_ = closed; }
  // The control loop runs: it says so at least every 100 ms. Control thread.
  void Pulse() { pulse_ = clock_().time_since_epoch().count(); }
  void SetQueuedTokensMax(uint64_t tokens) { queued_tokens_max_ = tokens; }
  // A submitted request waits no more: it runs, or it is gone.
  void Leave(uint64_t prompt_tokens, std::string_view flow);
  // A request runs that waited so long. Control thread.
  void NoteStart(std::chrono::nanoseconds waited) { delay_.Started(waited, clock_()); }
  // Refuses everything from here on. Any thread.
  void StartDraining();

  // Events that wait for the control loop. Any thread.
  size_t mailbox_depth() const { return events_.depth(); }
  bool ready() const { return ready_; }
  bool closed() const { return closed_; }
  // How long the control loop has not run.
  std::chrono::nanoseconds SincePulse() const;
  // A group was ready at some time.
  bool was_ready() const { return was_ready_; }
  bool draining() const { return draining_; }
  uint32_t waiting_requests() const { return waiting_requests_; }
  uint64_t waiting_tokens() const { return waiting_tokens_; }
  // Seconds that a request will wait that comes now.
  double PredictedWait() const;

 private:
  absl::Status Enter(uint64_t prompt_tokens, std::string_view flow);
  // How many of a flow wait, or of one with the same hash: exact enough for what it is used for.
  std::atomic<uint32_t>& WaitingOf(std::string_view flow);
  absl::Status CheckQuarantine(const SubmitRequest& request) const;

  const uint32_t queued_requests_max_;
  QueueDelay delay_;
  std::atomic<uint64_t> queued_tokens_max_;
  std::atomic<bool> ready_ = false;
  std::atomic<bool> accepting_ = false;
  std::atomic<bool> closed_ = false;
  std::atomic<int64_t> pulse_ = 0;  // steady clock, ns; 0: not started
  std::atomic<std::shared_ptr<const scheduler::Quarantine>> quarantine_;
  std::atomic<bool> was_ready_ = false;
  std::atomic<bool> draining_ = false;
  std::atomic<uint32_t> waiting_requests_ = 0;
  std::atomic<uint64_t> waiting_tokens_ = 0;
  std::array<std::atomic<uint32_t>, 1024> waiting_by_flow_{};  // by hash
  protocol::Waker& control_;
  const Clock clock_;
  protocol::Mailbox<FrontDoorEvent> events_;
};

}  // namespace skein::coordinator
