// Writes requests, reads answers and events.
#include "tests/process/chat_client.h"

#include <utility>

#include "protocol/base/strings.h"
#include "protocol/json/json.h"
#include "protocol/json/json_writer.h"

namespace skein::tests {
namespace {

using protocol::JsonValue;

constexpr std::chrono::seconds kClientTimeout{60};
constexpr int kTopLogprobs = 3;

protocol::HttpCall CallOf(uint16_t port, const ChatCall& chat, Streaming streaming) {
  protocol::HttpCall call;
  call.port = port;
  call.method = "POST";
  call.target = chat.prompt_ids.empty() ? "/v1/chat/completions" : "/v1/completions";
  call.body = ChatBody(chat, streaming);
  if (!chat.key.empty()) call.headers.emplace_back("Authorization", "Bearer " + chat.key);
  call.timeout = kClientTimeout;
  return call;
}

std::string StringAt(const JsonValue& value, std::string_view key) {
  const JsonValue* found = value.Find(key);
  return found == nullptr ? std::string() : std::string(found->string());
}

// One entry for each token, in the form of a chat or in that of a completion.
void AddLogprobs(const JsonValue& logprobs, ChatAnswer* answer) {
  if (const JsonValue* content = logprobs.Find("content")) {
    for (const JsonValue& entry : content->elements()) {
      answer->entries.push_back(protocol::WriteJson(entry));
    }
  }
  const JsonValue* tokens = logprobs.Find("tokens");
  if (tokens == nullptr) return;
  for (size_t i = 0; i < tokens->elements().size(); ++i) {
    answer->entries.push_back(protocol::WriteJson(tokens->elements()[i]) + " " +
                              protocol::WriteJson(logprobs.Find("token_logprobs")->elements()[i]) +
                              " " +
                              protocol::WriteJson(logprobs.Find("top_logprobs")->elements()[i]));
  }
}

// Adds what a choice, or a chunk of one, says; `part` is "message" or "delta".
void AddChoice(const JsonValue& choice, std::string_view part, ChatAnswer* answer) {
  if (const JsonValue* message = choice.Find(part)) answer->text += StringAt(*message, "content");
  answer->text += StringAt(choice, "text");
  if (const JsonValue* logprobs = choice.Find("logprobs")) AddLogprobs(*logprobs, answer);
  const std::string reason = StringAt(choice, "finish_reason");
  if (!reason.empty()) answer->finish_reason = reason;
}

int64_t NumberAt(const JsonValue& object, std::string_view key) {
  const JsonValue* found = object.Find(key);
  return found == nullptr ? -1 : found->AsInt64(key).value_or(-1);
}

void AddUsage(const JsonValue& usage, ChatAnswer* answer) {
  answer->prompt_tokens = NumberAt(usage, "prompt_tokens");
  answer->completion_tokens = NumberAt(usage, "completion_tokens");
  if (const JsonValue* details = usage.Find("prompt_tokens_details")) {
    answer->cached_tokens = NumberAt(*details, "cached_tokens");
  }
  const JsonValue* ours = usage.Find("skein");
  if (ours == nullptr) return;
  answer->steps = NumberAt(*ours, "steps");
  answer->draft_tokens = NumberAt(*ours, "draft_tokens");
  answer->accepted_draft_tokens = NumberAt(*ours, "accepted_draft_tokens");
}

void Refused(const protocol::HttpResult& result, ChatAnswer* answer) {
  answer->refusal = result.body;
  answer->retry_after = std::string(result.Header("retry-after"));
}

void WritePrompt(const ChatCall& call, protocol::JsonWriter* writer) {
  if (!call.prompt_ids.empty()) {
    writer->Key("prompt");
    writer->BeginArray();
    for (const int32_t id : call.prompt_ids) writer->Int(id);
    writer->EndArray();
    return;
  }
  writer->Key("messages");
  writer->BeginArray();
  writer->BeginObject();
  writer->Key("role");
  writer->String("user");
  writer->Key("content");
  writer->String(call.content);
  writer->EndObject();
  writer->EndArray();
  writer->Key("thinking");
  writer->Raw(R"({"type":"disabled"})");
}

}  // namespace

void PrintTo(const ChatAnswer& answer, std::ostream* out) {
  *out << "status " << answer.status << ", " << answer.entries.size() << " tokens, finish \""
       << answer.finish_reason << "\", text \"" << answer.text << "\" " << answer.error
       << answer.cut << answer.refusal;
  for (const std::string& entry : answer.entries) *out << "\n  " << entry;
}

std::string ChatBody(const ChatCall& call, Streaming streaming) {
  std::string body;
  protocol::JsonWriter writer(&body);
  writer.BeginObject();
  WritePrompt(call, &writer);
  writer.Key("temperature");
  writer.Double(call.temperature);
  if (call.seed) {
    writer.Key("seed");
    writer.Int(*call.seed);
  }
  if (call.max_tokens > 0) {
    writer.Key("max_tokens");
    writer.Int(call.max_tokens);
    writer.Key("ignore_eos");
    writer.Bool(true);
  }
  if (!call.stop.empty()) {
    writer.Key("stop");
    writer.BeginArray();
    for (const std::string& stop : call.stop) writer.String(stop);
    writer.EndArray();
  }
  if (!call.speculation.empty()) {
    writer.Key("speculation");
    writer.Raw(call.speculation);
  }
  if (!call.cache_salt.empty()) {
    writer.Key("cache_salt");
    writer.String(call.cache_salt);
  }
  if (call.logprobs && !call.prompt_ids.empty()) {
    writer.Key("logprobs");
    writer.Int(kTopLogprobs);
  } else if (call.logprobs) {
    writer.Key("logprobs");
    writer.Bool(true);
    writer.Key("top_logprobs");
    writer.Int(kTopLogprobs);
  }
  writer.Key("stream");
  writer.Bool(streaming == Streaming::kYes);
  writer.EndObject();
  return body;
}

ChatAnswer Ask(uint16_t port, const ChatCall& call) {
  ChatAnswer answer;
  const auto result = protocol::CallHttp(CallOf(port, call, Streaming::kNo));
  if (!result.ok()) {
    answer.cut = result.status().ToString();
    return answer;
  }
  answer.status = result->status;
  const auto body = protocol::ParseJson(result->body);
  if (result->status != 200 || !body.ok()) {
    Refused(*result, &answer);
    return answer;
  }
  if (const JsonValue* choices = body->Find("choices")) {
    for (const JsonValue& choice : choices->elements()) AddChoice(choice, "message", &answer);
  }
  if (const JsonValue* usage = body->Find("usage")) AddUsage(*usage, &answer);
  return answer;
}

ChatStream::ChatStream(uint16_t port, const ChatCall& call)
    : thread_([this, http = CallOf(port, call, Streaming::kYes)] { Run(http); }) {}

ChatStream::~ChatStream() {
  Leave();
  if (thread_.joinable()) thread_.join();
}

void ChatStream::Run(protocol::HttpCall call) {
  const auto result =
      protocol::CallHttpEvents(call, [this](std::string_view event) { return OnEvent(event); });
  const std::lock_guard lock(mutex_);
  if (result.ok()) {
    answer_.status = result->status;
    if (result->status != 200) Refused(*result, &answer_);
  } else {
    answer_.cut = result.status().ToString();
  }
  has_ended_ = true;
  changed_.notify_all();
}

bool ChatStream::OnEvent(std::string_view event) {
  const std::lock_guard lock(mutex_);
  is_accepted_ = true;
  changed_.notify_all();
  if (event == "[DONE]") {
    answer_.is_done = true;
    return !leaves_;
  }
  const auto chunk = protocol::ParseJson(event);
  if (!chunk.ok() || chunk->Find("error") != nullptr) {
    answer_.error = std::string(event);
    return !leaves_;
  }
  if (const JsonValue* choices = chunk->Find("choices")) {
    for (const JsonValue& choice : choices->elements()) AddChoice(choice, "delta", &answer_);
  }
  return !leaves_;
}

bool ChatStream::WaitAccepted() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kClientTimeout, [&] { return is_accepted_ || has_ended_; });
  return is_accepted_;
}

bool ChatStream::WaitTokens(size_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kClientTimeout,
                    [&] { return answer_.entries.size() >= count || has_ended_; });
  return answer_.entries.size() >= count;
}

size_t ChatStream::num_tokens() const {
  const std::lock_guard lock(mutex_);
  return answer_.entries.size();
}

bool ChatStream::ended() const {
  const std::lock_guard lock(mutex_);
  return has_ended_;
}

void ChatStream::Leave() {
  const std::lock_guard lock(mutex_);
  leaves_ = true;
}

ChatAnswer ChatStream::Join() {
  if (thread_.joinable()) thread_.join();
  const std::lock_guard lock(mutex_);
  return answer_;
}

std::vector<std::unique_ptr<ChatStream>> OpenStreams(uint16_t port, const ChatCall& call,
                                                     size_t count) {
  std::vector<std::unique_ptr<ChatStream>> streams;
  for (size_t i = 0; i < count; ++i) streams.push_back(std::make_unique<ChatStream>(port, call));
  return streams;
}

}  // namespace skein::tests
