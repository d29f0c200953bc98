// Internal to the listener: one connection, and what it shares with the exchange of an answer.
// Owns: the socket, the request reader and the write queue.
// Thread: the listener's, but for the atomics of Link.
// Must never: be included outside protocol/http.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/http/http_server.h"
#include "protocol/http/request_reader.h"
#include "protocol/http/response_framing.h"

namespace boost::asio {
class io_context;
}

namespace skein::protocol {

class HttpConnection;

// Shared by the connection, which answers, and the exchange, which may live longer and elsewhere.
class HttpExchange::Link {
 public:
  std::weak_ptr<boost::asio::io_context> loop;
  std::weak_ptr<HttpConnection> connection;
  uint64_t answer = 0;  // number of the answer on its connection
  size_t egress_bytes_max = 0;
  std::atomic<size_t> pending_bytes{0};
  std::atomic<bool> is_ended{false};  // by the producer, or because the connection died
  // Listener's thread only.
  std::function<void()> on_closed;
  std::function<void()> on_drained;
};

// What a connection needs of its listener.
struct HttpConnectionHost {
  HttpServer::Options options;
  std::weak_ptr<boost::asio::io_context> loop;
  std::function<void(const std::shared_ptr<HttpConnection>&)> on_end;
  bool is_draining = false;
  std::vector<std::shared_ptr<HttpConnection>> unwritten;  // at the end of this round of the loop

  void WriteAtRoundEnd(std::shared_ptr<HttpConnection> connection);
  void Count(std::string_view kind, std::string_view name) const {
    if (options.on_event) options.on_event({kind, name});
  }
  HttpResponse Refusal(const HttpRefusal& refusal) const;
  std::string Head(const HttpResponse& response, BodyFraming framing, KeepAlive keep_alive) const {
    return MakeResponseHead(response, framing, keep_alive, options.headers);
  }
};

// One accepted socket: its requests, its answers, its deadlines.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  using Clock = std::chrono::steady_clock;
  using Link = HttpExchange::Link;

  // Takes the socket of the descriptor. `host` outlives the connection's last callback.
  HttpConnection(HttpConnectionHost& host, boost::asio::io_context& loop, int descriptor,
                 std::string address);
  ~HttpConnection();

  void Start() { Read(); }
  // Closes at once; an answer in progress is told.
  void Close();
  // Closes when no request is being read or answered.
  void CloseIfIdle() {
    if (current_ != nullptr || reader_.phase() != RequestReader::Phase::kIdle) return;
    shakes_hands() ? Close() : CloseAfterWrite();
  }
  // The round of WriteAtRoundEnd is over.
  void WriteQueued() {
    is_queued_ = false;
    Write();
  }
  // Enforces the deadlines; called every tick.
  void CheckTimeouts(Clock::time_point now);
  const std::string& address() const { return address_; }

  // The calls of the exchange; each does nothing unless `answer` is in progress.
  void Respond(uint64_t answer, HttpResponse response);
  void StartStream(uint64_t answer, const HttpResponse& head);
  void Push(uint64_t answer, std::string bytes);
  void EndStream(uint64_t answer, std::string last, HttpExchange::After after);
  void Abort(uint64_t answer) {
    if (IsCurrent(answer)) Close();
  }

 private:
  enum class IoResult { kOk, kEnd, kFailed };
  struct Io;  // the socket and its read buffer

  void Read();
  void OnRead(IoResult result, size_t bytes);
  void OnBytes(std::string_view bytes);
  void OnTlsBytes(std::string_view bytes);
  void RefusePlain();
  void Advance();
  void Handle(HttpRequest request);
  std::optional<HttpResponse> CheckHead(HttpRequest& head);
  void Refuse(const HttpRefusal& refusal);
  void FinishAnswer();
  void CloseAfterWrite();
  void TakeOut();
  bool IsBroken() const;
  // Counts and closes what is broken, once.
  void CloseBroken();
  void Write();
  void WriteSoon();
  // Gives in_flight_ to the socket; false when bytes are left, which leave by themselves then.
  bool SendInFlight();
  void AwaitWritable();
  // All of in_flight_ is written: its bytes count no more.
  void SettleInFlight();
  void OnOutDone();
  bool shakes_hands() const {
    return tls_ != nullptr && tls_->state() == TlsSession::State::kHandshake;
  }
  bool IsCurrent(uint64_t answer) const {
    return current_ != nullptr && current_->answer == answer && !is_closed_;
  }
  KeepAlive Fate() const {
    return keeps_alive_ && !host_.is_draining ? KeepAlive::kYes : KeepAlive::kNo;
  }

  HttpConnectionHost& host_;
  std::unique_ptr<Io> io_;
  const std::string address_;
  const HttpLimits& limits_;
  RequestReader reader_;
  bool is_reading_ = false;
  bool is_closed_ = false;
  bool is_queued_ = false;  // to be written at the end of the round

  std::shared_ptr<Link> current_;  // the answer in progress
  uint64_t num_answers_ = 0;
  bool is_advancing_ = false;
  bool is_streaming_ = false;
  bool is_head_request_ = false;
  bool keeps_alive_ = true;
  bool close_after_write_ = false;
  bool is_lingering_ = false;
  size_t discarded_bytes_ = 0;

  std::string out_;     // bytes for the wire
  std::string stream_;  // body bytes that are not framed yet
  bool stream_ended_ = false;
  std::unique_ptr<TlsSession> tls_;  // null: bytes cross as they are
  std::string raw_;                  // of TLS alone: no answer waits for it
  std::string in_flight_;
  size_t in_flight_done_ = 0;
  std::shared_ptr<Link> in_flight_link_;  // whose pushed bytes are in flight
  size_t in_flight_pushed_ = 0;

  RequestReader::Phase last_phase_ = RequestReader::Phase::kIdle;
  Clock::time_point phase_start_ = Clock::now();
  Clock::time_point write_progress_ = Clock::now();
  Clock::time_point last_output_ = Clock::now();
  Clock::time_point linger_start_;
};

}  // namespace skein::protocol
