// OpenSSL's own client on a blocking socket with a limit.
#include "tests/protocol/tls_client.h"

#include <array>
#include <cstdio>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

namespace skein::tests {

TestCertificate::TestCertificate(std::string_view name, long serial)
    : certificate_(testing::TempDir() + "skein_" + std::string(name) + "_" +
                   std::to_string(::getpid()) + ".pem"),
      key_(certificate_ + ".key") {
  EVP_PKEY* const key = ::EVP_EC_gen("P-256");
  X509* const made = ::X509_new();
  ::ASN1_INTEGER_set(::X509_get_serialNumber(made), serial);
  ::X509_gmtime_adj(::X509_getm_notBefore(made), -60);
  ::X509_gmtime_adj(::X509_getm_notAfter(made), 3600);
  ::X509_set_pubkey(made, key);
  X509_NAME* const subject = ::X509_get_subject_name(made);
  ::X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
  ::X509_set_issuer_name(made, subject);
  X509_EXTENSION* const names =
      ::X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
  ::X509_add_ext(made, names, -1);
  ::X509_EXTENSION_free(names);
  EXPECT_GT(::X509_sign(made, key, ::EVP_sha256()), 0);
  FILE* file = std::fopen(certificate_.c_str(), "w");
  ::PEM_write_X509(file, made);
  std::fclose(file);
  file = std::fopen(key_.c_str(), "w");
  ::PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(file);
  ::X509_free(made);
  ::EVP_PKEY_free(key);
}

TestCertificate::~TestCertificate() {
  std::remove(certificate_.c_str());
  std::remove(key_.c_str());
}

void TestCertificate::ReplaceCertificate(const TestCertificate& other) const {
  EXPECT_EQ(std::rename(other.certificate_.c_str(), certificate_.c_str()), 0);
}

void TestCertificate::ReplaceKey(const TestCertificate& other) const {
  EXPECT_EQ(std::rename(other.key_.c_str(), key_.c_str()), 0);
}

TlsClient::TlsClient(uint16_t port, int version)
    : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      context_(::SSL_CTX_new(::TLS_client_method())) {
  const timeval limit{10, 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ::SSL_CTX_set_min_proto_version(context_.get(), TLS1_VERSION);
  ::SSL_CTX_set_max_proto_version(context_.get(), version);
  // Old versions are offered only with old ciphers.
  if (version < TLS1_2_VERSION) ::SSL_CTX_set_cipher_list(context_.get(), "ALL:@SECLEVEL=0");
  session_.reset(::SSL_new(context_.get()));
  ::SSL_set_fd(session_.get(), socket_);
  is_open_ = ::SSL_connect(session_.get()) == 1;
}

TlsClient::~TlsClient() {
  session_.reset();
  ::close(socket_);
}

long TlsClient::serial() const {
  X509* const peer = ::SSL_get1_peer_certificate(session_.get());
  const long serial = ::ASN1_INTEGER_get(::X509_get0_serialNumber(peer));
  ::X509_free(peer);
  return serial;
}

void TlsClient::Send(std::string_view text) {
  EXPECT_EQ(::SSL_write(session_.get(), text.data(), static_cast<int>(text.size())),
            static_cast<int>(text.size()));
}

std::string TlsClient::ReadToEnd() {
  std::string text;
  std::array<char, 4096> piece;
  while (true) {
    const int count = ::SSL_read(session_.get(), piece.data(), static_cast<int>(piece.size()));
    if (count > 0) {
      text.append(piece.data(), static_cast<size_t>(count));
      continue;
    }
    was_whole_ = ::SSL_get_error(session_.get(), count) == SSL_ERROR_ZERO_RETURN;
    return text;
  }
}

}  // namespace skein::tests
