// When a silent child hangs: by its answers, by its state, and never by a clock that ran while the
// supervisor did not.
#include "worker/node/child_pulse.h"

#include <functional>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "worker/node/descriptor.h"

namespace skein::worker {
namespace {

constexpr absl::Duration kLimit = absl::Seconds(10);
constexpr absl::Time kBegin = absl::UnixEpoch();

class ChildPulseTest : public ::testing::Test {
 protected:
  ChildPulseTest() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    ours_ = Descriptor(ends[0]);
    its_ = Descriptor(ends[1]);
    pulse_.Restart(kBegin);
  }

  // Looks each second until `end`; the second in which the child was found to hang, or -1.
  int LookUntil(int end, int pid, const std::function<void()>& each = nullptr) {
    for (; now_s_ <= end; ++now_s_) {
      if (pulse_.Ask(ours_.get(), pid, kBegin + absl::Seconds(now_s_))) return now_s_;
      if (each) each();
    }
    return -1;
  }

  size_t Questions() const {
    char text[256];
    const ssize_t count = ::read(its_.get(), text, sizeof text);
    return count > 0 ? static_cast<size_t>(count) : 0;
  }

  ChildPulse pulse_{kLimit};
  Descriptor ours_, its_;
  int now_s_ = 0;
};

TEST_F(ChildPulseTest, AChildThatAnswersNoMoreHangs) {
  EXPECT_EQ(LookUntil(30, ::getpid(), [this] { pulse_.OnAnswer(); }), -1);
  EXPECT_EQ(Questions(), 30u) << "one a second";
  const int found = LookUntil(100, ::getpid());
  EXPECT_EQ(found, 41);
  EXPECT_EQ(Questions(), 10u);
  EXPECT_EQ(LookUntil(200, ::getpid()), -1) << "told once";
  EXPECT_EQ(pulse_.next(), absl::InfiniteFuture());
}

TEST_F(ChildPulseTest, ALateAnswerIsOne) {
  pulse_.OnAnswer();
  EXPECT_EQ(LookUntil(9, ::getpid()), -1);
  pulse_.OnAnswer();
  EXPECT_EQ(LookUntil(19, ::getpid()), -1);
}

// The supervisor did not run either: a laptop that slept, a frozen container.
TEST_F(ChildPulseTest, APauseOfTheWholeHostIsNobodysHang) {
  pulse_.OnAnswer();
  EXPECT_EQ(LookUntil(5, ::getpid()), -1);
  now_s_ += 100'000;
  EXPECT_EQ(LookUntil(now_s_ + 2, ::getpid()), -1);
  pulse_.OnAnswer();
  EXPECT_EQ(LookUntil(now_s_ + 5, ::getpid()), -1);
}

TEST_F(ChildPulseTest, AProgramThatNeverAnswersIsLeftAlone) {
  EXPECT_EQ(LookUntil(1000, ::getpid()), -1);
}

TEST_F(ChildPulseTest, AProcessThatIsStoppedBeforeItsFirstAnswerHangs) {
  const pid_t child = ::fork();
  if (child == 0) {
    while (true) ::pause();
  }
  EXPECT_EQ(LookUntil(20, child), -1);
  ASSERT_EQ(::kill(child, SIGSTOP), 0);
  ASSERT_EQ(::waitpid(child, nullptr, WUNTRACED), child);
  EXPECT_EQ(WhySilent(child), "stopped by a signal");
  EXPECT_FALSE(IsOwnHang(child));
  EXPECT_EQ(LookUntil(100, child), 30) << "asked first at 20, when it still ran";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST_F(ChildPulseTest, ANewProcessBeginsAnew) {
  pulse_.OnAnswer();
  EXPECT_EQ(LookUntil(100, ::getpid()), 11);
  pulse_.Restart(kBegin + absl::Seconds(now_s_));
  pulse_.OnAnswer();
  EXPECT_EQ(LookUntil(now_s_ + 10, ::getpid()), -1);
  EXPECT_EQ(WhySilent(::getpid()), "its loop stands still");
  EXPECT_TRUE(IsOwnHang(::getpid()));
}

TEST_F(ChildPulseTest, NoLimitMeansNoQuestion) {
  pulse_ = ChildPulse(absl::ZeroDuration());
  pulse_.Restart(kBegin);
  pulse_.OnAnswer();
  EXPECT_EQ(LookUntil(1000, ::getpid()), -1);
  EXPECT_EQ(Questions(), 0u);
}

}  // namespace
}  // namespace skein::worker
