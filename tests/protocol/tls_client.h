// A certificate and a client that speaks TLS, for tests of the listener.
// Owns: the files of the certificate, and a socket with its session.
// Thread: the test's.
// Must never: wait longer than its limit.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <openssl/ssl.h>

#include "tests/protocol/raw_connection.h"

namespace skein::tests {

// A self-signed certificate for "localhost" and 127.0.0.1 and its key, as PEM files; removed at the
// end.
class TestCertificate {
 public:
  explicit TestCertificate(std::string_view name, long serial = 1);
  ~TestCertificate();
  const std::string& certificate() const { return certificate_; }
  const std::string& key() const { return key_; }
  // Puts the files of `other`, which then has none, in the place of these, the certificate first.
  void ReplaceCertificate(const TestCertificate& other) const;
  void ReplaceKey(const TestCertificate& other) const;

 private:
  const std::string certificate_, key_;
};

class TlsClient {
 public:
  // Connects and shakes hands; `version` is the highest it speaks, as TLS1_2_VERSION.
  explicit TlsClient(uint16_t port, int version = TLS1_3_VERSION);
  ~TlsClient();

  bool is_open() const { return is_open_; }
  std::string version() const { return ::SSL_get_version(session_.get()); }
  // Of the server's certificate.
  long serial() const;
  void Send(std::string_view text);
  // What comes until the server ended the session; `was_whole` says whether it said so.
  std::string ReadToEnd();
  bool was_whole() const { return was_whole_; }

 private:
  struct Free {
    void operator()(SSL_CTX* context) const { ::SSL_CTX_free(context); }
    void operator()(SSL* session) const { ::SSL_free(session); }
  };
  int socket_ = -1;
  std::unique_ptr<SSL_CTX, Free> context_;
  std::unique_ptr<SSL, Free> session_;
  bool is_open_ = false;
  bool was_whole_ = false;
};

}  // namespace skein::tests
