// A small control loop for tests of the API: its own thread, one token per sequence and step, or
// a burst of them.
// Owns: the sequences and the thread.
// Thread: FrontDoor calls from the listener's thread, the rest from the test's.
// Must never: wait for time to pass without a condition.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "coordinator/front_door.h"

namespace skein::tests {

class FakeControl final : public coordinator::FrontDoor {
 public:
  // Ids to generate for a request, before stop tokens and limits act on them.
  using Script = std::function<std::vector<int32_t>(const coordinator::SubmitRequest&)>;

  explicit FakeControl(Script script) : script_(std::move(script)), thread_([this] { Run(); }) {}
  ~FakeControl() override {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  absl::Status TrySubmit(coordinator::SubmitRequest request) override {
    const std::lock_guard lock(mutex_);
    if (!refusal_.ok() && accepted_before_refusal_ == 0) return refusal_;
    if (!refusal_.ok()) --accepted_before_refusal_;
    Sequence sequence{std::move(request), {}, 0, 0};
    sequence.ids = script_(sequence.request);
    submitted_.push_back(sequence.request);
    submitted_.back().sink.reset();
    sequences_.push_back(std::move(sequence));
    changed_.notify_all();
    return absl::OkStatus();
  }

  void Cancel(coordinator::CancelRequest request) override {
    const std::lock_guard lock(mutex_);
    cancelled_.push_back(request.id);
    num_left_ += request.client_left ? 1 : 0;
    if (!ignores_cancel_) {
      sequences_.remove_if([&](const Sequence& s) { return s.request.id == request.id; });
    }
    changed_.notify_all();
  }

  // What TrySubmit answers from now on.
  void Refuse(absl::Status refusal) {
    const std::lock_guard lock(mutex_);
    refusal_ = std::move(refusal);
  }
  // The same after so many more requests.
  void RefuseAfter(size_t accepted, absl::Status refusal) {
    const std::lock_guard lock(mutex_);
    accepted_before_refusal_ = accepted;
    refusal_ = std::move(refusal);
  }
  // Sequences stand still, or fail with `error` at their next step, or run.
  void Hold() { SetMode(true, absl::OkStatus()); }
  void Release() { SetMode(false, absl::OkStatus()); }
  void Fail(absl::Status error) { SetMode(false, std::move(error)); }
  // Each delta carries this many tokens from now on.
  void SetBurst(size_t tokens) {
    const std::lock_guard lock(mutex_);
    burst_ = tokens;
  }

  // Sequences go on although they were cancelled, as one whose step runs.
  void IgnoreCancel() {
    const std::lock_guard lock(mutex_);
    ignores_cancel_ = true;
  }
  // Cancellations that said so.
  size_t num_left() {
    const std::lock_guard lock(mutex_);
    return num_left_;
  }

  // The oldest request not taken yet; waits for it.
  coordinator::SubmitRequest TakeSubmitted() { return TakeFrom(&submitted_); }
  protocol::RequestId TakeCancelled() { return TakeFrom(&cancelled_); }
  size_t num_submitted() {
    const std::lock_guard lock(mutex_);
    return submitted_.size();
  }

 private:
  struct Sequence {
    coordinator::SubmitRequest request;
    std::vector<int32_t> ids;
    size_t done = 0;
    uint64_t steps = 0;
    size_t scored = 0;
  };

  void SetMode(bool hold, absl::Status error) {
    const std::lock_guard lock(mutex_);
    hold_ = hold;
    error_ = std::move(error);
    changed_.notify_all();
  }

  template <typename T>
  T TakeFrom(std::deque<T>* queue) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(10), [&] { return !queue->empty(); });
    if (queue->empty()) return T();
    T value = std::move(queue->front());
    queue->pop_front();
    return value;
  }

  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return ends_ || (!hold_ && !sequences_.empty()); });
      if (ends_) return;
      std::vector<std::pair<std::shared_ptr<coordinator::TokenSink>, coordinator::TokenDelta>> out;
      for (auto at = sequences_.begin(); at != sequences_.end();) {
        coordinator::TokenDelta delta = Step(&*at);
        const bool finished = delta.finish.has_value();
        out.emplace_back(at->request.sink, std::move(delta));
        at = finished ? sequences_.erase(at) : std::next(at);
      }
      lock.unlock();
      for (auto& [sink, delta] : out) sink->Deliver(std::move(delta));
      out.clear();
      lock.lock();
    }
  }

  coordinator::TokenDelta Step(Sequence* sequence) {
    coordinator::TokenDelta delta;
    delta.engine = 3;
    delta.queued = std::chrono::nanoseconds(1);
    if (!error_.ok()) {
      delta.finish = coordinator::FinishReason::kError;
      delta.error = error_;
      return delta;
    }
    if (sequence->request.sampling.num_prompt_logprobs >= 0) {
      // One step for each prompt token behind the first, then the answer.
      if (++sequence->scored < sequence->request.prompt_ids.size()) {
        delta.prompt_scores.push_back({-0.5F, {}});
        for (int32_t k = 0; k < sequence->request.sampling.num_prompt_logprobs; ++k) {
          delta.prompt_scores[0].top.push_back({66 + k, -0.5F - static_cast<float>(k)});
        }
        return delta;
      }
    }
    const protocol::StopConditions& stop = sequence->request.stop;
    for (size_t i = 0; i < burst_ && !delta.finish.has_value(); ++i) {
      if (sequence->done >= sequence->ids.size()) {  // the script is over
        delta.finish = coordinator::FinishReason::kLength;
        break;
      }
      const int32_t id = sequence->ids[sequence->done++];
      const float logprob = -0.25F * static_cast<float>(sequence->done);
      coordinator::DeltaToken token{id, logprob, {}, true};
      for (int32_t k = 0; k < sequence->request.sampling.num_top_logprobs; ++k) {
        token.top.push_back({k == 0 ? id : 66 + k, logprob - static_cast<float>(k)});
      }
      delta.tokens.push_back(std::move(token));
      const bool is_stop = std::find(stop.stop_token_ids.begin(), stop.stop_token_ids.end(), id) !=
                           stop.stop_token_ids.end();
      if (is_stop && static_cast<int32_t>(sequence->done) > stop.min_tokens) {
        delta.finish = coordinator::FinishReason::kStop;
        delta.stop_token_id = id;
      } else if (static_cast<int32_t>(sequence->done) >= stop.max_tokens) {
        delta.finish = coordinator::FinishReason::kLength;
      }
    }
    // As if every token of a burst but the last had been a draft.
    if (!delta.tokens.empty()) delta.tokens.back().drafted = false;
    delta.num_steps = ++sequence->steps;
    delta.num_draft_tokens = sequence->steps * (burst_ - 1);
    return delta;
  }

  const Script script_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Sequence> sequences_;
  std::deque<coordinator::SubmitRequest> submitted_;
  std::deque<protocol::RequestId> cancelled_;
  absl::Status refusal_;
  size_t accepted_before_refusal_ = 0;
  absl::Status error_;
  size_t burst_ = 1;
  bool hold_ = false;
  bool ignores_cancel_ = false;
  size_t num_left_ = 0;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace skein::tests
