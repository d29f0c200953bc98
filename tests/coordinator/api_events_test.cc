// Tests of what the listener and generations have to tell as events.
#include "coordinator/api/api_events.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

using ::testing::ElementsAre;
using Kind = ApiEvent::Kind;

TEST(ApiEventsTest, MethodsAreThreeNames) {
  EXPECT_EQ(ShownMethod("GET"), "GET");
  EXPECT_EQ(ShownMethod("POST"), "POST");
  EXPECT_EQ(ShownMethod("BREW"), "other");
}

TEST(ApiEventsTest, TheListenersEventsKeepTheirNames) {
  EXPECT_EQ(EventOf({"malformed", "host"}).kind, Kind::kMalformed);
  EXPECT_EQ(EventOf({"malformed", "host"}).name, "host");
  EXPECT_EQ(EventOf({"timeout", "head"}).kind, Kind::kTimeout);
  EXPECT_EQ(EventOf({"limit", "head_bytes"}).kind, Kind::kLimit);
}

TEST(ApiEventsTest, LateTokensAreCounted) {
  EXPECT_EQ(EventOf(GenerationEvent::kSlow, 1).kind, Kind::kSlowStream);
  EXPECT_EQ(EventOf(GenerationEvent::kPrompt, 1).kind, Kind::kPromptStream);
  EXPECT_EQ(EventOf(GenerationEvent::kLateTokens, 7).kind, Kind::kLateTokens);
  EXPECT_EQ(EventOf(GenerationEvent::kLateTokens, 7).value, 7);
}

TEST(ApiEventsTest, AnEndTellsOfCallsReasoningAndTheAnswer) {
  GenerationEnd end{"stop", 200};
  end.calls = {1, 0, 2, 0};
  end.reasoning = {ParseResult::kUnclosed};
  end.reasoned = {{1, 30}};
  std::vector<std::string> told;
  const EmitEvent emit = [&told](const ApiEvent& event) {
    EXPECT_EQ(event.route, "/v1/chat/completions");
    told.push_back(std::to_string(static_cast<int>(event.kind)) + " " + std::string(event.name) +
                   " " + std::to_string(event.status) + " " +
                   std::to_string(static_cast<int>(event.value)) + " " +
                   std::to_string(event.engine));
  };
  EmitEnd(emit, "/v1/chat/completions", end, true);
  const auto line = [](Kind kind, const std::string& rest) {
    return std::to_string(static_cast<int>(kind)) + " " + rest;
  };
  EXPECT_THAT(
      told,
      ElementsAre(line(Kind::kGeneration, "stop 200 0 0"), line(Kind::kToolParse, "ok 0 0 0"),
                  line(Kind::kToolParse, "malformed 0 0 0"),
                  line(Kind::kToolParse, "malformed 0 0 0"),
                  line(Kind::kReasoningParse, "unclosed 0 0 0"), line(Kind::kReasoning, " 0 30 1"),
                  line(Kind::kStreamClosed, " 0 0 0"), line(Kind::kResponse, " 200 0 0")));
  told.clear();
  EmitEnd(emit, "/v1/chat/completions", GenerationEnd{"abort", 499}, false);
  EXPECT_THAT(told, ElementsAre(line(Kind::kGeneration, "abort 499 0 0"),
                                line(Kind::kResponse, " 499 0 0")));
}

}  // namespace
}  // namespace skein::coordinator
