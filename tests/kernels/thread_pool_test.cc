// The thread pool runs every task once, comes back to rest, and ends cleanly.
#include "kernels/cpu/thread_pool.h"

#include <atomic>
#include <vector>

#include <gtest/gtest.h>

namespace skein::kernels::cpu {
namespace {

TEST(ThreadPool, RunsEveryTaskOnceOverManyCalls) {
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int call = 0; call < 2000; ++call) {
      const int64_t tasks = call % 19;
      std::vector<std::atomic<int>> seen(19);
      std::atomic<bool> wrong_thread = false;
      pool.ParallelFor(tasks, [&](int64_t task, int thread) {
        seen[static_cast<size_t>(task)].fetch_add(1);
        if (thread < 0 || thread >= threads) wrong_thread = true;
      });
      for (int64_t task = 0; task < 19; ++task) {
        ASSERT_EQ(seen[static_cast<size_t>(task)].load(), task < tasks ? 1 : 0);
      }
      ASSERT_FALSE(wrong_thread);
    }
  }
}

// Both threads must be inside the call at once for either task to end, and each begins with its own
// share.
TEST(ThreadPool, TasksRunAtTheSameTimeEachInItsThread) {
  ThreadPool pool(2);
  for (int call = 0; call < 20; ++call) {
    std::atomic<int> arrived = 0;
    pool.ParallelFor(2, [&arrived](int64_t task, int thread) {
      EXPECT_EQ(task, thread);
      arrived.fetch_add(1);
      arrived.notify_all();
      for (int seen = arrived.load(); seen < 2; seen = arrived.load()) arrived.wait(seen);
    });
    EXPECT_EQ(arrived.load(), 2);
  }
}

TEST(ThreadPool, ValuesBelowOneMeanOneThread) {
  ThreadPool pool(-3);
  EXPECT_EQ(pool.threads(), 1);
  int64_t sum = 0;
  pool.ParallelFor(5, [&sum](int64_t task, int) { sum += task; });
  EXPECT_EQ(sum, 10);
}

TEST(ForEachTask, SmallWorkStaysInTheCallingThreadInOrder) {
  ThreadPool pool(3);
  std::vector<int64_t> order;
  ForEachTask({&pool}, 5, kInlineWork - 1, [&order](int64_t task, int thread) {
    EXPECT_EQ(thread, 0);
    order.push_back(task);
  });
  EXPECT_EQ(order, (std::vector<int64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(NumThreads({&pool}), 3);
  EXPECT_EQ(NumThreads({}), 1);
}

}  // namespace
}  // namespace skein::kernels::cpu
