// Tests of the keys of clients: their file, its reloading, and who is let in.
#include "coordinator/api/api_keys.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/base/strings.h"

namespace skein::coordinator {
namespace {

using protocol::Concat;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kNow = 1'800'000'000;
const ApiKeys::Clock::time_point kStart{std::chrono::hours(1)};

std::string Hmac(std::string_view id, std::string_view secret) {
  return ToHex(ApiKeyDigest(id, secret));
}

std::string Entry(std::string_view id, std::string_view secret, std::string_view fields = "") {
  return Concat("  ", id, ":\n    hmac: \"", Hmac(id, secret), "\"\n", fields);
}

std::string Problem(std::string_view text) {
  const auto parsed = ParseApiKeys(text, "FILE");
  return std::string(protocol::StatusText(parsed.status()));
}

// A file of keys, replaced by rename as operators should.
class KeyFile {
 public:
  explicit KeyFile(std::string_view text)
      : path_(testing::TempDir() + "skein_api_keys_" +
              testing::UnitTest::GetInstance()->current_test_info()->name()) {
    Write(text);
  }
  ~KeyFile() { std::filesystem::remove(path_); }
  void Write(std::string_view text) {
    std::ofstream(path_ + ".new") << text;
    std::filesystem::rename(path_ + ".new", path_);
  }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

TEST(ApiKeysTest, ReadsEveryField) {
  const auto keys = ParseApiKeys(
      Concat("keys:\n", Entry("alice", "s"),
             Entry("bob", "t",
                   "    tenant: team\n    weight: 7\n    routes: chat,models\n    special_ids: 1\n"
                   "    priority_min: -5\n    priority_max: 10\n    deadline: 2.5\n"
                   "    expires: 2027-01-31\n    requests_per_second: 0.5\n"
                   "    prompt_tokens_per_minute: 1000\n    output_tokens_per_minute: 2000\n"
                   "    concurrency: 3\n")),
      "FILE");
  ASSERT_TRUE(keys.ok()) << keys.status();
  ASSERT_EQ(keys->size(), 2u);
  const ApiKey& alice = (*keys)[0];
  EXPECT_EQ(alice.id, "alice");
  EXPECT_EQ(alice.tenant, "alice") << "one tenant a key by default";
  EXPECT_EQ(alice.weight, 1u);
  EXPECT_EQ(alice.limits, KeyLimits());
  EXPECT_FALSE(alice.special_ids);
  EXPECT_FALSE(alice.expires.has_value());
  for (size_t i = 0; i < kNumKeyRights; ++i) EXPECT_TRUE(alice.May(static_cast<KeyRight>(i)));
  const ApiKey& bob = (*keys)[1];
  EXPECT_EQ(bob.tenant, "team");
  EXPECT_EQ(bob.weight, 7u);
  EXPECT_TRUE(bob.May(KeyRight::kChat));
  EXPECT_TRUE(bob.May(KeyRight::kModels));
  EXPECT_FALSE(bob.May(KeyRight::kCompletions));
  EXPECT_TRUE(bob.special_ids);
  EXPECT_EQ(bob.priority_min, -5);
  EXPECT_EQ(bob.priority_max, 10);
  EXPECT_EQ(bob.deadline_s, 2.5);
  EXPECT_EQ(bob.expires, 1'801'353'600);
  EXPECT_EQ(bob.limits, (KeyLimits{0.5, 1000, 2000, 3}));
}

struct BadFile {
  std::string text, problem;
};

TEST(ApiKeysTest, BadFilesNameLineFieldAndRemedy) {
  const std::string good = Entry("a", "s");
  const BadFile bad[] = {
      {"users: {}\n", "FILE:1: users: unknown; the file has one section, keys"},
      {"keys: 5\n", "FILE:1: keys: must be a section with an id in each line below it"},
      {"keys:\n  a b:\n    hmac: x\n", "FILE:2: keys.a b: is no id: 1 to 64 of A-Z, a-z, 0-9"},
      {Concat("keys:\n", good, "  b.tenant: team\n"), "FILE:4: keys: an id has no dot"},
      {"keys:\n  b.tenant: team\n", "FILE:2: keys: an id has no dot"},
      {Concat("keys:\n", good, "  b.c:\n    hmac: x\n"), "FILE:4: keys: an id has no dot"},
      {"keys:\n  a:\n", "FILE:2: keys.a: has no fields; write hmac below it"},
      {"keys:\n  a:\n    weight: 1\n", "FILE:2: keys.a: has no hmac; skein keygen --api ID makes"},
      {"keys:\n  a:\n    hmac: zz\n", "FILE:3: keys.a.hmac: give the 64 hexadecimal digits that"},
      {Concat("keys:\n", good, "    wieght: 1\n"),
       "FILE:4: keys.a.wieght: unknown; did you mean weight?"},
      {Concat("keys:\n", good, "    weight: 0\n"),
       "FILE:4: keys.a.weight: \"0\"; give an integer from 1 to 1000"},
      {Concat("keys:\n", good, "    routes: chat,all\n"),
       "FILE:4: keys.a.routes: \"chat,all\"; give some of chat,completions,messages"},
      {Concat("keys:\n", good, "    expires: tomorrow\n"),
       "FILE:4: keys.a.expires: \"tomorrow\"; give a day, as 2027-01-31, or a time"},
      {Concat("keys:\n", good, "    concurrency: -1\n"),
       "FILE:4: keys.a.concurrency: \"-1\"; give an integer from 1 to"},
      {Concat("keys:\n", good, "    requests_per_second: nan\n"),
       "FILE:4: keys.a.requests_per_second: \"nan\"; give a number from 0.001 to"},
      {Concat("keys:\n", good, "    deadline: 0\n"),
       "FILE:4: keys.a.deadline: \"0\"; give seconds from 0.001 to 86400"},
      {Concat("keys:\n", good, "    priority_min: 5\n    priority_max: 4\n"),
       "FILE:2: keys.a: priority_min is above priority_max"},
      {Concat("keys:\n", good, good), "FILE:4: "},
  };
  for (const BadFile& file : bad) EXPECT_THAT(Problem(file.text), HasSubstr(file.problem));
}

TEST(ApiKeysTest, NoMessageShowsWhatMayBeASecret) {
  EXPECT_THAT(Problem("keys:\n  a:\n    hmac: \"a.my-very-secret\"\n"), Not(HasSubstr("my-very")));
  EXPECT_THAT(std::string(protocol::StatusText(ApiKeys::Load("my very", "").status())),
              Not(HasSubstr("my very")));
}

TEST(ApiKeysTest, FindsAKeyByIdAndSecretTogether) {
  const KeyFile file(Concat("keys:\n", Entry("alice", "s1"), Entry("bob", "s2")));
  const auto keys = ApiKeys::Load("", file.path()).value();
  const auto find = [&](std::string_view sent) { return keys->Find(sent, kNow, kStart); };
  ASSERT_NE(find("alice.s1"), nullptr);
  EXPECT_EQ(find("alice.s1")->id, "alice");
  EXPECT_EQ(find("bob.s2")->id, "bob");
  for (const char* wrong : {"", ".", "alice", "alice.", "alice.s2", "bob.s1", "alices1", "s1",
                            ".s1", "carol.s1", "alice.s1.s1", "Alice.s1", "alice.s1 "}) {
    EXPECT_EQ(find(wrong), nullptr) << wrong;
  }
  EXPECT_EQ(find(std::string(100'000, 'a')), nullptr);
}

TEST(ApiKeysTest, AKeyGivenAsAValueMayHaveAnyForm) {
  const auto keys = ApiKeys::Load("token-abc.123", "").value();
  ASSERT_NE(keys->Find("token-abc.123", kNow, kStart), nullptr);
  EXPECT_EQ(keys->Find("token-abc.123", kNow, kStart)->tenant, "");
  EXPECT_TRUE(keys->Find("token-abc.123", kNow, kStart)->special_ids);
  EXPECT_EQ(keys->Find("token-abc.12", kNow, kStart), nullptr);
  EXPECT_EQ(keys->Find("", kNow, kStart), nullptr);
  EXPECT_FALSE(ApiKeys::Load("with space", "").ok());
}

TEST(ApiKeysTest, AnExpiredKeyIsNoKey) {
  const KeyFile file(Concat("keys:\n", Entry("a", "s", "    expires: 2027-01-15T08:00:00Z\n")));
  const auto keys = ApiKeys::Load("", file.path()).value();
  EXPECT_NE(keys->Find("a.s", 1'799'999'999, kStart), nullptr);
  EXPECT_EQ(keys->Find("a.s", 1'800'000'000, kStart), nullptr);
}

TEST(ApiKeysTest, AChangedFileIsReadAndABadOneIsNot) {
  KeyFile file(Concat("keys:\n", Entry("a", "s")));
  const auto keys = ApiKeys::Load("", file.path()).value();
  ASSERT_NE(keys->Find("a.s", kNow, kStart), nullptr);
  file.Write(Concat("keys:\n", Entry("b", "s")));
  EXPECT_NE(keys->Find("a.s", kNow, kStart), nullptr) << "it looks once a second";
  const auto later = kStart + std::chrono::seconds(1);
  EXPECT_EQ(keys->Find("a.s", kNow, later), nullptr);
  EXPECT_NE(keys->Find("b.s", kNow, later), nullptr);
  file.Write("keys:\n  c: 5\n");
  EXPECT_NE(keys->Find("b.s", kNow, later + std::chrono::seconds(1)), nullptr);
  std::filesystem::remove(file.path());
  EXPECT_NE(keys->Find("b.s", kNow, later + std::chrono::seconds(2)), nullptr);
  file.Write("keys:\n");
  EXPECT_EQ(keys->Find("b.s", kNow, later + std::chrono::seconds(3)), nullptr)
      << "an empty list lets nobody in";
}

TEST(ApiKeysTest, AMissingFileEndsTheStart) {
  const auto keys = ApiKeys::Load("", "/nonexistent/keys.yaml");
  EXPECT_THAT(std::string(protocol::StatusText(keys.status())),
              HasSubstr("server.api_key_file (--api-key-file): /nonexistent/keys.yaml cannot be "
                        "read; name a file that can"));
}

TEST(ApiKeysTest, TheExampleFileIsGood) {
  std::ifstream stream("deploy/config/api_keys.yaml");
  const std::string text((std::istreambuf_iterator<char>(stream)),
                         std::istreambuf_iterator<char>());
  const auto keys = ParseApiKeys(text, "api_keys.yaml");
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(keys->size(), 2u);
}

TEST(ApiKeysTest, AMadeKeyFitsItsEntry) {
  const auto made = MakeApiKey("alice");
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->key.size(), 6u + 64u);
  EXPECT_THAT(made->entry, Not(HasSubstr(made->key.substr(6))));
  const KeyFile file("keys:\n" + made->entry);
  const auto keys = ApiKeys::Load("", file.path()).value();
  EXPECT_NE(keys->Find(made->key, kNow, kStart), nullptr);
  EXPECT_NE(MakeApiKey("alice")->key, made->key);
  EXPECT_FALSE(MakeApiKey("a.b").ok());
  EXPECT_FALSE(MakeApiKey("null").ok());
}

}  // namespace
}  // namespace skein::coordinator
