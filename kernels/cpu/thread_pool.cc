#include "kernels/cpu/thread_pool.h"

#include <climits>

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace skein::kernels::cpu {
namespace {

// A thread without work looks at the gate this often between two yields, and blocks after so many
// yields: some hundreds of microseconds, longer than any serial stretch of a step. The first looks
// last longer than most stretches, since a yield may hand the processor to somebody else.
constexpr int kLooks = 512;
constexpr int kYields = 25;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void FutexWait(std::atomic<uint32_t>& word, uint32_t value) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void FutexWakeAll(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void BindSelf(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  // A processor that was taken away meanwhile leaves the thread where the system puts it.
  (void)sched_setaffinity(0, sizeof(set), &set);
}

}  // namespace

std::vector<int> UsableProcessorList() {
  std::vector<int> processors;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return processors;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) processors.push_back(i);
  }
  return processors;
}

ThreadPool::ThreadPool(const ThreadPoolOptions& options)
    : shares_(static_cast<size_t>(options.threads < 1 ? 1 : options.threads)) {
  if (options.processors.size() >= static_cast<size_t>(options.threads < 1 ? 1 : options.threads)) {
    processors_ = options.processors;
  }
  for (int thread = 1; thread < options.threads; ++thread) {
    workers_.emplace_back([this, thread] { WorkerLoop(thread); });
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  gate_.fetch_add(kNextCall);
  FutexWakeAll(gate_);
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(int64_t tasks, const void* target, Call call) {
  if (!caller_bound_ && !processors_.empty()) {
    BindSelf(processors_[0]);
    caller_bound_ = true;
  }
  for (int64_t first = 0; first < tasks; first += kMostTasks) {
    RunSome(first, tasks - first < kMostTasks ? tasks - first : kMostTasks, target, call);
  }
}

void ThreadPool::RunSome(int64_t first, int64_t tasks, const void* target, Call call) {
  number_ = (number_ + 1) & kMostCalls;
  first_ = first;
  tasks_ = tasks;
  target_ = target;
  call_ = call;
  // Nobody is inside and the gate is closed: a plain add opens the next call. Sequentially
  // consistent against the count of sleepers, so that no sleeper is overlooked.
  gate_.fetch_add(kNextCall + kOpen, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) FutexWakeAll(gate_);
  Drain(0);
  uint32_t gate = gate_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
  while ((gate & kInside) != 0) {
    AwaitChange(gate);
    gate = gate_.load(std::memory_order_acquire);
  }
}

int64_t ThreadPool::TakeTask(size_t share) {
  const auto threads = static_cast<int64_t>(shares_.size());
  const auto at = static_cast<int64_t>(share);
  const int64_t end = tasks_ * (at + 1) / threads;
  std::atomic<uint64_t>& next = shares_[share].next;
  uint64_t seen = next.load(std::memory_order_relaxed);
  while (true) {
    const bool started = seen >> kIndexBits == number_;
    const int64_t task = started ? static_cast<int64_t>(seen & kMostTasks) : tasks_ * at / threads;
    if (task >= end) return -1;
    const uint64_t after = number_ << kIndexBits | static_cast<uint64_t>(task + 1);
    if (next.compare_exchange_weak(seen, after, std::memory_order_relaxed)) return task;
  }
}

void ThreadPool::Drain(int thread) {
  size_t share = static_cast<size_t>(thread);
  for (size_t i = 0; i < shares_.size(); ++i) {
    for (int64_t task = TakeTask(share); task >= 0; task = TakeTask(share)) {
      call_(target_, first_ + task, thread);
    }
    share = share + 1 < shares_.size() ? share + 1 : 0;
  }
}

void ThreadPool::AwaitChange(uint32_t gate) {
  for (int yields = 0; yields < kYields; ++yields) {
    for (int look = 0; look < kLooks; ++look) {
      if (gate_.load(std::memory_order_acquire) != gate) return;
      Pause();
    }
    sched_yield();
  }
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  if (gate_.load(std::memory_order_seq_cst) == gate) FutexWait(gate_, gate);
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

void ThreadPool::WorkerLoop(int thread) {
  if (!processors_.empty()) BindSelf(processors_[static_cast<size_t>(thread)]);
  uint32_t done_call = 0;
  while (!stopping_.load()) {
    uint32_t gate = gate_.load(std::memory_order_acquire);
    const uint32_t call = gate & ~(kInside | kOpen);
    if (call == done_call || (gate & kOpen) == 0) {
      AwaitChange(gate);
      continue;
    }
    if (!gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel)) continue;
    Drain(thread);
    done_call = call;
    const uint32_t before = gate_.fetch_sub(1, std::memory_order_seq_cst);
    if ((before & kOpen) == 0 && (before & kInside) == 1 &&
        sleepers_.load(std::memory_order_seq_cst) != 0) {
      FutexWakeAll(gate_);
    }
  }
}

}  // namespace skein::kernels::cpu
