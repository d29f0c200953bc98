// Tests of the table of calls as the model wrote them.
// Thread: single.
#include "coordinator/text/call_texts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ChatToolCall Call(std::string id, std::string arguments) {
  return {std::move(id), "f", std::move(arguments), {}};
}
ChatToolCall Kept(std::string id, std::string arguments) {
  ChatToolCall call = Call(std::move(id), std::move(arguments));
  call.original = {"<", " as written"};
  return call;
}

// rule: E5
TEST(CallTextsTest, E5RestoresACallWhoseArgumentsWereReformatted) {
  CallTexts texts;
  texts.Keep("t", Kept("a", R"({"x":1.50,"y":{"b":1,"a":[2]}})"));
  ChatToolCall same = Call("a", R"({ "y": {"a": [2], "b": 1}, "x": 1.5 })");
  texts.Restore("t", &same);
  EXPECT_THAT(same.original, ElementsAre("<", " as written"));
}

TEST(CallTextsTest, E5OtherArgumentsNamesIdsAndTenantsGetNothing) {
  CallTexts texts;
  texts.Keep("t", Kept("a", R"({"x":1})"));
  ChatToolCall changed = Call("a", R"({"x":2})");
  ChatToolCall renamed = Call("a", R"({"x":1})");
  renamed.name = "g";
  ChatToolCall unknown = Call("b", R"({"x":1})");
  ChatToolCall foreign = Call("a", R"({"x":1})");
  for (ChatToolCall* call : {&changed, &renamed, &unknown}) texts.Restore("t", call);
  texts.Restore("u", &foreign);
  for (const ChatToolCall* call : {&changed, &renamed, &unknown, &foreign}) {
    EXPECT_THAT(call->original, IsEmpty());
  }
}

TEST(CallTextsTest, E5TheLeastRecentlyUsedGoFirstForEachTenant) {
  const std::string large(1000, ' ');
  CallTexts texts(3500);
  texts.Keep("u", Kept("other", "{}" + large));
  for (const char* id : {"a", "b"}) texts.Keep("t", Kept(id, "{}" + large));
  ChatToolCall a = Call("a", "{}"), b = Call("b", "{}"), other = Call("other", "{}");
  texts.Restore("t", &a);
  for (const char* id : {"c", "d"}) texts.Keep("t", Kept(id, "{}" + large));
  a.original.clear();
  texts.Restore("t", &b);
  texts.Restore("u", &other);
  EXPECT_THAT(b.original, IsEmpty()) << "b was used least recently";
  EXPECT_EQ(other.original.size(), 2u) << "another tenant's calls take no room of this one's";
  EXPECT_LE(texts.size(), 4u);
}

TEST(CallTextsTest, CallsBeyondTheBoundAreNotKept) {
  CallTexts texts(500);
  texts.Keep("t", Kept("a", "{}" + std::string(600, ' ')));
  EXPECT_EQ(texts.size(), 0u);
}

}  // namespace
}  // namespace skein::coordinator
