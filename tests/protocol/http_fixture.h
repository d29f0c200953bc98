// A listener with three kinds of answers, for tests of the HTTP library.
// Owns: the listener and the boxes in which it leaves what happened.
// Thread: the test and the listener's.
// Must never: wait for time to pass without a condition.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <gtest/gtest.h>

#include "protocol/http/http_server.h"

namespace skein::protocol {

// Values that one thread leaves and another waits for.
template <typename T>
class Box {
 public:
  void Put(T value) {
    const std::lock_guard lock(mutex_);
    values_.push_back(std::move(value));
    changed_.notify_all();
  }
  bool IsEmpty() {
    const std::lock_guard lock(mutex_);
    return values_.empty();
  }
  T Take() {
    std::unique_lock lock(mutex_);
    const bool arrived =
        changed_.wait_for(lock, std::chrono::seconds(10), [&] { return !values_.empty(); });
    if (!arrived) {
      ADD_FAILURE() << "nothing arrived within ten seconds";
      return T();
    }
    T value = std::move(values_.front());
    values_.pop_front();
    return value;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> values_;
};

class HttpFixture : public ::testing::Test {
 protected:
  void StartServer(HttpLimits limits = {}) {
    HttpServer::Options options;
    limits.tick = std::chrono::milliseconds(10);
    options.limits = limits;
    options.on_head = on_head_;
    options.tls = tls_;
    options.root_path = root_path_;
    options.headers = headers_;
    options.on_request = [this](HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
      OnRequest(std::move(request), std::move(exchange));
    };
    options.on_event = [this](const HttpEvent& event) {
      events_.Put(std::string(event.kind) + " " + std::string(event.name));
    };
    server_ = HttpServer::Create(std::move(options)).value();
    server_->Start();
  }

  std::shared_ptr<TlsCertificate> tls_;  // from the next start on
  std::string root_path_;                // the same
  HttpHeaders headers_;                  // the same
  // What on_head is from the next start on.
  std::function<std::optional<HttpResponse>(HttpRequest&)> on_head_;

  // /echo answers with the body; /held waits for the test; /stream starts a stream and waits.
  void OnRequest(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
    if (request.path == "/echo") {
      exchange->Respond({200, "text/plain", {}, request.body + "|" + request.target});
      return;
    }
    if (request.path == "/dropped") return;
    exchange->OnClosed([this] { closed_.Put(true); });
    if (request.path == "/stream") exchange->StartStream({200, "text/event-stream", {}, ""});
    paths_.Put(request.path);
    held_.Put(std::move(exchange));
  }

  Box<std::shared_ptr<HttpExchange>> held_;
  Box<std::string> paths_;  // of the requests that are held
  Box<bool> closed_;
  Box<std::string> events_;
  std::unique_ptr<HttpServer> server_;  // ends first: its thread uses the boxes
};

inline std::string Get(std::string_view target) {
  return "GET " + std::string(target) + " HTTP/1.1\r\nHost: a\r\n\r\n";
}

}  // namespace skein::protocol
