#include "kernels/cpu/thread_pool.h"

namespace skein::kernels::cpu {
namespace {

// Looks at the gate before a thread blocks: some tens of microseconds, the distance between two
// operators of a step.
constexpr int kSpins = 2000;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  for (int thread = 1; thread < threads; ++thread) {
    workers_.emplace_back([this, thread] { WorkerLoop(thread); });
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  gate_.fetch_add(kNextCall);
  gate_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(int64_t tasks, const void* target, Call call) {
  tasks_ = tasks;
  target_ = target;
  call_ = call;
  next_task_.store(0, std::memory_order_relaxed);
  // Nobody is inside and the gate is closed: a plain add opens the next call.
  gate_.fetch_add(kNextCall + kOpen, std::memory_order_release);
  gate_.notify_all();
  Drain(0);
  uint32_t gate = gate_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
  for (int spin = 0; (gate & kInside) != 0; ++spin) {
    if (spin < kSpins) {
      Pause();
    } else {
      gate_.wait(gate, std::memory_order_acquire);
    }
    gate = gate_.load(std::memory_order_acquire);
  }
}

void ThreadPool::Drain(int thread) {
  while (true) {
    const int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (task >= tasks_) return;
    call_(target_, task, thread);
  }
}

void ThreadPool::WorkerLoop(int thread) {
  uint32_t done_call = 0;
  int spin = 0;
  while (!stopping_.load()) {
    uint32_t gate = gate_.load(std::memory_order_acquire);
    const uint32_t call = gate & ~(kInside | kOpen);
    if (call == done_call || (gate & kOpen) == 0) {
      if (++spin < kSpins) {
        Pause();
      } else {
        gate_.wait(gate, std::memory_order_acquire);
        spin = 0;
      }
      continue;
    }
    if (!gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel)) continue;
    Drain(thread);
    done_call = call;
    spin = 0;
    const uint32_t before = gate_.fetch_sub(1, std::memory_order_acq_rel);
    if ((before & kOpen) == 0 && (before & kInside) == 1) gate_.notify_all();
  }
}

}  // namespace skein::kernels::cpu
