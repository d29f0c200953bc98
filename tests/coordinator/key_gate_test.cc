// Tests of the gate: which heads it admits, what the others are told, and the bound on guesses.
#include "coordinator/api/key_gate.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

#include "protocol/base/strings.h"

namespace skein::coordinator {
namespace {

using protocol::HttpRequest;
using Clock = KeyGate::Clock;

const Clock::time_point kStart{std::chrono::hours(1)};

HttpRequest Head(std::string path, std::string name = "", std::string value = "") {
  HttpRequest head;
  head.method = "POST";
  head.path = std::move(path);
  head.peer_address = "127.0.0.1";
  if (!name.empty()) head.headers.emplace_back(std::move(name), std::move(value));
  return head;
}

class KeyGateTest : public ::testing::Test {
 protected:
  KeyGateTest() : path_(testing::TempDir() + "skein_key_gate_" + std::to_string(::getpid())) {
    std::ofstream(path_) << protocol::Concat(
        "keys:\n  a:\n    hmac: \"", ToHex(ApiKeyDigest("a", "s")), "\"\n  c:\n    hmac: \"",
        ToHex(ApiKeyDigest("c", "s")), "\"\n    routes: chat\n");
    keys_ = ApiKeys::Load("", path_).value();
    gate_ = std::make_unique<KeyGate>(keys_.get(), 3);
  }
  ~KeyGateTest() override { std::filesystem::remove(path_); }

  int Status(HttpRequest head, Clock::time_point now = kStart) {
    const auto error = gate_->Admit(head, 0, now);
    return error.has_value() ? error->status : 200;
  }

  const std::string path_;
  std::unique_ptr<ApiKeys> keys_;
  std::unique_ptr<KeyGate> gate_;
};

TEST_F(KeyGateTest, WithoutKeysEverybodyMayDoEverything) {
  KeyGate open(nullptr, 1);
  HttpRequest head = Head("/v1/completions");
  EXPECT_FALSE(open.Admit(head, 0, kStart).has_value());
  EXPECT_EQ(KeyOf(head).tenant, "");
  EXPECT_TRUE(KeyOf(head).special_ids);
}

TEST_F(KeyGateTest, EveryRouteButHealthNeedsAKey) {
  gate_ = std::make_unique<KeyGate>(keys_.get(), 1000);
  for (const char* path : {"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/models",
                           "/v1/models/x", "/tokenize", "/detokenize", "/metrics", "/version",
                           "/nothing", "/healthz", "/health/other", "/chat"}) {
    EXPECT_EQ(Status(Head(path)), 401) << path;
    EXPECT_EQ(Status(Head(path, "Authorization", "Bearer a.s")), 200) << path;
  }
  for (const char* path : {"/health", "/health/ready", "/health/live", "/health/startup", "/",
                           "/chat.js", "/chat.css", "/live.js"}) {
    EXPECT_EQ(Status(Head(path)), 200) << path;
  }
}

TEST_F(KeyGateTest, TakesTheKeyFromItsHeader) {
  gate_ = std::make_unique<KeyGate>(keys_.get(), 1000);
  EXPECT_EQ(Status(Head("/v1/models", "authorization", "bearer a.s")), 200);
  EXPECT_EQ(Status(Head("/v1/models", "Authorization", "a.s")), 401);
  EXPECT_EQ(Status(Head("/v1/models", "Authorization", "Basic a.s")), 401);
  EXPECT_EQ(Status(Head("/v1/models", "x-api-key", "a.s")), 401) << "not of this form";
  EXPECT_EQ(Status(Head("/v1/messages", "x-api-key", "a.s")), 200);
  EXPECT_EQ(Status(Head("/v1/messages/count_tokens", "X-Api-Key", "a.s")), 200);
  EXPECT_EQ(Status(Head("/v1/messages", "x-api-key", "a.t")), 401);
}

TEST_F(KeyGateTest, AttachesTheKey) {
  HttpRequest head = Head("/v1/models", "Authorization", "Bearer a.s");
  ASSERT_FALSE(gate_->Admit(head, 0, kStart).has_value());
  EXPECT_EQ(KeyOf(head).id, "a");
}

TEST_F(KeyGateTest, ARightThatIsMissingIsForbidden) {
  EXPECT_EQ(Status(Head("/v1/chat/completions", "Authorization", "Bearer c.s")), 200);
  EXPECT_EQ(Status(Head("/version", "Authorization", "Bearer c.s")), 200);
  HttpRequest head = Head("/metrics", "Authorization", "Bearer c.s");
  const auto error = gate_->Admit(head, 0, kStart);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->status, 403);
  EXPECT_EQ(error->code, "forbidden");
  EXPECT_EQ(error->message, "this API key is not good for metrics; ask the operator for the right");
  EXPECT_EQ(head.attachment, nullptr);
}

TEST_F(KeyGateTest, AnAddressThatGuessesIsNotHeard) {
  const HttpRequest good = Head("/v1/models", "Authorization", "Bearer a.s");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Status(Head("/v1/models")), 401) << i;
  EXPECT_EQ(Status(Head("/v1/models")), 429);
  EXPECT_EQ(Status(good), 429) << "or guessing would go on";
  HttpRequest head = good;
  EXPECT_NEAR(*gate_->Admit(head, 0, kStart)->wait_s, 20, 1e-6);
  HttpRequest other = good;
  other.peer_address = "127.0.0.2";
  EXPECT_EQ(Status(other), 200);
  EXPECT_EQ(Status(Head("/health")), 200) << "probes need no key";
  EXPECT_EQ(Status(good, kStart + std::chrono::seconds(21)), 200);
  EXPECT_EQ(Status(Head("/v1/models"), kStart + std::chrono::seconds(21)), 401);
  EXPECT_EQ(Status(Head("/v1/models"), kStart + std::chrono::seconds(21)), 429);
}

TEST_F(KeyGateTest, TheTableOfAddressesHasABound) {
  for (size_t i = 0; i < KeyGate::kAddressesMax + 100; ++i) {
    HttpRequest head = Head("/v1/models");
    head.peer_address = protocol::Concat("10.0.", i / 256, ".", i % 256);
    EXPECT_EQ(Status(head), 401);
  }
  EXPECT_EQ(gate_->num_addresses(), KeyGate::kAddressesMax);
  EXPECT_EQ(Status(Head("/v1/models"), kStart + std::chrono::hours(1)), 401);
  EXPECT_EQ(gate_->num_addresses(), 1u) << "what has faded is forgotten";
}

}  // namespace
}  // namespace skein::coordinator
