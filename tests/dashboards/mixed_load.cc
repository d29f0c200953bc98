#include "tests/dashboards/mixed_load.h"

#include <random>

#include "protocol/base/strings.h"
#include "protocol/http/http_client.h"
#include "protocol/json/json.h"
#include "protocol/json/json_writer.h"
#include "tests/process/live_server.h"

namespace skein::tests {
namespace {

using protocol::Concat;
using protocol::JsonValue;

constexpr char kChat[] = "/v1/chat/completions";
constexpr char kText[] = "/v1/completions";
constexpr char kMessages[] = "/v1/messages";
constexpr std::chrono::seconds kTimeout{60};
constexpr absl::Duration kAfterRefusal = absl::Milliseconds(20);
constexpr char kWithoutDrafts[] = R"(,"speculation":{"enabled":false})";

const char* const kQuestions[] = {"What is the capital of Vietnam?", "What is 12 plus 30?",
                                  "Tell me a story about a fox.", "What is the weather in Paris?"};

constexpr char kTools[] =
    R"(,"tools":[{"type":"function","function":{"name":"get_weather","description":)"
    R"("Get the current weather for a city.","parameters":{"type":"object","properties":)"
    R"({"location":{"type":"string","description":"The city."}},"required":["location"]}}}])";

std::string Chat(const std::string& content, const std::string& rest) {
  return Concat(R"({"messages":[{"role":"user","content":")", content, "\"}]", rest, "}");
}

std::string Text(const std::string& ids, const std::string& rest) {
  return Concat(R"({"prompt":[)", ids, "]", rest, "}");
}

// A prompt of ids that begins like others of the same `family`, for a while.
std::string Prompt(uint64_t family, uint64_t tail, int shared, int own) {
  std::string ids;
  for (int i = 0; i < shared; ++i)
    ids += Concat(i == 0 ? "" : ",", 300 + (family * 7 + i * 37) % 3000);
  for (int i = 0; i < own; ++i) ids += Concat(",", 300 + (tail * 11 + i * 53) % 3000);
  return ids;
}

int64_t NumberAt(const JsonValue& object, std::string_view key) {
  const JsonValue* found = object.Find(key);
  return found == nullptr ? 0 : found->AsInt64(key).value_or(0);
}

std::string TextAt(const JsonValue& object, std::string_view key) {
  const JsonValue* found = object.Find(key);
  return found == nullptr || !found->IsString() ? "" : std::string(found->string());
}

}  // namespace

MixedLoad::Request MixedLoad::Make(uint64_t random) const {
  const uint64_t kind = random % 16;
  const uint64_t number = random / 16 % 1000;
  const std::string question = kQuestions[number % 4];
  const std::string greedy = R"(,"temperature":0)";
  const std::string seeded = Concat(R"(,"temperature":1,"seed":)", number);
  const std::string streamed = R"(,"stream":true,"stream_options":{"include_usage":true})";
  // Drafts behind the end of a text are known to the server alone.
  const std::string exactly =
      ends_ == Ends::kAny ? R"(,"max_tokens":48)" : R"(,"max_tokens":48,"ignore_eos":true)";
  const std::string natural =
      Concat(R"(,"max_tokens":48)", ends_ == Ends::kAny ? "" : kWithoutDrafts);
  switch (kind) {
    case 0:
      return {kChat, Chat(question, greedy + exactly), key_};
    case 1:
      return {kChat, Chat(question, seeded + exactly), key_};
    case 2:
      return {kChat, Chat(question, greedy + exactly + streamed), key_, true};
    case 3:
      return {kChat, Chat(question, seeded + exactly + streamed), key_, true};
    case 4:
    case 5:
      return ends_ == Ends::kAny ? CallOfATool(number)
                                 : Request{kChat, Chat(question, greedy + natural), key_};
    case 6:  // long, and alike in its beginning
    case 7:
      return {kText, Text(Prompt(number % 3, number, 256, 64), greedy + exactly), key_};
    case 8:  // long, and like nothing
      return {kText, Text(Prompt(number, number, 400, 200), greedy + exactly), key_};
    case 9:
      return {kChat, Chat(question, greedy + R"(,"max_tokens":40)" + kWithoutDrafts), key_};
    case 10:  // one token: none of it can have been drafted, and its usage says nothing of drafts
      return {kMessages, Chat(question, R"(,"max_tokens":1)"), key_};
    case 11:
      return {kChat, Chat(question, R"(,"temperature":7)"), key_};
    case 12:
      return {kText, R"({"prompt":)", key_};
    case 13:
      return {Concat("/v1/nothing/", number), "{}", key_};
    case 14:
      return {kChat, Chat(question, ""), "wrong." + key_};
    default:
      return {kChat, Chat(question, R"(,"zebra":1)" + natural), key_};
  }
}

// The model calls what it was shown; every other time it would not, but for what is required.
MixedLoad::Request MixedLoad::CallOfATool(uint64_t number) const {
  const bool wants = number % 2 == 0;
  const std::string rest =
      wants ? R"(,"thinking":{"type":"disabled"})" : R"(,"tool_choice":"required")";
  return {
      kChat,
      Chat(kQuestions[wants ? 3 : 0], Concat(R"(,"temperature":0,"max_tokens":160)", rest, kTools)),
      key_};
}

void MixedLoad::Count(const Request& request, int status, const std::string& usage,
                      const std::string& finish, const std::string& whole) {
  const std::lock_guard lock(mutex_);
  const std::string route = request.route.starts_with("/v1/nothing") ? "other" : request.route;
  ++counts_.answers[{route, status}];
  if (status != 200) {
    if (status >= 500 && status != 503 && status != 529) counts_.broken.push_back(whole);
    return;
  }
  const auto json = protocol::ParseJson(usage);
  if (!json.ok() || finish.empty()) {
    counts_.broken.push_back(whole);
    return;
  }
  ++counts_.finished[finish];
  if (finish == "tool_calls") ++counts_.tool_calls;
  const int64_t read = NumberAt(*json, "cache_read_input_tokens");
  counts_.prompt_tokens +=
      NumberAt(*json, "prompt_tokens") + NumberAt(*json, "input_tokens") + read;
  counts_.generated_tokens +=
      NumberAt(*json, "completion_tokens") + NumberAt(*json, "output_tokens");
  counts_.cached_tokens += read;
  if (const JsonValue* details = json->Find("prompt_tokens_details")) {
    counts_.cached_tokens += NumberAt(*details, "cached_tokens");
  }
  if (const JsonValue* ours = json->Find("skein")) {
    counts_.draft_tokens += NumberAt(*ours, "draft_tokens");
    counts_.accepted_drafts += NumberAt(*ours, "accepted_draft_tokens");
  }
}

int MixedLoad::Send(const Request& request) {
  protocol::HttpCall call;
  call.port = port_;
  call.method = "POST";
  call.target = request.route;
  call.body = request.body;
  call.headers.emplace_back("Authorization", "Bearer " + request.key);
  call.timeout = kTimeout;
  std::string usage, finish, whole;
  const auto read = [&](const JsonValue& json) {
    const JsonValue* choices = json.Find("choices");
    if (choices != nullptr && choices->IsArray() && !choices->elements().empty()) {
      const std::string reason = TextAt(choices->elements()[0], "finish_reason");
      if (!reason.empty()) finish = reason;
    }
    if (const std::string reason = TextAt(json, "stop_reason"); !reason.empty()) finish = reason;
    if (const JsonValue* found = json.Find("usage"); found != nullptr && found->IsObject()) {
      usage = protocol::WriteJson(*found);
    }
  };
  const auto result = request.streamed
                          ? protocol::CallHttpEvents(call,
                                                     [&](std::string_view event) {
                                                       whole += Concat(event, "\n");
                                                       const auto json = protocol::ParseJson(event);
                                                       if (json.ok()) read(*json);
                                                       return true;
                                                     })
                          : protocol::CallHttp(call);
  if (!result.ok()) {
    const std::lock_guard lock(mutex_);
    counts_.broken.push_back(Concat(request.route, ": ", protocol::StatusText(result.status())));
    return 0;
  }
  if (whole.empty()) {
    whole = result->body;
    if (const auto json = protocol::ParseJson(whole); json.ok()) read(*json);
  }
  Count(request, result->status, usage, finish, Concat(request.body, "\n", whole));
  return result->status;
}

void MixedLoad::Run(uint64_t seed) {
  std::mt19937_64 random(seed);
  while (!stopping_) {
    if (Send(Make(random())) == 200) continue;
    WaitUntil([this] { return stopping_.load(); }, kAfterRefusal);
  }
}

void MixedLoad::Start(int clients, Ends ends) {
  stopping_ = false;
  ends_ = ends;
  for (int i = 0; i < clients; ++i) {
    clients_.emplace_back(
        [this, i] { Run(static_cast<uint64_t>(i) + (ends_ == Ends::kAny ? 100 : 1)); });
  }
}

void MixedLoad::Stop() {
  stopping_ = true;
  for (std::thread& client : clients_) client.join();
  clients_.clear();
}

// The status of the answer; 0 when the client left it.
int MixedLoad::LeaveStream() {
  protocol::HttpCall call;
  call.port = port_;
  call.method = "POST";
  call.target = kChat;
  call.headers.emplace_back("Authorization", "Bearer " + key_);
  call.body =
      Chat(kQuestions[2], R"(,"temperature":0,"max_tokens":400,"ignore_eos":true,"stream":true)");
  int events = 0;
  const auto result =
      protocol::CallHttpEvents(call, [&events](std::string_view) { return ++events < 4; });
  if (absl::IsCancelled(result.status())) return 0;
  return result.ok() ? result->status : -1;
}

void MixedLoad::Crowd(int count) {
  std::vector<std::thread> clients;
  for (int i = 0; i < count; ++i) {
    const auto number = static_cast<uint64_t>(i);
    clients.emplace_back([this, number] {
      Send({kText,
            Text(Prompt(number, number, 32, 32),
                 R"(,"temperature":0,"max_tokens":450,"ignore_eos":true)"),
            key_});
    });
  }
  for (std::thread& client : clients) client.join();
}

void MixedLoad::LeaveStreams(int count) {
  for (int left = 0; left < count;) {
    const int status = LeaveStream();
    {
      const std::lock_guard lock(mutex_);
      ++counts_.answers[{kChat, status == 0 ? 499 : status}];
      if (status == 0) ++counts_.left;
      if (status != 0 && status != 503) counts_.broken.emplace_back("a stream that was left");
    }
    if (status == 0) {
      ++left;
    } else {
      WaitUntil([] { return false; }, kAfterRefusal);
    }
  }
}

}  // namespace skein::tests
