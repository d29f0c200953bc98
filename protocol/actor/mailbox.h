// Bounded queue between two threads of one process: many producers, one consumer. The consumer is
// woken after each push and takes everything at once.
// Must never grow past its capacity: full means refusal to the sender.
#pragma once

#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "protocol/actor/actor.h"
#include "protocol/base/strings.h"

namespace skein::protocol {

template <typename T>
class Mailbox {
 public:
  // `consumer` outlives the mailbox.
  Mailbox(size_t capacity, Waker& consumer) : capacity_(capacity), consumer_(consumer) {}

  // Any thread. ResourceExhausted when full: the item is gone, the caller answers for it.
  absl::Status TryPush(T item) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (items_.size() >= capacity_) {
        return absl::ResourceExhaustedError(
            Concat("mailbox is full: ", capacity_, " items wait; retry later"));
      }
      items_.push_back(std::move(item));
    }
    consumer_.Wake();
    return absl::OkStatus();
  }

  // Consumer thread only; never blocks for longer than a push.
  std::vector<T> TakeAll() {
    std::vector<T> taken;
    const std::lock_guard<std::mutex> lock(mutex_);
    taken.swap(items_);
    return taken;
  }

  // Items waiting now, for metrics. Any thread.
  size_t depth() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return items_.size();
  }

  size_t capacity() const { return capacity_; }

 private:
  const size_t capacity_;
  Waker& consumer_;
  mutable std::mutex mutex_;
  std::vector<T> items_;
};

}  // namespace skein::protocol
