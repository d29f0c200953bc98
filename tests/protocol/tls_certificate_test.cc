// Tests of the certificate's replacement: connections that come later see the new one, those that
// are open go on, and files that cannot be used change nothing.
#include "protocol/http/tls_certificate.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "protocol/base/strings.h"
#include "tests/protocol/http_fixture.h"
#include "tests/protocol/tls_client.h"

namespace skein::protocol {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;
using tests::TestCertificate;
using tests::TlsClient;

const TlsCertificate::Clock::time_point kStart{std::chrono::hours(1)};
constexpr std::chrono::seconds kLook{1};

TlsContext::Files FilesOf(const TestCertificate& certificate) {
  return {"CERT", certificate.certificate(), "KEY", certificate.key()};
}

TEST(TlsCertificateTest, ReadsAPairThatWasReplacedOnceASecond) {
  const TestCertificate files("certificate");
  const auto certificate = TlsCertificate::Load(FilesOf(files)).value();
  const auto first = certificate->Current(kStart);
  EXPECT_EQ(certificate->Current(kStart + kLook), first) << "nothing changed";
  const TestCertificate renewed("certificate_renewed", 2);
  files.ReplaceCertificate(renewed);
  EXPECT_EQ(certificate->Current(kStart + 2 * kLook), first) << "the key does not belong to it yet";
  files.ReplaceKey(renewed);
  EXPECT_EQ(certificate->Current(kStart + 2 * kLook + kLook / 2), first);
  const auto second = certificate->Current(kStart + 3 * kLook);
  EXPECT_NE(second, first);
  EXPECT_EQ(certificate->Current(kStart + 4 * kLook), second);
}

TEST(TlsCertificateTest, FilesThatCannotBeUsedLeaveTheOldOneInForce) {
  const TestCertificate files("certificate_broken");
  const auto certificate = TlsCertificate::Load(FilesOf(files)).value();
  const auto first = certificate->Current(kStart);
  std::ofstream(files.certificate()) << "-----BEGIN CERTIFICATE-----\nhalf";
  EXPECT_EQ(certificate->Current(kStart + kLook), first);
  std::remove(files.certificate().c_str());
  EXPECT_EQ(certificate->Current(kStart + 2 * kLook), first);
  const TestCertificate renewed("certificate_good", 2);
  files.ReplaceKey(renewed);
  files.ReplaceCertificate(renewed);
  EXPECT_NE(certificate->Current(kStart + 3 * kLook), first);
}

TEST(TlsCertificateTest, AStartWithoutOneNamesTheFile) {
  const auto loaded = TlsCertificate::Load({"CERT", "/nonexistent.pem", "KEY", "/nonexistent.key"});
  EXPECT_EQ(StatusText(loaded.status()),
            "CERT: /nonexistent.pem: No such file or directory; give a PEM file with the server's "
            "certificate and then its chain");
}

// Files of mode 000 are readable for root: these tests read as somebody else then.
class AsNobody {
 public:
  AsNobody() { is_root_ = ::geteuid() == 0 && ::seteuid(65534) == 0; }
  ~AsNobody() {
    if (!is_root_) return;
    EXPECT_EQ(::seteuid(0), 0);
  }

 private:
  bool is_root_ = false;
};

void SetMode(const std::string& path, std::filesystem::perms mode) {
  std::filesystem::permissions(path, mode);
}

constexpr auto kNobody = std::filesystem::perms::none;
constexpr auto kEverybody = std::filesystem::perms(0644);

TEST(TlsCertificateTest, AFileThatMayNotBeReadSaysSo) {
  const TestCertificate files("certificate_closed");
  SetMode(files.key(), kNobody);
  const AsNobody nobody;
  EXPECT_EQ(StatusText(TlsCertificate::Load(FilesOf(files)).status()),
            "KEY: " + files.key() +
                ": Permission denied; give a PEM file with the private key, without a password, "
                "that belongs to the certificate in " +
                files.certificate());
}

TEST(TlsCertificateTest, AMendedPermissionIsNoticedWithoutAnotherWrite) {
  for (const bool of_key : {false, true}) {
    const TestCertificate files("certificate_mended");
    const auto certificate = TlsCertificate::Load(FilesOf(files)).value();
    const auto first = certificate->Current(kStart);
    const TestCertificate renewed("certificate_mended_renewed", 2);
    const std::string& closed = of_key ? renewed.key() : renewed.certificate();
    SetMode(closed, kNobody);
    files.ReplaceKey(renewed);
    files.ReplaceCertificate(renewed);
    const std::string& path = of_key ? files.key() : files.certificate();
    {
      const AsNobody nobody;
      EXPECT_EQ(certificate->Current(kStart + kLook), first) << "it may not be read";
    }
    SetMode(path, kEverybody);
    EXPECT_NE(certificate->Current(kStart + 2 * kLook), first) << path;
  }
}

class CertificateTest : public HttpFixture {
 protected:
  CertificateTest() : files_("certificate_served") {
    tls_ = TlsCertificate::Load(FilesOf(files_)).value();
  }
  const TestCertificate files_;
};

TEST_F(CertificateTest, OpenConnectionsGoOnBesideTheNewOnes) {
  StartServer();
  TlsClient old(server_->port());
  ASSERT_TRUE(old.is_open());
  EXPECT_EQ(old.serial(), 1);
  old.Send("GET /stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const auto exchange = held_.Take();
  EXPECT_TRUE(exchange->Push("data: 1\n\n"));
  const TestCertificate renewed("certificate_served_renewed", 2);
  files_.ReplaceKey(renewed);
  files_.ReplaceCertificate(renewed);
  const auto end = TlsCertificate::Clock::now() + std::chrono::seconds(10);
  long serial = 1;
  while (serial == 1 && TlsCertificate::Clock::now() < end) {
    TlsClient client(server_->port());
    ASSERT_TRUE(client.is_open());
    serial = client.serial();
    client.Send(
        "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx");
    EXPECT_THAT(client.ReadToEnd(), EndsWith("x|/echo"));
  }
  EXPECT_EQ(serial, 2);
  exchange->EndStream("data: 2\n\n");
  EXPECT_THAT(old.ReadToEnd(), EndsWith("data: 2\n\n\r\n0\r\n\r\n"));
  EXPECT_TRUE(old.was_whole());
}

}  // namespace
}  // namespace skein::protocol
