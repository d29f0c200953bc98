// TLS: one side of one connection, over bytes that others read and write.
// Owns: the session of OpenSSL and its buffers; a context owns certificate and key, or whom a
// client trusts. Thread: one object is used by one thread; contexts are shared. Must never: show a
// private key, or speak a version below 1.2.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace skein::protocol {

class TlsContext {
 public:
  // The certificate with its chain and the private key, both PEM. InvalidArgument names
  // `certificate_source` or `key_source`, the file, what is wrong with it and the remedy.
  struct Files {
    std::string certificate_source, certificate;
    std::string key_source, key;
  };
  static absl::StatusOr<std::shared_ptr<TlsContext>> Load(const Files& files);
  // For clients: servers are believed whose certificate one of `ca_file` (PEM) vouches for; empty:
  // one of those that this host trusts. InvalidArgument names `source`, the file and the remedy.
  static absl::StatusOr<std::shared_ptr<TlsContext>> ForClient(const std::string& source,
                                                               const std::string& ca_file);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

 private:
  friend class TlsSession;
  class Impl;
  explicit TlsContext(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

class TlsSession {
 public:
  // The server's side.
  explicit TlsSession(std::shared_ptr<TlsContext> context);
  // The client's side. The server must prove to be `server`, a name or an address. What it says
  // first is there at once, for TakeOutput.
  TlsSession(std::shared_ptr<TlsContext> context, const std::string& server);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  enum class State {
    kHandshake,  // more bytes of the other side are needed
    kOpen,
    kEnded,   // the other side said that it sends no more
    kPlain,   // the first bytes are a request or an answer without TLS
    kBroken,  // what came is no TLS that can go on
  };

  // Takes bytes from the wire; what they say in the clear is appended to `text`.
  State Receive(std::string_view bytes, std::string* text);
  // Appends to `wire` what the session has to say by itself: its part of the handshake, alerts.
  void TakeOutput(std::string* wire);
  // Appends `text`, encrypted, to `wire`. The session is open, and kBroken when it cannot be.
  void Send(std::string_view text, std::string* wire);
  // Appends to `wire` that nothing more comes: without it a cut answer is told from a whole one.
  void SendEnd(std::string* wire);

  State state() const { return state_; }
  // Why it is kBroken.
  const std::string& problem() const { return problem_; }

 private:
  void Break();

  class Impl;
  const std::unique_ptr<Impl> impl_;
  State state_ = State::kHandshake;
  std::string problem_;
};

// Why a client's session with the server at `where` is kPlain or kBroken, with the remedy.
absl::Status TlsFailure(const TlsSession& session, const std::string& where);

}  // namespace skein::protocol
