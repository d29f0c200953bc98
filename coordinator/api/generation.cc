// From deltas to the client.
// Thread: the listener's, but for Deliver.
// Must never: end a stream without [DONE] or an error event.
#include "coordinator/api/generation.h"

#include <utility>

#include "protocol/json/json_writer.h"

namespace skein::coordinator {
namespace {

// More than this waits for the socket: further text is merged into one event.
constexpr size_t kMergeBytes = 16 * 1024;

OutputOptions ParserOptions(const Generation::Setup& setup) {
  OutputOptions options;
  options.form = setup.identity.form == RequestForm::kChat ? OutputForm::kChat : OutputForm::kRaw;
  options.starts_in_reasoning = setup.starts_in_reasoning;
  options.end_think_id = setup.end_think_id;
  options.stop = setup.params.stop_strings;
  options.dsml_id = setup.dsml_id;
  options.calls = setup.calls;
  return options;
}

SseWriter::ChunkUsage UsageOf(const GenerationParams& params) {
  if (params.continuous_usage) return SseWriter::ChunkUsage::kSoFar;
  return params.include_usage ? SseWriter::ChunkUsage::kNull : SseWriter::ChunkUsage::kNone;
}

}  // namespace

Generation::Generation(Setup setup, const Tokenizer& tokenizer, FrontDoor& front_door,
                       std::shared_ptr<protocol::HttpExchange> exchange)
    : setup_(std::move(setup)),
      tokenizer_(tokenizer),
      front_door_(front_door),
      exchange_(std::move(exchange)),
      parser_(tokenizer, ParserOptions(setup_)),
      sse_(setup_.identity, UsageOf(setup_.params)),
      logprobs_(
          tokenizer, setup_.identity.form, setup_.params.sampling.num_top_logprobs,
          setup_.params.tokens_as_ids ? LogprobList::Names::kIds : LogprobList::Names::kText) {
  usage_.prompt_tokens = setup_.prompt_tokens;
}

void Generation::Watch() {
  exchange_->OnClosed([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->OnClosed();
  });
  exchange_->OnDrained([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Flush();
  });
}

void Generation::Start() {
  if (!wants_stream() || has_ended_) return;
  protocol::HttpResponse head;
  head.content_type = "text/event-stream";
  head.headers = setup_.headers;
  head.headers.emplace_back("Cache-Control", "no-cache");
  head.headers.emplace_back("X-Accel-Buffering", "no");
  exchange_->StartStream(std::move(head));
  if (setup_.identity.form != RequestForm::kChat) return;
  const auto opens =
      setup_.starts_in_reasoning ? SseWriter::Opens::kReasoning : SseWriter::Opens::kContent;
  if (!exchange_->Push(sse_.First(opens, usage_))) OnClosed();
}

void Generation::Deliver(TokenDelta delta) {
  std::shared_ptr<DeltaReceiver> self(shared_from_this(), this);
  setup_.courier->Send(std::move(self), std::move(delta), [this](std::function<void()> deliver) {
    exchange_->Post(std::move(deliver));
  });
}

void Generation::OnDelta(const TokenDelta& delta) {
  if (has_ended_) return;
  usage_.cached_tokens = delta.cached_tokens;
  usage_.num_steps = delta.num_steps;
  usage_.num_draft_tokens = delta.num_draft_tokens;
  const bool ends_with_stop_token = delta.finish == FinishReason::kStop;
  const size_t num_shown =
      delta.tokens.size() - (ends_with_stop_token && !delta.tokens.empty() ? 1 : 0);
  for (size_t i = 0; i < num_shown; ++i) {
    if (!OnToken(delta.tokens[i])) return;
  }
  if (num_shown < delta.tokens.size()) CountToken(delta.tokens.back());  // counted, not shown
  usage_.reasoning_tokens = static_cast<int64_t>(parser_.reasoning_tokens());
  if (!delta.finish.has_value()) return Flush();
  switch (*delta.finish) {
    case FinishReason::kStop:
    case FinishReason::kLength:
      return Finish(EndOf(delta));
    case FinishReason::kCancelled:
      return Fail(FromStatus(absl::UnavailableError("the request was cancelled by the server")));
    case FinishReason::kError:
      return Fail(FromStatus(delta.error));
  }
}

void Generation::CountToken(const DeltaToken& token) {
  ++usage_.completion_tokens;
  usage_.num_accepted_draft_tokens += token.drafted ? 1 : 0;
}

bool Generation::OnToken(const DeltaToken& token) {
  CountToken(token);
  if (setup_.params.sampling.logprobs) logprobs_.Append(token);
  const bool honour = usage_.completion_tokens >= setup_.params.stop.min_tokens;
  AddText(parser_.Append(token.id,
                         honour ? Detokenizer::Honour::kStops : Detokenizer::Honour::kNoStops));
  if (parser_.matched_stop().has_value()) {
    ChoiceEnd end{"stop", {}};
    protocol::AppendJsonString(*parser_.matched_stop(), &end.stop_reason);
    StopAt(end);
    return false;
  }
  if (parser_.done()) {
    StopAt({"tool_calls", "null"});
    return false;
  }
  if (setup_.params.per_token) Flush();
  return !has_ended_;
}

void Generation::StopAt(const ChoiceEnd& end) {
  usage_.reasoning_tokens = static_cast<int64_t>(parser_.reasoning_tokens());
  front_door_.Cancel({setup_.request});
  Finish(end);
}

void Generation::AddText(OutputText text) {
  text_.reasoning += text.reasoning;
  text_.content += text.content;
  for (ToolCallDelta& delta : text.calls) {
    AddCall(delta);
    if (wants_stream()) AppendCallDelta(std::move(delta), &text_.calls);
  }
}

void Generation::AddCall(const ToolCallDelta& delta) {
  if (!delta.id.empty()) {
    if (has_open_call_) calls_.pop_back();  // it broke off
    calls_.push_back({delta.id, delta.name, {}, {}});
    has_open_call_ = true;
  }
  calls_.back().arguments += delta.arguments;
  if (!delta.closes) return;
  has_open_call_ = false;
  calls_.back().original = delta.original;
  if (setup_.on_call) setup_.on_call(calls_.back());
}

ChoiceEnd Generation::EndOf(const TokenDelta& delta) const {
  if (delta.finish == FinishReason::kLength) return {"length", "null"};
  if (parser_.has_calls()) return {"tool_calls", "null"};
  if (delta.stop_token_id != setup_.eos_id) return {"stop", std::to_string(delta.stop_token_id)};
  return {"stop", parser_.in_reasoning() ? "\"reasoning_unclosed\"" : "null"};
}

std::string Generation::TakeUnsent() {
  if (text_.empty() && logprobs_.empty()) return {};
  const std::string logprobs = logprobs_.empty() ? "null" : logprobs_.Take();
  const OutputText text = std::exchange(text_, {});
  return sse_.Delta(text, logprobs, usage_);
}

void Generation::Flush() {
  if (!wants_stream() || has_ended_) return;
  if (exchange_->pending_bytes() > kMergeBytes) {
    const size_t unsent = text_.size() + logprobs_.waiting_bytes();
    if (unsent <= setup_.egress_bytes_max) return;
  } else {
    std::string event = TakeUnsent();
    if (event.empty() || exchange_->Push(std::move(event))) return;
  }
  front_door_.Cancel({setup_.request});
  Fail(FromStatus(absl::DeadlineExceededError(
      "the client did not read the stream; more than the allowed bytes were waiting")));
}

void Generation::Finish(const ChoiceEnd& end) {
  AddText(parser_.Finish());
  End(end.finish_reason == "length" ? "length" : "stop", 200);
  if (wants_stream()) {
    std::string events = TakeUnsent() + sse_.Last(end, usage_);
    if (setup_.params.include_usage) events += sse_.UsageChunk(usage_);
    exchange_->EndStream(events + SseWriter::Done());
  } else {
    WholeAnswer answer;
    answer.text = std::move(text_);
    // Half a call is no call.
    if (has_open_call_) calls_.pop_back();
    answer.calls = std::move(calls_);
    answer.has_reasoning = setup_.starts_in_reasoning;
    if (setup_.params.sampling.logprobs) answer.logprobs = logprobs_.Take();
    answer.end = end;
    answer.usage = usage_;
    protocol::HttpResponse response;
    response.headers = setup_.headers;
    response.body = AnswerJson(setup_.identity, answer);
    exchange_->Respond(std::move(response));
  }
}

void Generation::Fail(const ApiError& error) {
  End(error.status == 408 ? "timeout" : "error", wants_stream() ? 200 : error.status);
  if (wants_stream()) {
    exchange_->EndStream(TakeUnsent() + SseWriter::Error(error, usage_),
                         protocol::HttpExchange::After::kClose);
  } else {
    protocol::HttpResponse response = ErrorResponse(error, setup_.retry_after_s());
    response.headers.insert(response.headers.end(), setup_.headers.begin(), setup_.headers.end());
    exchange_->Respond(std::move(response));
  }
}

void Generation::OnClosed() {
  if (has_ended_) return;
  front_door_.Cancel({setup_.request});
  End("abort", 499);
}

void Generation::End(std::string_view reason, int status) {
  has_ended_ = true;
  if (!setup_.on_end) return;
  GenerationEnd end{reason, status};
  if (setup_.identity.form == RequestForm::kChat) {
    end.calls = parser_.call_counts();
    if (status == 200) end.reasoning = parser_.reasoning_result();
  }
  setup_.on_end(end);
}

}  // namespace skein::coordinator
