// Reading, answering and ending of one connection.
// Owns: the socket.
// Thread: the listener's.
// Must never: end a chunked body that its producer did not end.
#include "protocol/http/http_connection.h"

#include <algorithm>
#include <array>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

namespace skein::protocol {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr size_t kReadBytes = 4 * 1024;      // of each connection: idle ones hold no more
constexpr size_t kHeldBytesMax = 1 << 20;    // while an answer is in progress
constexpr size_t kKeptBytesMax = 64 * 1024;  // of a buffer between two answers
constexpr size_t kDiscardBytesMax = 1 << 20;
constexpr std::chrono::seconds kLingerTime{2};
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
constexpr std::string_view kComment = ": keep-alive\n\n";

}  // namespace

struct HttpConnection::Io {
  explicit Io(asio::io_context& loop) : socket(loop) {}
  tcp::socket socket;
  std::array<char, kReadBytes> read_buffer;
};

HttpResponse HttpConnectionHost::Refusal(const HttpRefusal& refusal) const {
  if (options.on_refusal) return options.on_refusal(refusal);
  return {refusal.status, "text/plain", {}, refusal.message + "\n"};
}

HttpConnection::HttpConnection(HttpConnectionHost& host, asio::io_context& loop, int descriptor,
                               std::string address)
    : host_(host),
      io_(std::make_unique<Io>(loop)),
      address_(std::move(address)),
      limits_(host.options.limits),
      reader_(limits_, [this](HttpRequest& head) { return CheckHead(head); }) {
  error_code ignored;
  io_->socket.assign(tcp::v4(), descriptor, ignored);
  io_->socket.non_blocking(true, ignored);
  if (host.options.tls == nullptr) return;
  tls_ = std::make_unique<TlsSession>(host.options.tls->Current(Clock::now()));
}

HttpConnection::~HttpConnection() = default;

void HttpConnection::Read() {
  if (is_reading_ || is_closed_) return;
  if (current_ != nullptr && reader_.held_bytes() > kHeldBytesMax) return;
  is_reading_ = true;
  io_->socket.async_read_some(asio::buffer(io_->read_buffer),
                              [self = shared_from_this()](const error_code& error, size_t bytes) {
                                const IoResult failure =
                                    error == asio::error::eof ? IoResult::kEnd : IoResult::kFailed;
                                self->OnRead(error ? failure : IoResult::kOk, bytes);
                              });
}

void HttpConnection::OnRead(IoResult result, size_t bytes) {
  is_reading_ = false;
  if (is_closed_) return;
  if (result != IoResult::kOk) {
    // The end of the client's stream means that it is gone, unless only bytes are left to write.
    if (result == IoResult::kEnd && current_ == nullptr && (!in_flight_.empty() || !out_.empty())) {
      return CloseAfterWrite();
    }
    return Close();
  }
  const std::string_view received(io_->read_buffer.data(), bytes);
  tls_ == nullptr ? OnBytes(received) : OnTlsBytes(received);
  Read();
}

void HttpConnection::OnTlsBytes(std::string_view bytes) {
  if (is_lingering_ || close_after_write_) return OnBytes(bytes);
  std::string text;
  const TlsSession::State state = tls_->Receive(bytes, &text);
  tls_->TakeOutput(&raw_);
  if (state == TlsSession::State::kPlain) return RefusePlain();
  if (!text.empty()) OnBytes(text);
  if (is_closed_) return;
  if (state == TlsSession::State::kBroken) {
    Write();  // the alert, as far as the socket takes it
    return CloseBroken();
  }
  // The client sends no more: as when its stream ended.
  if (state == TlsSession::State::kEnded) return OnRead(IoResult::kEnd, 0);
  Write();
}

// The client does not speak TLS: it is told so in the clear.
void HttpConnection::RefusePlain() {
  tls_.reset();
  Refuse({400, "plain_http", "this port speaks TLS; send the request to https://"});
}

void HttpConnection::OnBytes(std::string_view bytes) {
  if (is_lingering_ || close_after_write_) {
    discarded_bytes_ += bytes.size();
    if (discarded_bytes_ > kDiscardBytesMax) Close();
    return;
  }
  reader_.Feed(bytes);
  Advance();
}

// Answers what is waiting, one request after the other.
void HttpConnection::Advance() {
  if (is_advancing_) return;
  is_advancing_ = true;
  while (current_ == nullptr && !is_closed_ && !close_after_write_) {
    if (reader_.has_request()) {
      Handle(reader_.TakeRequest());
    } else if (reader_.refusal().has_value()) {
      Refuse(*reader_.refusal());
    } else {
      if (reader_.TakeContinue()) out_ += kContinue;
      break;
    }
  }
  is_advancing_ = false;
  if (reader_.phase() != last_phase_) {
    last_phase_ = reader_.phase();
    phase_start_ = Clock::now();
  }
  Write();
}

void HttpConnection::Handle(HttpRequest request) {
  keeps_alive_ = request.keep_alive;
  is_head_request_ = request.method == "HEAD";
  current_ = std::make_shared<Link>();
  current_->loop = host_.loop;
  current_->connection = weak_from_this();
  current_->answer = ++num_answers_;
  current_->egress_bytes_max = limits_.egress_bytes_max;
  host_.options.on_request(std::move(request), std::make_shared<HttpExchange>(current_));
}

std::optional<HttpResponse> HttpConnection::CheckHead(HttpRequest& head) {
  head.peer_address = address_;
  const std::string& root = host_.options.root_path;
  const bool is_below = head.path.starts_with(root) &&
                        (head.path.size() == root.size() || head.path[root.size()] == '/');
  if (!root.empty() && is_below) head.path.erase(0, root.size());
  if (head.path.empty()) head.path = "/";
  return host_.options.on_head ? host_.options.on_head(head) : std::nullopt;
}

void HttpConnection::Refuse(const HttpRefusal& refusal) {
  if (!refusal.response) {
    host_.Count(refusal.status == 408   ? "timeout"
                : refusal.status == 400 ? "malformed"
                                        : "limit",
                refusal.rule);
  }
  const HttpResponse response = refusal.response ? *refusal.response : host_.Refusal(refusal);
  out_ += host_.Head(response, BodyFraming::kLength, KeepAlive::kNo) + response.body;
  CloseAfterWrite();
}

void HttpConnection::Respond(uint64_t answer, HttpResponse response) {
  if (!IsCurrent(answer) || is_streaming_) return;
  out_ += host_.Head(response, BodyFraming::kLength, Fate());
  if (!is_head_request_) out_ += response.body;
  FinishAnswer();
}

void HttpConnection::StartStream(uint64_t answer, const HttpResponse& head) {
  if (!IsCurrent(answer) || is_streaming_) return;
  is_streaming_ = true;
  stream_ended_ = false;
  out_ += host_.Head(head, BodyFraming::kChunked, Fate());
  last_output_ = Clock::now();
  WriteSoon();
}

void HttpConnection::Push(uint64_t answer, std::string bytes) {
  if (!IsCurrent(answer) || !is_streaming_ || stream_ended_) return;
  stream_ += bytes;
  WriteSoon();
}

void HttpConnection::EndStream(uint64_t answer, std::string last, HttpExchange::After after) {
  if (!IsCurrent(answer) || !is_streaming_ || stream_ended_) return;
  stream_ += last;
  stream_ended_ = true;
  if (after == HttpExchange::After::kClose) keeps_alive_ = false;
  WriteSoon();
}

// The answer is queued to its end; the next request may be answered.
void HttpConnection::FinishAnswer() {
  current_->on_closed = nullptr;
  current_->is_ended = true;
  current_.reset();
  is_streaming_ = false;
  last_phase_ = RequestReader::Phase::kIdle;
  phase_start_ = Clock::now();
  if (Fate() == KeepAlive::kNo) CloseAfterWrite();
  if (is_advancing_) return;
  Advance();
  Read();
}

void HttpConnection::CloseAfterWrite() {
  close_after_write_ = true;
  Write();
}

// What one round of the loop pushes leaves with one call, however many steps it is of. While a
// request is being handled, Advance writes at its end.
void HttpConnection::WriteSoon() {
  if (is_advancing_ || is_queued_) return;
  is_queued_ = true;
  host_.WriteAtRoundEnd(shared_from_this());
}

void HttpConnectionHost::WriteAtRoundEnd(std::shared_ptr<HttpConnection> connection) {
  unwritten.push_back(std::move(connection));
  if (unwritten.size() > 1) return;
  asio::post(*loop.lock(), [this] {
    for (const auto& waiting : std::exchange(unwritten, {})) waiting->WriteQueued();
  });
}

// What is to be sent next: answers, with TLS encrypted and behind what TLS has to say.
void HttpConnection::TakeOut() {
  if (tls_ == nullptr) return in_flight_.swap(out_);  // both keep their memory
  in_flight_.swap(raw_);
  if (tls_->state() == TlsSession::State::kHandshake) return;
  tls_->Send(out_, &in_flight_);
  out_.clear();
}

bool HttpConnection::IsBroken() const {
  return tls_ != nullptr && tls_->state() == TlsSession::State::kBroken;
}

void HttpConnection::CloseBroken() {
  if (is_closed_) return;
  host_.Count("malformed", "tls");
  Close();
}

void HttpConnection::Write() {
  if (is_closed_ || !in_flight_.empty()) return;
  if (is_streaming_ && !stream_.empty()) {
    AppendChunk(stream_, &out_);
    in_flight_pushed_ = stream_.size();
    in_flight_link_ = current_;
    stream_.clear();
  }
  const bool ends = is_streaming_ && stream_ended_;
  if (ends) out_ += "0\r\n\r\n";
  TakeOut();
  in_flight_done_ = 0;
  write_progress_ = last_output_ = Clock::now();
  const bool is_sent = SendInFlight();
  // Behind an alert nobody could read what comes: no need to wait for a deadline.
  if (IsBroken()) CloseBroken();
  if (is_closed_) return;
  // The answer is over before its last bytes are settled: nobody is told that it may go on.
  if (ends) is_streaming_ = false;
  if (is_sent) SettleInFlight();
  if (ends) FinishAnswer();
  if (in_flight_.empty() && close_after_write_) OnOutDone();
}

bool HttpConnection::SendInFlight() {
  while (in_flight_done_ < in_flight_.size()) {
    error_code error;
    const size_t bytes = io_->socket.write_some(asio::buffer(in_flight_) + in_flight_done_, error);
    if (error == asio::error::would_block) {
      AwaitWritable();
      return false;
    }
    if (error) {
      Close();
      return false;
    }
    in_flight_done_ += bytes;
    write_progress_ = Clock::now();
  }
  return true;
}

void HttpConnection::AwaitWritable() {
  io_->socket.async_wait(tcp::socket::wait_write,
                         [self = shared_from_this()](const error_code& error) {
                           if (self->is_closed_) return;
                           if (error) return self->Close();
                           if (!self->SendInFlight()) return;
                           self->SettleInFlight();
                           self->Write();
                         });
}

void HttpConnection::SettleInFlight() {
  in_flight_.clear();
  if (in_flight_.capacity() > kKeptBytesMax) in_flight_ = std::string();
  const std::shared_ptr<Link> link = std::exchange(in_flight_link_, nullptr);
  if (link == nullptr) return;
  const size_t left = link->pending_bytes.fetch_sub(in_flight_pushed_) - in_flight_pushed_;
  if (left == 0 && current_ == link && link->on_drained) link->on_drained();
}

// Everything is written and the connection is to end: tell the client, then discard what it still
// sends, so that no reset destroys the answer on its way.
void HttpConnection::OnOutDone() {
  if (is_lingering_) return;
  is_lingering_ = true;
  linger_start_ = Clock::now();
  error_code ignored;
  if (tls_ != nullptr) {
    // Without it the client could not tell a whole answer from a cut one.
    tls_->SendEnd(&in_flight_);
    in_flight_done_ = 0;
    io_->socket.write_some(asio::buffer(in_flight_), ignored);
    in_flight_.clear();
  }
  io_->socket.shutdown(tcp::socket::shutdown_send, ignored);
  if (ignored) return Close();
  Read();
}

void HttpConnection::Close() {
  if (is_closed_) return;
  is_closed_ = true;
  error_code ignored;
  io_->socket.close(ignored);
  if (const std::shared_ptr<Link> link = std::exchange(current_, nullptr)) {
    link->is_ended = true;
    link->on_drained = nullptr;
    if (const auto on_closed = std::exchange(link->on_closed, nullptr)) on_closed();
  }
  host_.on_end(shared_from_this());
}

void HttpConnection::CheckTimeouts(Clock::time_point now) {
  const auto timeout = [&](std::string_view phase, std::string message) {
    Refuse({408, std::string(phase), std::move(message)});
    Write();
  };
  if (is_lingering_) {
    if (now - linger_start_ > kLingerTime) Close();
    return;
  }
  if (!in_flight_.empty() && now - write_progress_ > limits_.write_timeout) {
    host_.Count("timeout", "write");
    return Close();
  }
  if (is_streaming_ && !stream_ended_ && in_flight_.empty() &&
      now - last_output_ >= limits_.stream_comment_interval) {
    AppendChunk(kComment, &out_);
    return Write();
  }
  if (current_ != nullptr || close_after_write_) return;
  const auto elapsed = now - phase_start_;
  if (shakes_hands()) {
    if (elapsed <= limits_.head_timeout) return;
    host_.Count("timeout", "handshake");
    return Close();
  }
  switch (reader_.phase()) {
    case RequestReader::Phase::kIdle:
      if (elapsed > limits_.keep_alive_timeout) Close();
      return;
    case RequestReader::Phase::kHead:
      if (elapsed > limits_.head_timeout) timeout("head", "the request head took too long");
      return;
    case RequestReader::Phase::kBody: {
      const auto late = std::chrono::duration<double>(elapsed - limits_.body_grace).count();
      if (late > 0 && static_cast<double>(reader_.body_bytes()) <
                          late * static_cast<double>(limits_.body_bytes_per_second_min)) {
        timeout("body", "the request body arrived too slowly");
      }
      return;
    }
  }
}

}  // namespace skein::protocol
