// Tests of the Anthropic form, event by event.
// Thread: single.
// Must never: open a socket.
#include "coordinator/api/messages_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

using ::testing::HasSubstr;

const AnswerIdentity kIdentity = {RequestForm::kMessages, "msg_12", "m", "f", 5};

constexpr char kStart[] =
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_12\","
    "\"type\":\"message\",\"role\":\"assistant\",\"model\":\"m\",\"content\":[],\"stop_reason\":"
    "null,\"stop_sequence\":null,\"usage\":{\"input_tokens\":7,\"cache_read_input_tokens\":2,"
    "\"cache_creation_input_tokens\":0,\"output_tokens\":0}}}\n\nevent: ping\ndata: "
    "{\"type\":\"ping\"}\n\n";
const Usage kUsage = {.prompt_tokens = 9, .completion_tokens = 4, .cached_tokens = 2};

TEST(MessagesWriterTest, TheFirstPieceOpensTheMessage) {
  MessagesWriter writer(kIdentity);
  EXPECT_EQ(writer.First(0, true, {}, std::nullopt), "");
  EXPECT_EQ(writer.Delta(0, {{"", "a\n"}}, kUsage),
            std::string(kStart) +
                "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,"
                "\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n"
                "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,"
                "\"delta\":{\"type\":\"text_delta\",\"text\":\"a\\n\"}}\n\n");
  EXPECT_EQ(writer.Last(0, {"length"}, kUsage),
            "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n"
            "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":"
            "\"max_tokens\",\"stop_sequence\":null},\"usage\":{\"input_tokens\":7,"
            "\"cache_read_input_tokens\":2,\"cache_creation_input_tokens\":0,\"output_tokens\":4}}"
            "\n\n");
  EXPECT_EQ(writer.Done(kUsage), "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
}

TEST(MessagesWriterTest, AnEmptyAnswerIsAMessageToo) {
  MessagesWriter writer(kIdentity);
  const std::string events = writer.Last(0, {"stop", "\"</s>\"", true}, kUsage);
  EXPECT_EQ(events.substr(0, sizeof(kStart) - 1), kStart);
  EXPECT_THAT(events, HasSubstr(R"("stop_reason":"stop_sequence","stop_sequence":"</s>")"));
}

TEST(MessagesWriterTest, ReasoningIsSignedAndBlocksDoNotOverlap) {
  MessagesWriter writer(kIdentity);
  OutputText text{"why", "what"};
  text.calls.push_back({0, "call_1", "f", "{", false, {}});
  const std::string events = writer.Delta(0, {text}, kUsage);
  const auto at = [&](std::string_view part) {
    EXPECT_NE(events.find(part), std::string::npos) << part;
    return events.find(part);
  };
  EXPECT_LT(at("\"thinking_delta\""), at("\"signature_delta\",\"signature\":\"skein-12\""));
  EXPECT_LT(at("\"signature_delta\""), at("\"content_block_stop\",\"index\":0"));
  EXPECT_LT(at("\"content_block_stop\",\"index\":0"), at("\"text_delta\""));
  EXPECT_LT(at("\"content_block_stop\",\"index\":1"), at("\"tool_use\",\"id\":\"call_1\""));
  // The call goes on in the next piece, and text after it is a block of its own.
  OutputText rest{"", "after"};
  rest.calls.push_back({0, "", "", "\"a\":1", false, {}});
  const std::string more = writer.Delta(0, {rest}, kUsage);
  EXPECT_LT(more.find("\"partial_json\":\"\\\"a\\\":1\""), more.find("\"text\":\"after\""));
  EXPECT_THAT(more, HasSubstr("\"content_block_stop\",\"index\":2"));
}

TEST(MessagesWriterTest, ErrorsHaveTheTypesOfTheTable) {
  EXPECT_THAT(MessagesErrorBody(InvalidValue("a", "a is b")),
              "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":"
              "\"a is b\"}}");
  EXPECT_EQ(MessagesErrorResponse(Draining(), 3).status, 529);
  EXPECT_THAT(MessagesErrorResponse(Draining(), 3).body, HasSubstr("overloaded_error"));
  const ApiError internal = FromStatus(absl::InternalError("x"));
  EXPECT_THAT(MessagesErrorResponse(internal, 3).body, HasSubstr("api_error"));
  EXPECT_EQ(MessagesErrorResponse(internal, 3).status, 500);
  EXPECT_THAT(MessagesErrorBody(ModelNotFound("x")), HasSubstr("not_found_error"));
}

}  // namespace
}  // namespace skein::coordinator
