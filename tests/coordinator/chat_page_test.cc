// Tests of the page at /: its files, their headers, and that it needs nothing from elsewhere.
// Thread: the test's, beside the listener's.
// Must never: open a browser.
#include "coordinator/api/chat_page.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/coordinator/api_fixture.h"

namespace skein::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class ChatPageTest : public ApiFixture {};

TEST_F(ChatPageTest, ItsFilesAreServedWithTheirTypesAndAPolicy) {
  const struct {
    const char* path;
    const char* type;
    const char* begin;
  } files[] = {{"/", "text/html; charset=utf-8", "<!doctype html>"},
               {"/chat.css", "text/css; charset=utf-8", ":root"},
               {"/chat.js", "text/javascript; charset=utf-8", "'use strict'"},
               {"/live.js", "text/javascript; charset=utf-8", "'use strict'"}};
  for (const auto& file : files) {
    SCOPED_TRACE(file.path);
    const protocol::HttpResult result = Get(file.path);
    EXPECT_EQ(result.status, 200);
    EXPECT_EQ(result.Header("content-type"), file.type);
    EXPECT_THAT(result.body, StartsWith(file.begin));
    EXPECT_THAT(result.Header("content-security-policy"),
                StartsWith("default-src 'none'; script-src 'self'; style-src 'self'; "
                           "connect-src 'self';"));
    EXPECT_EQ(result.Header("x-content-type-options"), "nosniff");
    EXPECT_THAT(result.body, Not(HasSubstr("://"))) << "no other origin";
    EXPECT_THAT(result.body, Not(HasSubstr("innerHTML"))) << "an answer is text, never markup";
  }
}

TEST_F(ChatPageTest, ThePolicyAllowsWhatThePageHas) {
  const std::string page = Get("/").body;
  EXPECT_THAT(page, Not(HasSubstr("<style"))) << "styles are in their file";
  EXPECT_THAT(page, Not(HasSubstr("style=")));
  EXPECT_THAT(page, Not(HasSubstr("onclick")));
  EXPECT_THAT(page, HasSubstr(R"(<script src="chat.js" defer></script>)"));
  EXPECT_THAT(page, HasSubstr(R"(<script src="live.js" defer></script>)"));
  EXPECT_THAT(page, HasSubstr(R"(name="viewport" content="width=device-width)"));
}

TEST_F(ChatPageTest, ItIsReadAndNothingElse) {
  const protocol::HttpResult result = Post("/", "{}");
  EXPECT_EQ(result.status, 405);
  EXPECT_EQ(result.Header("allow"), "GET");
  EXPECT_FALSE(ChatPageFile("/index.html", "").has_value());
}

// A browser at /skein asks for what the page names below /skein/, not beside it.
TEST_F(ChatPageTest, UnderARootPathItNamesItsOwnFiles) {
  EXPECT_THAT(ChatPageFile("/", "")->body, Not(HasSubstr("<base")));
  const protocol::HttpResponse page = *ChatPageFile("/", "/skein");
  EXPECT_THAT(page.body, StartsWith("<!doctype html>\n<html lang=\"en\">\n<head>\n"
                                    "<base href=\"/skein/\">\n"));
  const auto policy_of = [](const protocol::HttpResponse& response) {
    return response.headers.front().second;
  };
  EXPECT_THAT(policy_of(page), HasSubstr("base-uri 'self'"));
  EXPECT_THAT(policy_of(*ChatPageFile("/", "")), HasSubstr("base-uri 'none'"));
  EXPECT_EQ(ChatPageFile("/chat.js", "/skein")->body, ChatPageFile("/chat.js", "")->body);
}

}  // namespace
}  // namespace skein::coordinator
