// Tests of answers with several choices, prompts in lists, echo and ids.
// Thread: the test's, beside the listener's and the control loop's.
// Must never: wait for time to pass without a condition.
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/json/json_writer.h"
#include "tests/coordinator/api_fixture.h"

namespace skein::coordinator {
namespace {

using protocol::JsonValue;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kChat[] = "/v1/chat/completions";
constexpr char kText[] = "/v1/completions";

std::string Chat(std::string_view fields) {
  return R"({"messages":[{"role":"user","content":"go on"}],"thinking":{"type":"disabled"},)" +
         std::string(fields) + "}";
}

// The parts of a stream by choice, in a stable order.
struct StreamedChoice {
  std::string text, finish;
  std::vector<int64_t> ids;
  size_t num_ends = 0, num_openings = 0;
};
std::map<int64_t, StreamedChoice> Read(const std::vector<std::string>& events) {
  std::map<int64_t, StreamedChoice> choices;
  EXPECT_EQ(events.back(), "[DONE]");
  for (const std::string& event : events) {
    if (event == "[DONE]") continue;
    const JsonValue list = At(event, {"choices"});
    if (list.elements().empty()) continue;  // usage
    EXPECT_EQ(list.elements().size(), 1u);
    const JsonValue& choice = list.elements()[0];
    StreamedChoice& streamed = choices[choice.Find("index")->AsInt64("index").value()];
    EXPECT_EQ(streamed.num_ends, 0u) << "a chunk after the end of its choice";
    const JsonValue* delta = choice.Find("delta");
    const JsonValue* text = delta == nullptr ? choice.Find("text") : delta->Find("content");
    if (text != nullptr) streamed.text += text->string();
    if (delta != nullptr && delta->Find("role") != nullptr) ++streamed.num_openings;
    if (const JsonValue* ids = choice.Find("token_ids")) {
      for (const JsonValue& id : ids->elements()) {
        streamed.ids.push_back(id.AsInt64("id").value());
      }
    }
    if (!choice.Find("finish_reason")->IsString()) continue;
    streamed.finish = choice.Find("finish_reason")->string();
    ++streamed.num_ends;
  }
  return choices;
}

class ChoicesTest : public ApiFixture {};

// rule: R3.1
TEST_F(ChoicesTest, NChoicesAreOneAnswer) {
  const protocol::HttpResult result = Post(kChat, Chat(R"("n":3,"seed":7,"temperature":0.5)"));
  ASSERT_EQ(result.status, 200) << result.body;
  const JsonValue choices = At(result.body, {"choices"});
  ASSERT_EQ(choices.elements().size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const std::vector<std::string> path = {"choices", std::to_string(i)};
    EXPECT_EQ(IntAt(result.body, {"choices", std::to_string(i), "index"}), static_cast<int64_t>(i));
    EXPECT_EQ(TextAt(result.body, {"choices", std::to_string(i), "message", "content"}), answer_);
  }
  const auto tokens = static_cast<int64_t>(AnswerIds().size());
  EXPECT_EQ(IntAt(result.body, {"usage", "completion_tokens"}), 3 * tokens) << "each is charged";
  std::vector<uint64_t> seeds;
  std::vector<uint64_t> ids;
  size_t prompt = 0;
  for (int i = 0; i < 3; ++i) {
    const SubmitRequest request = control_.TakeSubmitted();
    seeds.push_back(request.sampling.seed);
    ids.push_back(request.id.value());
    prompt = request.prompt_ids.size();
  }
  EXPECT_THAT(seeds, ElementsAre(7, 8, 9));
  EXPECT_NE(ids[0], ids[1]);
  EXPECT_NE(ids[1], ids[2]);
  EXPECT_EQ(IntAt(result.body, {"usage", "prompt_tokens"}), static_cast<int64_t>(prompt));
}

// rule: R3.1
TEST_F(ChoicesTest, NChoicesOfAStreamEndOnceEach) {
  for (const size_t burst : {1, 3, 64}) {
    control_.SetBurst(burst);
    const auto events =
        Stream(kChat, Chat(R"("n":4,"stream":true,"stream_options":{"include_usage":true})"));
    const auto choices = Read(events);
    ASSERT_EQ(choices.size(), 4u);
    for (const auto& [index, choice] : choices) {
      EXPECT_EQ(choice.text, answer_) << index;
      EXPECT_EQ(choice.finish, "stop");
      EXPECT_EQ(choice.num_ends, 1u);
      EXPECT_EQ(choice.num_openings, 1u);
    }
    const auto tokens = static_cast<int64_t>(AnswerIds().size());
    EXPECT_EQ(IntAt(events[events.size() - 2], {"usage", "completion_tokens"}), 4 * tokens);
  }
}

TEST_F(ChoicesTest, ChoicesWithoutASeedGetDifferentOnes) {
  Post(kChat, Chat(R"("n":2)"));
  const SubmitRequest first = control_.TakeSubmitted();
  EXPECT_NE(first.sampling.seed, control_.TakeSubmitted().sampling.seed);
}

TEST_F(ChoicesTest, PromptsOfAListAreNumberedOneByOne) {
  const std::string body = R"({"prompt":["a b",[5,6,7]],"n":2,"seed":3,"echo":true})";
  const protocol::HttpResult result = Post(kText, body);
  ASSERT_EQ(result.status, 200) << result.body;
  const std::string ids_text = TinyTokenizer().Decode(std::vector<int32_t>{5, 6, 7}).value();
  std::vector<std::string> texts;
  const JsonValue choices = At(result.body, {"choices"});
  for (const JsonValue& choice : choices.elements()) {
    texts.emplace_back(choice.Find("text")->string());
  }
  // A token of these ids alone may be part of a character: it is shown as one replacement.
  EXPECT_THAT(
      texts, ElementsAre("a b" + answer_, "a b" + answer_, ids_text + answer_, ids_text + answer_));
  std::vector<size_t> sizes;
  std::vector<uint64_t> seeds;
  for (int i = 0; i < 4; ++i) {
    const SubmitRequest request = control_.TakeSubmitted();
    sizes.push_back(request.prompt_ids.size());
    seeds.push_back(request.sampling.seed);
  }
  EXPECT_EQ(sizes[0], sizes[1]);
  EXPECT_EQ(sizes[2], 3u);
  EXPECT_EQ(sizes[3], 3u);
  EXPECT_THAT(seeds, ElementsAre(3, 4, 3, 4)) << "a prompt gives the same alone and in a list";
  EXPECT_EQ(IntAt(result.body, {"usage", "prompt_tokens"}), static_cast<int64_t>(sizes[0] + 3));
  const auto streamed =
      Read(Stream(kText, R"({"prompt":["a b",[5,6,7]],"echo":true,"stream":true})"));
  EXPECT_EQ(streamed.at(0).text, "a b" + answer_);
  EXPECT_EQ(streamed.at(1).text, ids_text + answer_);
}

TEST_F(ChoicesTest, EachPromptOfAListMustFit) {
  std::string ids = "[1";
  for (int i = 0; i < 4090; ++i) ids += ",1";
  const protocol::HttpResult result =
      Post(kText, R"({"prompt":["a",)" + ids + R"(]],"max_tokens":10})");
  EXPECT_EQ(result.status, 400);
  EXPECT_EQ(TextAt(result.body, {"error", "code"}), "context_length_exceeded");
  EXPECT_EQ(control_.num_submitted(), 0u) << "the first one does not run";
}

// rule: R4.4
TEST_F(ChoicesTest, R44IdsOfPromptAndTextAreReturned) {
  const std::vector<int32_t> ids = AnswerIds();
  const auto read = [](const JsonValue& list) {
    std::vector<int32_t> out;
    for (const JsonValue& id : list.elements()) {
      out.push_back(static_cast<int32_t>(id.AsInt64("id").value()));
    }
    return out;
  };
  const protocol::HttpResult text = Post(kText, R"({"prompt":[5,6],"return_token_ids":true})");
  EXPECT_EQ(read(At(text.body, {"choices", "0", "token_ids"})), ids) << "the stop token is counted";
  EXPECT_THAT(read(At(text.body, {"choices", "0", "prompt_token_ids"})), ElementsAre(5, 6));
  control_.TakeSubmitted();
  const protocol::HttpResult chat = Post(kChat, Chat(R"("return_token_ids":true)"));
  EXPECT_EQ(read(At(chat.body, {"choices", "0", "token_ids"})), ids);
  EXPECT_EQ(read(At(chat.body, {"prompt_token_ids"})), control_.TakeSubmitted().prompt_ids);
  const auto events = Stream(kChat, Chat(R"("return_token_ids":true,"stream":true)"));
  const auto streamed = Read(events);
  EXPECT_EQ(std::vector<int32_t>(streamed.at(0).ids.begin(), streamed.at(0).ids.end()), ids);
  EXPECT_EQ(read(At(events[0], {"choices", "0", "prompt_token_ids"})),
            control_.TakeSubmitted().prompt_ids);
  EXPECT_THAT(Post(kText, R"({"prompt":[5,6]})").body, Not(HasSubstr("token_ids")));
}

TEST_F(ChoicesTest, ARefusedChoiceRefusesTheRequest) {
  control_.RefuseAfter(2, absl::ResourceExhaustedError("full"));
  const protocol::HttpResult result = Post(kChat, Chat(R"("n":4)"));
  EXPECT_EQ(result.status, 503);
  const protocol::RequestId first = control_.TakeSubmitted().id;
  EXPECT_EQ(control_.TakeCancelled(), first);
  EXPECT_EQ(control_.TakeCancelled(), control_.TakeSubmitted().id);
}

TEST_F(ChoicesTest, AFailedChoiceEndsTheStreamWithAnError) {
  control_.Hold();
  std::vector<std::string> events;
  const auto result = protocol::CallHttpEvents(Call("POST", kChat, Chat(R"("n":2,"stream":true)")),
                                               [&](std::string_view event) {
                                                 events.emplace_back(event);
                                                 if (events.size() == 1)
                                                   control_.Fail(absl::InternalError("broken"));
                                                 return true;
                                               });
  ASSERT_FALSE(events.empty());
  EXPECT_THAT(events.back(), HasSubstr("\"retryable\":true"));
  for (const std::string& event : events) EXPECT_THAT(event, Not(HasSubstr("[DONE]")));
}

// A stop string ends its choice; the others go on.
TEST_F(ChoicesTest, AStopStringEndsEachChoiceByItself) {
  const protocol::HttpResult result = Post(kChat, Chat(R"("n":2,"stop":" capital")"));
  for (const char* index : {"0", "1"}) {
    EXPECT_EQ(TextAt(result.body, {"choices", index, "message", "content"}), "Hanoi is the");
    EXPECT_EQ(TextAt(result.body, {"choices", index, "stop_reason"}), " capital");
  }
}

}  // namespace
}  // namespace skein::coordinator
