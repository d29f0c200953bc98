// OpenSSL over memory: the connection moves the bytes.
// Thread: the listener's.
// Must never: show a private key.
#include "protocol/http/tls_session.h"

#include <array>
#include <cctype>
#include <utility>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

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

// The newest reason of OpenSSL's own queue, which is empty afterwards.
std::string LastReason() {
  const unsigned long code = ::ERR_peek_last_error();
  const char* reason = ::ERR_reason_error_string(code);
  ::ERR_clear_error();
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
  std::unique_ptr<SSL_CTX, ContextFree> context{::SSL_CTX_new(::TLS_server_method())};
};

TlsContext::TlsContext(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TlsContext::~TlsContext() = default;

absl::StatusOr<std::shared_ptr<TlsContext>> TlsContext::Load(const Files& files) {
  auto impl = std::make_unique<Impl>();
  SSL_CTX* const context = impl->context.get();
  SKEIN_CHECK(context != nullptr) << "libssl has no context";
  ::ERR_clear_error();
  ::SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  ::SSL_CTX_set_options(
      context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  // Idle connections hold no record buffers, and output may move between two calls.
  ::SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
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
    ::SSL_set_accept_state(session.get());
  }

  std::shared_ptr<TlsContext> context;
  std::unique_ptr<SSL, SessionFree> session;
  BIO* in = nullptr;   // from the wire
  BIO* out = nullptr;  // to the wire
  bool has_begun = false;
};

TlsSession::TlsSession(std::shared_ptr<TlsContext> context)
    : impl_(std::make_unique<Impl>(std::move(context))) {}
TlsSession::~TlsSession() = default;

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
    } else {
      state_ = why == SSL_ERROR_ZERO_RETURN ? State::kEnded : State::kBroken;
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
    state_ = State::kBroken;
    ::ERR_clear_error();
  }
  TakeOutput(wire);
}

void TlsSession::SendEnd(std::string* wire) {
  ::ERR_clear_error();
  ::SSL_shutdown(impl_->session.get());
  ::ERR_clear_error();
  TakeOutput(wire);
}

}  // namespace skein::protocol
