// A client of the front door: it knows what its answer must be, token by token, and checks each
// delta as it comes.
// Shared with the control loop until the last delta. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/front_door.h"
#include "tests/sim/oracles.h"

namespace skein::tests {

// What a client asks for, and what may become of it beside its answer.
struct ClientRequest {
  coordinator::SubmitRequest submit;  // without sink
  std::vector<int32_t> answer;        // what decoding it alone gives
  std::vector<float> logprobs;
  bool fits = true;      // every worker's cache holds it
  bool poison = false;   // it ends its workers
  bool failing = false;  // its steps fail
  bool follows = false;  // its prompt is another one's and its answer: a turn of a chat
};

class SimClient final : public coordinator::TokenSink {
 public:
  // Says why an error is no violation, or nothing.
  using Judge = std::function<bool(const SimClient&, const absl::Status&)>;

  SimClient(ClientRequest request, Oracles& oracles, Judge judge);

  void Deliver(coordinator::TokenDelta delta) override;

  const ClientRequest& request() const { return request_; }
  // The request with this client as its sink; once.
  coordinator::SubmitRequest Submit(std::shared_ptr<SimClient> self);
  void SetCancelled() { cancelled_ = true; }
  bool cancelled() const { return cancelled_; }
  // Its coordinator is gone: nothing follows.
  void Lose() { lost_ = true; }
  bool over() const { return finish_.has_value() || lost_; }
  size_t num_tokens() const { return num_tokens_; }
  const std::optional<coordinator::FinishReason>& finish() const { return finish_; }
  const absl::Status& error() const { return error_; }
  uint32_t cached_tokens() const { return cached_tokens_; }
  size_t num_drafted() const { return num_drafted_; }

 private:
  void Take(const coordinator::DeltaToken& token);
  void End(const coordinator::TokenDelta& delta);
  void Violate(int oracle, const std::string& what);

  ClientRequest request_;
  Oracles& oracles_;
  const Judge judge_;
  bool cancelled_ = false;
  bool lost_ = false;
  size_t num_tokens_ = 0;
  size_t num_drafted_ = 0;
  uint32_t cached_tokens_ = 0;
  std::optional<coordinator::FinishReason> finish_;
  absl::Status error_;
};

}  // namespace skein::tests
