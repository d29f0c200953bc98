// Tests of protocol/actor/mailbox: bound, order per producer, one wake per push.
#include "protocol/actor/mailbox.h"

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace skein::protocol {
namespace {

class CountingWaker final : public Waker {
 public:
  void Wake() override { wakes.fetch_add(1); }
  std::atomic<int> wakes{0};
};

TEST(MailboxTest, FullMeansRefusalAndNothingIsLost) {
  CountingWaker waker;
  Mailbox<int> mailbox(2, waker);
  EXPECT_TRUE(mailbox.TryPush(1).ok());
  EXPECT_TRUE(mailbox.TryPush(2).ok());
  const absl::Status full = mailbox.TryPush(3);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(StatusText(full), "mailbox is full: 2 items wait; retry later");
  EXPECT_EQ(waker.wakes, 2);
  EXPECT_EQ(mailbox.depth(), 2u);
  EXPECT_EQ(mailbox.TakeAll(), (std::vector<int>{1, 2}));
  EXPECT_TRUE(mailbox.TakeAll().empty());
  EXPECT_TRUE(mailbox.TryPush(4).ok());
}

TEST(MailboxTest, HoldsMoveOnlyItems) {
  CountingWaker waker;
  Mailbox<std::unique_ptr<int>> mailbox(1, waker);
  EXPECT_TRUE(mailbox.TryPush(std::make_unique<int>(5)).ok());
  EXPECT_EQ(*mailbox.TakeAll()[0], 5);
}

TEST(MailboxTest, EachProducerKeepsItsOrder) {
  CountingWaker waker;
  Mailbox<std::pair<int, int>> mailbox(100'000, waker);
  std::vector<std::thread> producers;
  for (int producer = 0; producer < 4; ++producer) {
    producers.emplace_back([&mailbox, producer] {
      for (int i = 0; i < 1000; ++i) EXPECT_TRUE(mailbox.TryPush({producer, i}).ok());
    });
  }
  std::vector<int> next(4, 0);
  int taken = 0;
  while (taken < 4000) {
    for (const auto& [producer, value] : mailbox.TakeAll()) {
      EXPECT_EQ(value, next[static_cast<size_t>(producer)]++);
      ++taken;
    }
  }
  for (std::thread& producer : producers) producer.join();
  EXPECT_EQ(waker.wakes, 4000);
}

}  // namespace
}  // namespace skein::protocol
