// An API server in this process, with the tokenizer of the demo model and a small control loop.
// Owns: both, and the events the server counted.
// Thread: the test's.
// Must never: need a file outside the tree.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "coordinator/api/api_server.h"
#include "protocol/http/http_client.h"
#include "protocol/json/json.h"
#include "tests/coordinator/fake_control.h"

namespace skein::coordinator {

inline const Tokenizer& TinyTokenizer() {
  static const Tokenizer* const tokenizer =
      Tokenizer::Load("deploy/models/tiny-v41/tokenizer.json").value().release();
  return *tokenizer;
}

inline const ChatTemplate& TinyTemplate() {
  static const ChatTemplate* const chat =
      ChatTemplate::Load(TinyTokenizer(), "deploy/models/tiny-v41").value().release();
  return *chat;
}

class ApiFixture : public ::testing::Test {
 protected:
  // `answer` is generated for every request, special tokens in it parsed, EOS added.
  explicit ApiFixture(std::string answer = "Hanoi is the capital of Vietnam.")
      : answer_(std::move(answer)), control_([this](const SubmitRequest&) { return AnswerIds(); }) {
    StartServer({});
  }

  void StartServer(protocol::HttpLimits limits, ApiKeys* keys = nullptr) {
    server_.reset();
    ApiServer::Options options;
    options.port = 0;
    options.http_limits = limits;
    options.http_limits.tick = std::chrono::milliseconds(10);
    options.request_limits.vocab_size = TinyTokenizer().vocab_size();
    options.served_names = {"tiny-v41", "org/alias"};
    options.fingerprint = "skein-test";
    options.version_json = "{\"version\":\"0.1.0\"}";
    options.id_seed = 42;
    options.keys = keys;
    options.flights = &flights_;
    options.unix_time = [] { return 1764410000; };
    options.metrics_text = [] { return std::string("skein_build_info 1\n"); };
    options.health = [this](HealthProbe probe) {
      return probe == HealthProbe::kReady ? health_ : absl::OkStatus();
    };
    options.on_event = [this](const ApiEvent& event) {
      const std::lock_guard lock(mutex_);
      events_.push_back(std::to_string(static_cast<int>(event.kind)) + " " +
                        std::string(event.route) + " " + std::string(event.method) + " " +
                        std::string(event.name) + " " + std::to_string(event.status));
      if (event.kind == ApiEvent::Kind::kLateTokens) late_tokens_ += event.value;
      if (event.kind == ApiEvent::Kind::kReasoning)
        reasoned_.emplace_back(event.engine, event.value);
    };
    server_ =
        ApiServer::Create(std::move(options), TinyTokenizer(), TinyTemplate(), control_).value();
    server_->Start();
  }

  std::vector<int32_t> AnswerIds() const {
    std::vector<int32_t> ids = TinyTokenizer().Encode(answer_, SpecialTokens::kParse).value();
    ids.push_back(TinyTemplate().eos_id());
    return ids;
  }

  protocol::HttpCall Call(std::string method, std::string target, std::string body = {}) const {
    protocol::HttpCall call;
    call.port = server_->port();
    call.method = std::move(method);
    call.target = std::move(target);
    call.body = std::move(body);
    return call;
  }
  protocol::HttpResult Get(std::string target) const {
    const auto result = protocol::CallHttp(Call("GET", std::move(target)));
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or(protocol::HttpResult());
  }
  protocol::HttpResult Post(std::string target, std::string body) const {
    const auto result = protocol::CallHttp(Call("POST", std::move(target), std::move(body)));
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or(protocol::HttpResult());
  }
  // The events of a streamed answer.
  std::vector<std::string> Stream(std::string target, std::string body) const {
    std::vector<std::string> events;
    const auto result = protocol::CallHttpEvents(Call("POST", std::move(target), std::move(body)),
                                                 [&](std::string_view event) {
                                                   events.emplace_back(event);
                                                   return true;
                                                 });
    EXPECT_TRUE(result.ok()) << result.status();
    return events;
  }
  std::vector<std::string> Events() {
    const std::lock_guard lock(mutex_);
    return events_;
  }

  // How many events of a kind there were.
  size_t CountEvents(ApiEvent::Kind kind) {
    const std::string begin = std::to_string(static_cast<int>(kind)) + " ";
    size_t count = 0;
    for (const std::string& event : Events()) count += event.starts_with(begin) ? 1 : 0;
    return count;
  }

  std::string answer_;
  absl::Status health_;
  std::mutex mutex_;
  std::vector<std::string> events_;
  double late_tokens_ = 0;
  std::vector<std::pair<uint32_t, double>> reasoned_;
  FlightLog flights_{absl::ZeroDuration()};  // of every request
  tests::FakeControl control_;
  std::unique_ptr<ApiServer> server_;  // ends first
};

// The value at a path of keys and indices: At(json, {"choices", "0", "text"}).
inline protocol::JsonValue At(std::string_view json, const std::vector<std::string>& path) {
  const auto parsed = protocol::ParseJson(json);
  EXPECT_TRUE(parsed.ok()) << parsed.status() << " in " << json;
  if (!parsed.ok()) return protocol::JsonValue();
  const protocol::JsonValue* value = &*parsed;
  for (const std::string& key : path) {
    if (value->IsArray()) {
      const size_t index = static_cast<size_t>(std::stoul(key));
      value = index < value->elements().size() ? &value->elements()[index] : nullptr;
    } else {
      value = value->Find(key);
    }
    if (value == nullptr) {
      ADD_FAILURE() << "no " << key << " in " << json;
      return protocol::JsonValue();
    }
  }
  return *value;
}
inline std::string TextAt(std::string_view json, const std::vector<std::string>& path) {
  return std::string(At(json, path).string());
}
inline int64_t IntAt(std::string_view json, const std::vector<std::string>& path) {
  return At(json, path).AsInt64("value").value_or(-1);
}

}  // namespace skein::coordinator
