// The HTTP listener: connections, framing, deadlines, bounded streams.
// Owns: the listening socket, one thread, all connections.
// Thread: the request function runs on the listener's thread and must not block it; exchanges may
// be used from any thread.
// Must never: end a chunked body that its producer did not end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "protocol/http/http_message.h"
#include "protocol/http/tls_certificate.h"

namespace skein::protocol {

// The answer to one request, held by whoever produces it. Calls from one thread take effect in
// order. Exactly one of Respond, or StartStream followed by EndStream or Abort, ends it; dropping
// an unanswered exchange closes the connection.
class HttpExchange {
 public:
  class Link;  // the connection's side
  explicit HttpExchange(std::shared_ptr<Link> link);
  ~HttpExchange();
  HttpExchange(const HttpExchange&) = delete;
  HttpExchange& operator=(const HttpExchange&) = delete;

  // Answers with a whole body.
  void Respond(HttpResponse response);

  // Sends a head with chunked framing; the body follows by Push. Not for HTTP/1.0.
  void StartStream(HttpResponse head);
  // Queues bytes of the body; all queued bytes leave in one chunk. False, with nothing queued, when
  // the client is gone or more than egress_bytes_max would wait for the socket; one piece alone may
  // be larger.
  [[nodiscard]] bool Push(std::string bytes);
  // Queues `last` whatever waits already, and ends the body. With kClose the connection is closed
  // after it, otherwise it lives on.
  enum class After { kKeep, kClose };
  void EndStream(std::string last = {}, After after = After::kKeep);
  // Closes the connection without ending the body.
  void Abort();

  // Bytes pushed that the socket has not taken.
  size_t pending_bytes() const;

  // Runs `function` on the listener's thread, unless the listener was stopped.
  void Post(std::function<void()> function);
  // `function` runs on the listener's thread when the connection dies before the answer is queued
  // to its end. Call at most once, from the request function.
  void OnClosed(std::function<void()> function);
  // `function` runs on the listener's thread whenever the socket took all pushed bytes.
  void OnDrained(std::function<void()> function);

 private:
  std::shared_ptr<Link> link_;
};

// What the listener counts: kind is "malformed", "timeout" or "limit"; name is the rule, the phase
// or the limit.
struct HttpEvent {
  std::string_view kind;
  std::string_view name;
};

class HttpServer {
 public:
  struct Options {
    std::string host = "127.0.0.1";
    uint16_t port = 0;  // 0: any free one
    // Not empty: listens on this Unix socket instead, which only this user may open. A socket that
    // nobody listens on is replaced; the file is removed by Stop. The peer address of a request is
    // then "uid:N", as the kernel says.
    std::string unix_path;
    // A TCP socket that listens already, owned from now on; -1: the listener binds one itself.
    // Others may hold it too: what nobody accepts waits in its backlog.
    int listen_fd = -1;
    HttpLimits limits;
    // Not empty: a path that a proxy puts before others, as "/skein". Requests have their path
    // without it, whether it came or not.
    std::string root_path;
    // Of every answer, also of those that the listener gives itself.
    HttpHeaders headers;
    // Not null: connections speak TLS, with the certificate there is when they come. A handshake
    // has the time of a head; one that fails or a request without TLS is counted and ends the
    // connection.
    std::shared_ptr<TlsCertificate> tls;
    // Called on the listener's thread with each admitted head, before a byte of its body is read.
    // An answer refuses it: it is sent in its turn, and the connection ends. Not set: all go on.
    std::function<std::optional<HttpResponse>(HttpRequest& head)> on_head;
    // Called on the listener's thread with each whole request.
    std::function<void(HttpRequest, std::shared_ptr<HttpExchange>)> on_request;
    // The body for a refusal of the listener; plain text when not set.
    std::function<HttpResponse(const HttpRefusal&)> on_refusal;
    std::function<void(const HttpEvent&)> on_event;
  };

  // Binds and listens. Unavailable or InvalidArgument names the address and the reason.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Create(Options options);
  ~HttpServer();

  // Starts the thread.
  void Start();
  // Closes idle connections and every other one after its answer; calls `done` on the listener's
  // thread when the last of those that are open now is closed. New connections are accepted until
  // Stop, so that their requests can be refused; each ends with its answer.
  void Drain(std::function<void()> done);
  // Closes everything and ends the thread. Called by the destructor too.
  void Stop();

  // The port that is listened on.
  uint16_t port() const;
  size_t num_connections() const;
  // Runs `function` on the listener's thread.
  void Post(std::function<void()> function);

  class Impl;  // everything behind the listener

 private:
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace skein::protocol
