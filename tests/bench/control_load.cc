// Requests over kept connections; a stream is counted event by event.
// Thread: main's. Must never count a failed request as an answer.
#include "tests/bench/control_load.h"

#include <utility>

namespace skein::bench {
namespace {

double MicrosBetween(ControlLoad::Clock::time_point from, ControlLoad::Clock::time_point to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

}  // namespace

ControlLoad::ControlLoad(std::unique_ptr<protocol::HttpClientPool> pool, LoadSpec spec)
    : spec_(std::move(spec)),
      pool_(std::move(pool)),
      slots_(static_cast<size_t>(spec_.concurrency)) {
  for (const std::string& body : spec_.bodies) {
    requests_.push_back(protocol::KeptRequest("POST", spec_.target, "127.0.0.1", "", body));
  }
}

absl::StatusOr<std::unique_ptr<ControlLoad>> ControlLoad::Create(uint16_t port, LoadSpec spec) {
  protocol::HttpClientPool::Options options;
  options.port = port;
  auto pool = protocol::HttpClientPool::Create(options);
  if (!pool.ok()) return pool.status();
  return std::unique_ptr<ControlLoad>(new ControlLoad(*std::move(pool), std::move(spec)));
}

void ControlLoad::StartNext(uint64_t slot) {
  if (stops_ || num_started_ >= spec_.requests_max) return;
  Slot& state = slots_[slot];
  state.has_event = false;
  state.events.Clear();
  state.sent = Clock::now();
  pool_->Start(slot, requests_[num_started_++ % requests_.size()]);
}

void ControlLoad::OnBody(uint64_t slot, int status, std::string_view bytes, Clock::time_point at) {
  if (status != 200) {
    if (counts_.first_failure.size() < 300) counts_.first_failure += bytes;
    return;
  }
  Slot& state = slots_[slot];
  state.events.Feed(bytes, [&](std::string_view event) {
    if (event == "[DONE]") return true;
    ++counts_.events;
    if (!state.has_event) {
      state.has_event = true;
      ++counts_.open;
      counts_.ttft_us.push_back(MicrosBetween(state.sent, at));
    }
    return true;
  });
}

void ControlLoad::OnEnd(uint64_t slot, int status, const absl::Status& result,
                        Clock::time_point at) {
  if (slots_[slot].has_event) --counts_.open;
  if (result.ok() && status == 200) {
    ++counts_.answers;
    counts_.e2e_us.push_back(MicrosBetween(slots_[slot].sent, at));
  } else {
    ++counts_.failures;
    if (counts_.first_failure.empty()) counts_.first_failure = std::string(result.message());
  }
  StartNext(slot);
}

LoadCounts ControlLoad::Run(std::chrono::milliseconds warm_up) {
  for (uint64_t slot = 0; slot < slots_.size(); ++slot) StartNext(slot);
  const auto poll_until = [this](Clock::time_point end) {
    while (pool_->num_calls() > 0 && Clock::now() < end) {
      pool_->Poll(std::chrono::milliseconds(5), *this);
    }
  };
  poll_until(Clock::now() + warm_up);
  const uint64_t open = counts_.open;
  counts_ = LoadCounts();
  counts_.open = open;
  const Clock::time_point begin = Clock::now();
  poll_until(begin + spec_.duration);
  counts_.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  stops_ = true;
  return counts_;
}

LoadCounts ControlLoad::Open(uint64_t open, std::chrono::milliseconds limit) {
  const Clock::time_point begin = Clock::now();
  // In portions, so that the backlog of the listener is never the limit.
  uint64_t slot = 0;
  while (counts_.open < open && Clock::now() < begin + limit) {
    for (int i = 0; i < 64 && slot < slots_.size(); ++i) StartNext(slot++);
    pool_->Poll(std::chrono::milliseconds(slot < slots_.size() ? 0 : 5), *this);
  }
  counts_.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return counts_;
}

}  // namespace skein::bench
