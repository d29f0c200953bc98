// From deltas to the client.
// Thread: the listener's, but for Deliver.
// Must never: end a stream without [DONE] or an error event.
#include "coordinator/api/generation.h"

#include <algorithm>
#include <utility>

namespace skein::coordinator {
namespace {

// More than this waits for the socket: further text is merged into one event.
constexpr size_t kMergeBytes = 16 * 1024;

}  // namespace

// Between the control thread and one choice.
class Generation::Sink final : public TokenSink,
                               private DeltaReceiver,
                               public std::enable_shared_from_this<Sink> {
 public:
  Sink(std::shared_ptr<Generation> generation, size_t index)
      : generation_(std::move(generation)), index_(index) {}

  void Deliver(TokenDelta delta) override {
    std::shared_ptr<DeltaReceiver> self(shared_from_this(), this);
    Generation& to = *generation_;
    to.setup_.courier->Send(
        std::move(self), std::move(delta),
        [&to](std::function<void()> deliver) { to.exchange_->Post(std::move(deliver)); });
  }

 private:
  void OnDelta(const TokenDelta& delta) override {
    generation_->OnDelta(generation_->choices_[index_], delta);
  }

  const std::shared_ptr<Generation> generation_;
  const size_t index_;
};

Generation::Generation(Setup setup, const Tokenizer& tokenizer, FrontDoor& front_door,
                       std::shared_ptr<protocol::HttpExchange> exchange)
    : setup_(std::move(setup)),
      front_door_(front_door),
      exchange_(std::move(exchange)),
      writer_(MakeAnswerWriter(setup_.identity, setup_.params)) {
  choices_.reserve(setup_.choices.size());
  for (Choice::Setup& choice : setup_.choices) {
    choices_.emplace_back(std::move(choice), setup_.params, setup_.identity.form, tokenizer);
  }
  closed_.resize(choices_.size());
}

std::shared_ptr<TokenSink> Generation::SinkOf(size_t index) {
  return std::make_shared<Sink>(shared_from_this(), index);
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
  std::string events;
  for (const Choice& choice : choices_) {
    events +=
        writer_->First(choice.index(), choice.starts_in_reasoning(), usage(), choice.prompt_ids());
  }
  if (events.empty()) return Flush();
  if (!exchange_->Push(std::move(events))) OnClosed();
}

void Generation::Abandon(size_t refused) {
  has_ended_ = true;
  for (size_t i = 0; i < refused; ++i) front_door_.Cancel({choices_[i].request()});
}

void Generation::OnDelta(Choice& choice, const TokenDelta& delta) {
  if (client_left_ && !delta.tokens.empty()) {
    Note(GenerationEvent::kLateTokens, delta.tokens.size());
  }
  if (has_ended_ || choice.end().has_value()) return;
  NoteTimes(delta);
  choice.TakeCounts(delta);
  choice.TakeScores(delta.prompt_scores);
  const bool ends_with_stop_token = delta.finish == FinishReason::kStop;
  const size_t num_shown =
      delta.tokens.size() - (ends_with_stop_token && !delta.tokens.empty() ? 1 : 0);
  for (size_t i = 0; i < num_shown; ++i) {
    choice.Append(delta.tokens[i]);
    if (choice.end().has_value()) {
      // It ended before the model's own end.
      front_door_.Cancel({choice.request()});
      return EndChoice();
    }
    if (setup_.params.per_token) Flush();
    if (has_ended_) return;
  }
  if (num_shown < delta.tokens.size()) choice.Count(delta.tokens.back());
  if (!delta.finish.has_value()) return Flush();
  switch (*delta.finish) {
    case FinishReason::kStop:
    case FinishReason::kLength:
      choice.End(delta);
      return EndChoice();
    case FinishReason::kCancelled:
      return Fail(FromStatus(absl::UnavailableError("the request was cancelled by the server")),
                  &choice);
    case FinishReason::kError:
      return Fail(FromStatus(delta.error), &choice);
  }
}

void Generation::EndChoice() {
  const auto has_end = [](const Choice& choice) { return choice.end().has_value(); };
  if (std::all_of(choices_.begin(), choices_.end(), has_end)) return Finish();
  Flush();
}

Usage Generation::usage() const {
  Usage sum;
  for (const Choice& choice : choices_) sum += choice.usage();
  return sum;
}

std::string Generation::TakeEvents() {
  std::string events;
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    if (choice.has_unsent()) events += writer_->Delta(i, choice.Take(), usage());
    if (!choice.end().has_value() || closed_[i]) continue;
    closed_[i] = true;
    events += writer_->Last(i, *choice.end(), usage());
  }
  return events;
}

void Generation::Flush() {
  if (!wants_stream() || has_ended_) return;
  const bool is_behind = exchange_->pending_bytes() > kMergeBytes;
  SetSlow(is_behind);
  if (is_behind) {
    size_t unsent = 0;
    for (const Choice& choice : choices_) unsent += choice.unsent_bytes();
    if (unsent <= setup_.egress_bytes_max) return;
  } else {
    std::string events = TakeEvents();
    if (events.empty() || exchange_->Push(std::move(events))) return;
  }
  Fail(FromStatus(absl::DeadlineExceededError(
      "the client did not read the stream; more than the allowed bytes were waiting")));
}

void Generation::SetSlow(bool slow) {
  if (std::exchange(is_slow_, slow) == slow) return;
  Note(slow ? GenerationEvent::kSlow : GenerationEvent::kPrompt);
}

void Generation::Finish() {
  const std::string& reason = choices_.front().end()->finish_reason;
  // Literals: records outlive the choice.
  End(reason == "length" ? "length" : reason == "tool_calls" ? "tool_calls" : "stop", 200);
  if (wants_stream()) {
    const std::string events = TakeEvents();
    exchange_->EndStream(events + writer_->Done(usage()));
  } else {
    std::vector<ChoiceAnswer> answers;
    for (Choice& choice : choices_) answers.push_back(choice.TakeWhole());
    protocol::HttpResponse response;
    response.headers = setup_.headers;
    response.body = writer_->Whole(answers, usage());
    exchange_->Respond(std::move(response));
  }
}

void Generation::Fail(ApiError error, const Choice* failed) {
  NameField(setup_.route, &error);
  End(error.status == 408 ? "timeout" : "error", wants_stream() ? 200 : error.status);
  Cancel(failed);
  if (wants_stream()) {
    const std::string events = TakeEvents();
    exchange_->EndStream(events + writer_->Error(error, usage()),
                         protocol::HttpExchange::After::kClose);
  } else {
    protocol::HttpResponse response = writer_->Refusal(error, setup_.retry_after_s());
    response.headers.insert(response.headers.end(), setup_.headers.begin(), setup_.headers.end());
    exchange_->Respond(std::move(response));
  }
}

void Generation::Cancel(const Choice* failed, bool client_left) {
  for (const Choice& choice : choices_) {
    if (&choice == failed || choice.end().has_value()) continue;
    front_door_.Cancel({choice.request(), std::exchange(client_left, false)});
  }
}

void Generation::OnClosed() {
  if (has_ended_) return;
  client_left_ = true;
  Cancel(nullptr, true);
  End("abort", 499);
}

// The first choice that has something says when the request began.
void Generation::NoteTimes(const TokenDelta& delta) {
  if (!delta.engine.has_value()) return;
  if (!engine_.has_value()) queued_ = delta.queued;
  engine_ = delta.engine;
  if (!first_token_.has_value() && !delta.tokens.empty()) {
    first_token_ = std::chrono::steady_clock::now();
  }
}

void Generation::RecordFlight(std::string_view reason, int status) {
  if (setup_.flights == nullptr) return;
  const auto now = std::chrono::steady_clock::now();
  const Usage all = usage();
  FlightRecord record{
      .route = setup_.route, .end = reason, .status = status, .created = setup_.identity.created};
  for (const auto& [name, value] : setup_.headers) {
    if (name == "x-request-id") record.request_id = value;
  }
  record.total = absl::FromChrono(now - setup_.arrival);
  record.queued = engine_.has_value() ? absl::FromChrono(queued_) : record.total;
  if (engine_.has_value()) {
    const auto first = first_token_.value_or(now);
    record.prefill =
        std::max(absl::ZeroDuration(), absl::FromChrono(first - setup_.arrival - queued_));
    record.decode = absl::FromChrono(now - first);
  }
  record.engine = engine_;
  record.choices = static_cast<uint32_t>(choices_.size());
  record.prompt_tokens = all.prompt_tokens;
  record.cached_tokens = all.cached_tokens;
  record.completion_tokens = all.completion_tokens;
  record.steps = all.num_steps;
  record.draft_tokens = all.num_draft_tokens;
  record.accepted_tokens = all.num_accepted_draft_tokens;
  setup_.flights->Add(std::move(record));
}

void Generation::End(std::string_view reason, int status) {
  has_ended_ = true;
  SetSlow(false);
  RecordFlight(reason, status);
  if (!setup_.on_end) return;
  GenerationEnd end{reason, status};
  end.completion_tokens = usage().completion_tokens;
  if (setup_.identity.form != RequestForm::kCompletion) {
    for (const Choice& choice : choices_) {
      for (size_t i = 0; i < end.calls.size(); ++i) end.calls[i] += choice.call_counts()[i];
      const auto reasoning = choice.reasoning_result();
      if (status == 200 && reasoning.has_value()) end.reasoning.push_back(*reasoning);
      if (!choice.starts_in_reasoning() || !choice.engine().has_value()) continue;
      end.reasoned.push_back({*choice.engine(), choice.usage().reasoning_tokens});
    }
  }
  setup_.on_end(end);
}

}  // namespace skein::coordinator
