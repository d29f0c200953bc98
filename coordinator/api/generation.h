// One running request: committed tokens of its choices in, an answer or a stream out.
// Owns: the choices and the exchange with the client.
// Thread: the sinks' Deliver is called by the control thread and only sends; everything else runs
// on the listener's thread. Must never: end a stream without [DONE] or an error event, or wait for
// a client.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/api/answer_writer.h"
#include "coordinator/api/choice.h"
#include "coordinator/api/delta_courier.h"
#include "coordinator/api/flight_log.h"
#include "coordinator/api/generation_params.h"
#include "coordinator/front_door.h"
#include "coordinator/text/tokenizer.h"
#include "protocol/http/http_server.h"

namespace skein::coordinator {

// Reasoning of one choice.
struct ReasoningWork {
  uint32_t engine = 0;  // that computed it last
  int64_t tokens = 0;
};

// How a generation ended, for counters and the log.
struct GenerationEnd {
  std::string_view reason;                  // "stop", "length", "abort", "error", "timeout"
  int status = 200;                         // of the response; 499 when the client went away
  ParseCounts calls = {};                   // how tool calls were read
  std::vector<ParseResult> reasoning = {};  // how the reasoning of choices was read
  int64_t completion_tokens = 0;
  std::vector<ReasoningWork> reasoned = {};  // of choices that began in reasoning
};

// What happens on the way, for counters.
enum class GenerationEvent {
  kSlow,        // the client of the stream does not keep up
  kPrompt,      // it does again, or the stream ended
  kLateTokens,  // so many tokens came after the client had left
};

class Generation final : public std::enable_shared_from_this<Generation> {
 public:
  struct Setup {
    AnswerIdentity identity;
    GenerationParams params;
    std::vector<Choice::Setup> choices;  // at least one; by index
    protocol::HttpHeaders headers;       // of the response
    std::string_view route;              // of the API, a literal; names fields in errors
    size_t egress_bytes_max = 256 * 1024;
    std::shared_ptr<DeltaCourier> courier;  // from the control thread to the listener's
    std::function<int()> retry_after_s;     // advice for a 503
    std::chrono::steady_clock::time_point arrival;
    FlightLog* flights = nullptr;  // outlives the generation; null: no records
    std::function<void(const GenerationEnd&)> on_end;
    std::function<void(GenerationEvent, size_t)> on_event;
  };

  // `tokenizer` and `front_door` outlive the generation.
  Generation(Setup setup, const Tokenizer& tokenizer, FrontDoor& front_door,
             std::shared_ptr<protocol::HttpExchange> exchange);

  // The sink of a choice; it keeps the generation alive.
  std::shared_ptr<TokenSink> SinkOf(size_t index);
  // Watches the connection. All requests were accepted.
  void Watch();
  // The request was accepted: a stream opens.
  void Start();
  // The request of this choice was refused: those before it are cancelled, and nothing is answered
  // here.
  void Abandon(size_t refused);

 private:
  class Sink;

  void OnDelta(Choice& choice, const TokenDelta& delta);
  void OnClosed();
  // The choice has its end.
  void EndChoice();
  void Finish();
  // `failed`: the choice that the control loop ended, if it was one.
  void Fail(ApiError error, const Choice* failed = nullptr);
  // The choices that still run run no more.
  void Cancel(const Choice* failed = nullptr, bool client_left = false);
  void Note(GenerationEvent event, size_t count = 1) const {
    if (setup_.on_event) setup_.on_event(event, count);
  }
  // The stream's client is behind, or not.
  void SetSlow(bool slow);
  // Counts the end; called before the client can see it.
  void End(std::string_view reason, int status);
  void NoteTimes(const TokenDelta& delta);
  void RecordFlight(std::string_view reason, int status);
  // Sends the text that is certain, unless the client is behind: then it is merged with the next.
  void Flush();
  std::string TakeEvents();
  Usage usage() const;
  bool wants_stream() const { return setup_.params.stream; }

  Setup setup_;
  FrontDoor& front_door_;
  std::shared_ptr<protocol::HttpExchange> exchange_;
  const std::unique_ptr<AnswerWriter> writer_;
  std::vector<Choice> choices_;  // by index
  std::vector<bool> closed_;     // by choice: its last event was sent
  bool has_ended_ = false;
  bool client_left_ = false;
  bool is_slow_ = false;
  // For the flight record.
  std::chrono::nanoseconds queued_{0};
  std::optional<uint32_t> engine_;
  std::optional<std::chrono::steady_clock::time_point> first_token_;
};

}  // namespace skein::coordinator
