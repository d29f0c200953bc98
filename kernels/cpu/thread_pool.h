// A fixed set of threads that share the tasks of one call. Each has a share of its own, task t of n
// in that of thread t * threads / n, so that calls over the same rows find them in the same cache;
// a thread that is done takes from the others' shares, so which thread runs a task is not defined
// and results must not depend on it. A thread without work looks for
// the next call for a bounded time, giving way to others, and then blocks: an idle pool burns no
// processor. One thread at a time may call ParallelFor; tasks must not call it again.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "kernels/device.h"

namespace skein::kernels::cpu {

// Processors that the calling thread may run on, ascending. Empty where the system does not say.
std::vector<int> UsableProcessorList();

struct ThreadPoolOptions {
  int threads = 1;  // the caller counts; values below 1 mean 1
  // Where thread i runs, the caller being thread 0 from its first ParallelFor on. Empty or shorter
  // than `threads`: no thread is bound.
  std::vector<int> processors;
};

class ThreadPool final {
 public:
  explicit ThreadPool(int threads) : ThreadPool(ThreadPoolOptions{threads, {}}) {}
  explicit ThreadPool(const ThreadPoolOptions& options);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }
  // Whether threads are bound to processors.
  bool bound() const { return !processors_.empty(); }

  // Calls fn(task, thread) once for each task in [0, tasks), thread in [0, threads()). Returns when
  // all calls have returned. No allocation.
  template <typename Fn>
  void ParallelFor(int64_t tasks, const Fn& fn) {
    Run(tasks, &fn, [](const void* target, int64_t task, int thread) {
      (*static_cast<const Fn*>(target))(task, thread);
    });
  }

 private:
  using Call = void (*)(const void* target, int64_t task, int thread);

  // The next task of a thread's share: 28 bits, the number of the call above them. Whoever comes
  // first in a call starts a share, so a call writes none before it begins.
  struct alignas(64) Share {
    std::atomic<uint64_t> next = 0;
  };
  static constexpr int kIndexBits = 28;
  static constexpr int64_t kMostTasks = (int64_t{1} << kIndexBits) - 1;
  static constexpr uint64_t kMostCalls = ~uint64_t{0} >> kIndexBits;  // then numbers begin again

  void Run(int64_t tasks, const void* target, Call call);
  // The part of a call that shares can count.
  void RunSome(int64_t first, int64_t tasks, const void* target, Call call);
  void Drain(int thread);
  // Takes a task of a share; -1 if there is none.
  int64_t TakeTask(size_t share);
  void WorkerLoop(int thread);
  // Blocks, or looks again for a bounded time, until the gate differs from `gate`.
  void AwaitChange(uint32_t gate);

  // Low half: workers inside the call; then one bit: open to workers; the rest counts calls.
  static constexpr uint32_t kInside = 0xFFFF;
  static constexpr uint32_t kOpen = 0x10000;
  static constexpr uint32_t kNextCall = 0x20000;
  alignas(64) std::atomic<uint32_t> gate_ = 0;
  std::atomic<uint32_t> sleepers_ = 0;
  std::atomic<bool> stopping_ = false;
  // Fields of the call, written only while the gate is closed and nobody is inside.
  uint64_t number_ = 0;
  int64_t first_ = 0;
  int64_t tasks_ = 0;
  const void* target_ = nullptr;
  Call call_ = nullptr;
  std::vector<Share> shares_;  // by thread
  std::vector<int> processors_;
  bool caller_bound_ = false;
  std::vector<std::thread> workers_;
};

// Threads behind a stream of this backend: 1 for a null stream.
inline int NumThreads(DeviceStream stream) {
  return stream.handle == nullptr ? 1 : static_cast<ThreadPool*>(stream.handle)->threads();
}

// Work of a call below which sharing it costs more than it saves, in multiply-adds.
inline constexpr int64_t kInlineWork = 1 << 15;

// Runs fn(task, thread) for every task: on the stream's pool when `work` is worth it, else in order
// in the calling thread. The choice never changes a result.
template <typename Fn>
void ForEachTask(DeviceStream stream, int64_t tasks, int64_t work, const Fn& fn) {
  if (stream.handle == nullptr || tasks < 2 || work < kInlineWork) {
    for (int64_t task = 0; task < tasks; ++task) fn(task, 0);
    return;
  }
  static_cast<ThreadPool*>(stream.handle)->ParallelFor(tasks, fn);
}

}  // namespace skein::kernels::cpu
