// Tests of the constraint that a chat request gives the scheduler.
// Thread: the test's.
// Must never: need a file outside the tree.
#include "coordinator/api/call_constraint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/coordinator/api_fixture.h"

namespace skein::coordinator {
namespace {

using ::testing::HasSubstr;
using Constraint = std::shared_ptr<const scheduler::TokenConstraint>;

constexpr char kTools[] =
    R"("tools":[{"type":"function","function":{"name":"a"}},{"type":"function","function":)"
    R"({"name":"b","parameters":{"type":"object","properties":{"x":{}}}}}])";

ApiOr<Constraint> Make(const std::string& fields, bool starts_in_reasoning = false) {
  static const CallConstraints constraints(TinyTokenizer(), TinyTemplate(),
                                           TinyTokenizer().vocab_size());
  const auto body =
      protocol::ParseJson(R"({"messages":[{"role":"user","content":"q"}],)" + fields + "}");
  RequestLimits limits;
  limits.vocab_size = TinyTokenizer().vocab_size();
  const auto request = ParseChatRequest(body.value(), limits);
  EXPECT_TRUE(std::holds_alternative<ChatRequest>(request)) << fields;
  return constraints.Make(std::get<ChatRequest>(request), starts_in_reasoning);
}
Constraint Made(const std::string& fields, bool starts_in_reasoning = false) {
  return std::get<Constraint>(Make(fields, starts_in_reasoning));
}

std::string Spelled(const scheduler::TokenConstraint& constraint) {
  return TinyTokenizer().Decode(constraint.Forced(60)).value();
}

// rule: S4, S5
TEST(CallConstraintTest, S5TheChoiceOfToolsDecidesWhatBinds) {
  EXPECT_EQ(Made(R"("temperature":0)"), nullptr);
  EXPECT_EQ(Made(std::string(kTools) + R"(,"tool_choice":"none")"), nullptr);
  EXPECT_FALSE(Made(kTools)->binds());
  EXPECT_FALSE(Made(std::string(kTools) + R"(,"tool_choice":"auto")")->binds());
  const std::string required = std::string(kTools) + R"(,"tool_choice":"required")";
  EXPECT_TRUE(Made(required)->binds());
  EXPECT_FALSE(Made(required, true)->binds()) << "the reasoning is free";
  const std::string head = "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"";
  EXPECT_EQ(Spelled(*Made(required)), head);
  // Function a declares nothing and nothing else may be called: all of the block is forced.
  const std::string named =
      std::string(kTools) + R"(,"tool_choice":{"type":"function","function":{"name":"a"}})";
  EXPECT_EQ(Spelled(*Made(named + R"(,"parallel_tool_calls":false)")),
            head + "a\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>");
  EXPECT_EQ(Spelled(*Made(named)), head + "a\">\n\n</｜DSML｜ invoke>\n<");
}

TEST(CallConstraintTest, ACloneGoesOnByItself) {
  const Constraint start = Made(std::string(kTools) + R"(,"tool_choice":"required")");
  const auto clone = start->Clone();
  clone->Advance(start->Forced(1).front());
  EXPECT_NE(clone->Mask(), start->Mask());
  EXPECT_EQ(start->Mask(), start->Clone()->Mask());
}

// rule: S5, G2
TEST(CallConstraintTest, S5AFunctionWithTooManyParametersIsRefused) {
  std::string properties;
  for (int i = 0; i < 257; ++i) {
    properties += (i > 0 ? R"(,"p)" : R"("p)") + std::to_string(i) + R"(":{})";
  }
  const auto made = Make(R"("tools":[{"type":"function","function":{"name":"wide","parameters":)"
                         R"({"type":"object","properties":{)" +
                         properties + "}}}}]");
  const ApiError& error = std::get<ApiError>(made);
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.code, "grammar_too_complex");
  EXPECT_EQ(error.param, "tools");
  EXPECT_THAT(error.message, HasSubstr("wide declares 257 parameters; at most 256"));
}

// rule: S5
TEST(CallConstraintTest, S5AFunctionThatDeclaresNoNamesTakesAny) {
  const auto binds_inside = [](const std::string& parameters) {
    const auto constraint =
        Made(R"("tools":[{"type":"function","function":{"name":"f","parameters":)" + parameters +
             R"(}}],"tool_choice":"required")")
            ->Clone();
    const std::string text = "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n";
    const auto ids = TinyTokenizer().Encode(text, SpecialTokens::kParse).value();
    for (const int32_t id : ids) constraint->Advance(id);
    return constraint->binds();
  };
  EXPECT_TRUE(binds_inside(R"({"type":"object"})"));
  EXPECT_TRUE(binds_inside(R"({"type":"object","additionalProperties":false})"));
  EXPECT_TRUE(binds_inside(R"({"properties":{"x":{}},"additionalProperties":true})"));
  EXPECT_FALSE(binds_inside(R"({"type":"object","additionalProperties":true})"));
  EXPECT_FALSE(binds_inside(R"({"type":"object","additionalProperties":{"type":"string"}})"));
  EXPECT_FALSE(binds_inside(R"({"anyOf":[{"properties":{"x":{}}}]})"));
}

}  // namespace
}  // namespace skein::coordinator
