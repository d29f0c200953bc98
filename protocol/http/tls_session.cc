// OpenSSL over memory: the connection moves the bytes.
// Thread: the connection's.
// Must never: show a private key.
#include "protocol/http/tls_session.h"

#include <array>
#include <cctype>
#include <cstring>
#include <utility>

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include "protocol/base/log.h"
#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

constexpr size_t kPieceBytes = 16 * 1024;  // of a TLS record
constexpr unsigned char kHandshakeRecord = 0x16;

struct ContextFree {
  void operator()(SSL_CTX* context) const { ::SSL_CTX_free(context); }
};
struct SessionFree {
  void operator()(SSL* session) const { ::SSL_free(session); }
};

// The reason of OpenSSL's own queue, which is empty afterwards: the system's if a file could not be
// read, else the newest.
std::string LastReason() {
  const unsigned long first = ::ERR_peek_error();
  const unsigned long code = ::ERR_peek_last_error();
  ::ERR_clear_error();
  if (ERR_SYSTEM_ERROR(first)) return std::strerror(ERR_GET_REASON(first));
  const char* reason = ::ERR_reason_error_string(code);
  return reason == nullptr ? "it cannot be read" : reason;
}

absl::Status Refuse(const std::string& source, const std::string& file, std::string_view remedy) {
  return absl::InvalidArgumentError(Concat(source, ": ", file, ": ", LastReason(), "; ", remedy));
}

// Nobody is asked for the password of a key.
int NoPassword(char*, int, int, void*) { return -1; }

}  // namespace

class TlsContext::Impl {
 public:
  // The mode: idle connections hold no record buffers, and output may move between two calls.
  explicit Impl(const SSL_METHOD* method) : context(::SSL_CTX_new(method)) {
    SKEIN_CHECK(context != nullptr) << "libssl has no context";
    ::ERR_clear_error();
    ::SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
    ::SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    ::SSL_CTX_set_mode(context.get(),
                       SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  }
  const std::unique_ptr<SSL_CTX, ContextFree> context;
};

TlsContext::TlsContext(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TlsContext::~TlsContext() = default;

absl::StatusOr<std::shared_ptr<TlsContext>> TlsContext::Load(const Files& files) {
  auto impl = std::make_unique<Impl>(::TLS_server_method());
  SSL_CTX* const context = impl->context.get();
  ::SSL_CTX_set_options(context, SSL_OP_CIPHER_SERVER_PREFERENCE);
  ::SSL_CTX_set_default_passwd_cb(context, &NoPassword);
  if (::SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()) != 1) {
    return Refuse(files.certificate_source, files.certificate,
                  "give a PEM file with the server's certificate and then its chain");
  }
  if (::SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) != 1) {
    return Refuse(files.key_source, files.key,
                  Concat("give a PEM file with the private key, without a password, that belongs "
                         "to the certificate in ",
                         files.certificate));
  }
  if (::SSL_CTX_check_private_key(context) != 1) {
    return Refuse(
        files.key_source, files.key,
        Concat("give the private key that belongs to the certificate in ", files.certificate));
  }
  return std::shared_ptr<TlsContext>(new TlsContext(std::move(impl)));
}

absl::StatusOr<std::shared_ptr<TlsContext>> TlsContext::ForClient(const std::string& source,
                                                                  const std::string& ca_file) {
  auto impl = std::make_unique<Impl>(::TLS_client_method());
  SSL_CTX* const context = impl->context.get();
  ::SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  const bool has_trust = ca_file.empty()
                             ? ::SSL_CTX_set_default_verify_paths(context) == 1
                             : ::SSL_CTX_load_verify_file(context, ca_file.c_str()) == 1;
  if (!has_trust) {
    return Refuse(source, ca_file.empty() ? "this host's certificates" : ca_file,
                  "give a PEM file with the certificate that the server's was signed with, or the "
                  "server's own");
  }
  return std::shared_ptr<TlsContext>(new TlsContext(std::move(impl)));
}

class TlsSession::Impl {
 public:
  explicit Impl(std::shared_ptr<TlsContext> from)
      : context(std::move(from)), session(::SSL_new(context->impl_->context.get())) {
    SKEIN_CHECK(session != nullptr) << "libssl has no session";
    in = ::BIO_new(::BIO_s_mem());
    out = ::BIO_new(::BIO_s_mem());
    ::BIO_set_mem_eof_return(in, -1);
    ::BIO_set_mem_eof_return(out, -1);
    ::SSL_set_bio(session.get(), in, out);  // owns both
  }

  std::shared_ptr<TlsContext> context;
  std::unique_ptr<SSL, SessionFree> session;
  BIO* in = nullptr;   // from the wire
  BIO* out = nullptr;  // to the wire
  bool has_begun = false;
};

TlsSession::TlsSession(std::shared_ptr<TlsContext> context)
    : impl_(std::make_unique<Impl>(std::move(context))) {
  ::SSL_set_accept_state(impl_->session.get());
}

TlsSession::TlsSession(std::shared_ptr<TlsContext> context, const std::string& server)
    : impl_(std::make_unique<Impl>(std::move(context))) {
  SSL* const session = impl_->session.get();
  ::SSL_set_connect_state(session);
  std::array<unsigned char, sizeof(in6_addr)> address;
  if (::inet_pton(AF_INET, server.c_str(), address.data()) == 1 ||
      ::inet_pton(AF_INET6, server.c_str(), address.data()) == 1) {
    ::X509_VERIFY_PARAM_set1_ip_asc(::SSL_get0_param(session), server.c_str());
  } else {
    ::SSL_set_tlsext_host_name(session, server.c_str());
    ::SSL_set1_host(session, server.c_str());
  }
  ::ERR_clear_error();
  ::SSL_do_handshake(session);  // only speaks: nothing was received
  ::ERR_clear_error();
}

TlsSession::~TlsSession() = default;

// The newest reason; of a certificate that is not believed, what is wrong with it.
void TlsSession::Break() {
  state_ = State::kBroken;
  const long verdict = ::SSL_get_verify_result(impl_->session.get());
  problem_ = verdict == X509_V_OK ? LastReason() : ::X509_verify_cert_error_string(verdict);
  ::ERR_clear_error();
}

TlsSession::State TlsSession::Receive(std::string_view bytes, std::string* text) {
  if (state_ != State::kHandshake && state_ != State::kOpen) return state_;
  if (!bytes.empty() && !std::exchange(impl_->has_begun, true)) {
    const auto first = static_cast<unsigned char>(bytes.front());
    // A method of HTTP is in capitals.
    if (first != kHandshakeRecord && std::isupper(first) != 0) return state_ = State::kPlain;
  }
  SSL* const session = impl_->session.get();
  ::ERR_clear_error();
  ::BIO_write(impl_->in, bytes.data(), static_cast<int>(bytes.size()));
  std::array<char, kPieceBytes> piece;
  while (true) {
    const int count = ::SSL_read(session, piece.data(), static_cast<int>(piece.size()));
    if (count > 0) {
      text->append(piece.data(), static_cast<size_t>(count));
      continue;
    }
    const int why = ::SSL_get_error(session, count);
    if (why == SSL_ERROR_WANT_READ) {
      if (::SSL_is_init_finished(session) != 0) state_ = State::kOpen;
    } else if (why == SSL_ERROR_ZERO_RETURN) {
      state_ = State::kEnded;
    } else {
      Break();
    }
    ::ERR_clear_error();
    return state_;
  }
}

void TlsSession::TakeOutput(std::string* wire) {
  char* bytes = nullptr;
  const long count = ::BIO_get_mem_data(impl_->out, &bytes);
  if (count <= 0) return;
  wire->append(bytes, static_cast<size_t>(count));
  (void)BIO_reset(impl_->out);
}

void TlsSession::Send(std::string_view text, std::string* wire) {
  ::ERR_clear_error();
  // Memory takes all of it at once.
  if (!text.empty() &&
      ::SSL_write(impl_->session.get(), text.data(), static_cast<int>(text.size())) <= 0) {
    Break();
  }
  TakeOutput(wire);
}

void TlsSession::SendEnd(std::string* wire) {
  ::ERR_clear_error();
  ::SSL_shutdown(impl_->session.get());
  ::ERR_clear_error();
  TakeOutput(wire);
}

absl::Status TlsFailure(const TlsSession& session, const std::string& where) {
  if (session.state() == TlsSession::State::kPlain) {
    return absl::UnavailableError(Concat(where, " speaks no TLS; call it with http://"));
  }
  return absl::UnavailableError(Concat("TLS with ", where, " failed: ", session.problem(),
                                       "; is it the server that is meant, and trusted?"));
}

}  // namespace skein::protocol
