#include "coordinator/round_waker.h"

namespace skein::coordinator {

void RoundWaker::Wake() {
  if (!post_) return target_.Wake();
  const uint32_t before = asked_.fetch_add(1);
  if (before == 0) {
    // Whoever asks after the exchange posts again; whoever asked before is woken for.
    post_([this] {
      asked_.exchange(0);
      target_.Wake();
    });
  } else if (before % kRequestsMax == 0) {
    target_.Wake();
  }
}

}  // namespace skein::coordinator
