// One running request: committed tokens in, an answer or a stream out.
// Owns: the output state of the choice and the exchange with the client.
// Thread: Deliver is called by the control thread and only sends; everything else runs on the
// listener's thread.
// Must never: end a stream without [DONE] or an error event, or wait for a client.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/api/answer_format.h"
#include "coordinator/api/delta_courier.h"
#include "coordinator/api/generation_params.h"
#include "coordinator/api/sse_writer.h"
#include "coordinator/front_door.h"
#include "coordinator/text/chat_template.h"
#include "coordinator/text/output_parser.h"
#include "coordinator/text/tokenizer.h"
#include "protocol/http/http_server.h"

namespace skein::coordinator {

// How a generation ended, for counters and the log.
struct GenerationEnd {
  std::string_view reason;  // "stop", "length", "abort", "error", "timeout"
  int status = 200;         // of the response; 499 when the client went away
  ParseCounts calls = {};   // how tool calls were read
  std::optional<ParseResult> reasoning = std::nullopt;  // how the reasoning was read
};

class Generation final : public TokenSink,
                         private DeltaReceiver,
                         public std::enable_shared_from_this<Generation> {
 public:
  struct Setup {
    AnswerIdentity identity;
    GenerationParams params;
    protocol::RequestId request;
    int64_t prompt_tokens = 0;
    bool starts_in_reasoning = false;
    int32_t end_think_id = -1;
    int32_t eos_id = -1;
    int32_t dsml_id = -1;
    ToolCallOptions calls;
    protocol::HttpHeaders headers;  // of the response
    size_t egress_bytes_max = 256 * 1024;
    std::shared_ptr<DeltaCourier> courier;      // from the control thread to the listener's
    std::function<int()> retry_after_s;         // advice for a 503
    std::function<void(ChatToolCall)> on_call;  // a call was closed; with its original text
    std::function<void(const GenerationEnd&)> on_end;
  };

  // `tokenizer` and `front_door` outlive the generation.
  Generation(Setup setup, const Tokenizer& tokenizer, FrontDoor& front_door,
             std::shared_ptr<protocol::HttpExchange> exchange);

  // Watches the connection; called before the request is submitted.
  void Watch();
  // The request was accepted: a stream opens.
  void Start();
  void Deliver(TokenDelta delta) override;

 private:
  void OnDelta(const TokenDelta& delta) override;
  void CountToken(const DeltaToken& token);
  // False when the generation ended inside.
  bool OnToken(const DeltaToken& token);
  void OnClosed();
  void Finish(const ChoiceEnd& end);
  void Fail(const ApiError& error);
  // Counts the end; called before the client can see it.
  void End(std::string_view reason, int status);
  ChoiceEnd EndOf(const TokenDelta& delta) const;
  // Sends the text that is certain, unless the client is behind: then it is merged with the next.
  void Flush();
  std::string TakeUnsent();
  void AddText(OutputText text);
  // Puts deltas of calls together, for whole answers and replays.
  void AddCall(const ToolCallDelta& delta);
  // Ends the generation before the model's own end.
  void StopAt(const ChoiceEnd& end);
  bool wants_stream() const { return setup_.params.stream; }

  Setup setup_;
  const Tokenizer& tokenizer_;
  FrontDoor& front_door_;
  std::shared_ptr<protocol::HttpExchange> exchange_;
  OutputParser parser_;
  SseWriter sse_;
  LogprobList logprobs_;
  Usage usage_;
  OutputText text_;                  // not sent yet; of a whole answer: all of it
  std::vector<ChatToolCall> calls_;  // begun ones; the last may be open
  bool has_open_call_ = false;
  bool has_ended_ = false;
};

}  // namespace skein::coordinator
