// Tests of the events of a stream, byte by byte.
// Thread: single.
// Must never: open a socket.
#include "coordinator/api/sse_writer.h"

#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

const AnswerIdentity kChat = {RequestForm::kChat, "chatcmpl-1", "m", "f", 5};
const AnswerIdentity kText = {RequestForm::kCompletion, "cmpl-1", "m", "f", 5};

constexpr char kChatHead[] =
    "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":5,"
    "\"model\":\"m\",\"system_fingerprint\":\"f\",\"choices\":[";

std::string Chunk(std::string_view rest) { return kChatHead + std::string(rest) + "}\n\n"; }

// rule: R3.6
TEST(SseWriterTest, WritesChatChunks) {
  const SseWriter writer(kChat, SseWriter::ChunkUsage::kNone);
  EXPECT_EQ(writer.First(0, SseWriter::Opens::kContent, {}),
            Chunk("{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                  "\"logprobs\":null,\"finish_reason\":null}]"));
  EXPECT_EQ(writer.First(0, SseWriter::Opens::kReasoning, {}),
            Chunk("{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":null},"
                  "\"logprobs\":null,\"finish_reason\":null}]"));
  EXPECT_EQ(writer.Delta(0, {{"", "a\nb"}}, {}),
            Chunk("{\"index\":0,\"delta\":{\"content\":\"a\\nb\"},\"logprobs\":null,"
                  "\"finish_reason\":null}]"));
  EXPECT_EQ(writer.Delta(0, {{"r", ""}}, {}),
            Chunk("{\"index\":0,\"delta\":{\"reasoning_content\":\"r\"},\"logprobs\":null,"
                  "\"finish_reason\":null}]"));
  EXPECT_EQ(writer.Delta(0, {{"r", "c"}, "{}"}, {}),
            Chunk("{\"index\":0,\"delta\":{\"reasoning_content\":\"r\",\"content\":\"c\"},"
                  "\"logprobs\":{},\"finish_reason\":null}]"));
  AnswerIdentity both = kChat;
  both.names_reasoning = true;
  EXPECT_EQ(SseWriter(both, SseWriter::ChunkUsage::kNone).Delta(0, {{"r", "c"}}, {}),
            Chunk("{\"index\":0,\"delta\":{\"reasoning_content\":\"r\",\"reasoning\":\"r\","
                  "\"content\":\"c\"},\"logprobs\":null,\"finish_reason\":null}]"));
  EXPECT_EQ(writer.Last(0, {"stop", "\"x\""}, {}),
            Chunk("{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\","
                  "\"stop_reason\":\"x\"}]"));
}

TEST(SseWriterTest, NamesTheChoiceAndItsIds) {
  const SseWriter writer(kChat, SseWriter::ChunkUsage::kNone);
  EXPECT_EQ(writer.Delta(2, {{"", "a"}, "null", std::vector<int32_t>{7, 8}}, {}),
            Chunk("{\"index\":2,\"delta\":{\"content\":\"a\"},\"logprobs\":null,"
                  "\"finish_reason\":null,\"token_ids\":[7,8]}]"));
  EXPECT_NE(writer.First(1, SseWriter::Opens::kContent, {}, std::vector<int32_t>{3})
                .find("{\"index\":1,\"delta\":"),
            std::string::npos);
  EXPECT_NE(writer.Last(3, {"stop"}, {}).find("{\"index\":3,"), std::string::npos);
}

TEST(SseWriterTest, WritesTextChunks) {
  const SseWriter writer(kText, SseWriter::ChunkUsage::kNone);
  const std::string event = writer.Delta(0, {{"", "t"}}, {});
  EXPECT_NE(event.find("\"object\":\"text_completion\""), std::string::npos);
  EXPECT_NE(event.find("{\"index\":0,\"text\":\"t\",\"logprobs\":null,\"finish_reason\":null}"),
            std::string::npos);
  EXPECT_NE(writer.Last(0, {"length"}, {})
                .find("\"text\":\"\",\"logprobs\":null,\"finish_reason\":"
                      "\"length\",\"stop_reason\":null"),
            std::string::npos);
}

TEST(SseWriterTest, CarriesUsage) {
  const Usage usage{.prompt_tokens = 2, .completion_tokens = 3};
  const SseWriter null(kChat, SseWriter::ChunkUsage::kNull);
  EXPECT_NE(null.Last(0, {"stop"}, usage).find("],\"usage\":null}\n\n"), std::string::npos);
  const SseWriter so_far(kChat, SseWriter::ChunkUsage::kSoFar);
  EXPECT_NE(so_far.Last(0, {"stop"}, usage).find("],\"usage\":{\"prompt_tokens\":2,"),
            std::string::npos);
  EXPECT_NE(null.UsageChunk(usage).find("\"choices\":[],\"usage\":{\"prompt_tokens\":2,"
                                        "\"completion_tokens\":3,\"total_tokens\":5"),
            std::string::npos);
}

TEST(SseWriterTest, EndsStreams) {
  EXPECT_EQ(SseWriter::Done(), "data: [DONE]\n\n");
  const std::string error = SseWriter::Error(Draining(), {});
  EXPECT_EQ(error.substr(0, 16), "data: {\"error\":{");
  EXPECT_NE(error.find("\"retryable\":true},\"usage\":{"), std::string::npos);
  EXPECT_EQ(error.substr(error.size() - 3), "}\n\n");
}

}  // namespace
}  // namespace skein::coordinator
