#include "tests/fuzz/request_checks.h"

#include "protocol/base/strings.h"
#include "protocol/json/json.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/small_vocabulary.h"

namespace skein::tests {

using coordinator::ApiError;
using coordinator::ChatConversation;
using coordinator::ChatMessage;
using coordinator::GenerationParams;

namespace {

using protocol::Concat;
using protocol::JsonMember;
using protocol::JsonValue;

constexpr std::string_view kSecret = "secret words";
// Fields whose text goes into a prompt.
constexpr std::string_view kTexts = " content prompt reasoning_content system text thinking ";

bool Within(double value, double min, double max) { return value >= min && value <= max; }

std::vector<int32_t> SpecialIds(const ChatConversation& conversation) {
  const auto prompt = SmallChat().Render(conversation);
  std::vector<int32_t> special;
  if (!prompt.ok()) return special;
  Require(SmallTokenizer().Decode(prompt->ids).ok(), "a prompt is made of tokens");
  for (const int32_t id : prompt->ids) {
    if (SmallTokenizer().IsSpecial(id)) special.push_back(id);
  }
  Require(!special.empty() && special[0] == SmallChat().bos_id(), "a prompt has its begin");
  return special;
}

}  // namespace

void CheckError(ApiError error, std::string_view route) {
  Require(error.status >= 400 && error.status < 500, "a bad request is the client's");
  NameField(route, &error);
  // A body that is no object has no fields.
  Require(error.code == "invalid_json" || (error.param.has_value() && !error.param->empty()),
          "a refusal names a field", error.message);
  const std::string body = ErrorBody(error, coordinator::ErrorPlace::kResponse);
  const auto json = protocol::ParseJson(body);
  Require(json.ok() && json->Find("error") != nullptr, "a refusal is JSON", body);
}

void CheckHidesSecrets(const ApiError& error, std::string_view text) {
  // Written otherwise they are the same words in JSON: a part of them counts, too.
  if (text.find("secret") != std::string_view::npos || text.find("\\u") != std::string_view::npos) {
    return;
  }
  Require(error.message.find(kSecret) == std::string::npos, "a refusal shows no prompt",
          error.message);
}

JsonValue WithSecrets(const JsonValue& body) {
  if (body.IsArray()) {
    std::vector<JsonValue> elements;
    for (const JsonValue& element : body.elements()) elements.push_back(WithSecrets(element));
    return JsonValue(std::move(elements));
  }
  if (!body.IsObject()) return body;
  std::vector<JsonMember> members;
  for (const JsonMember& member : body.members()) {
    const bool is_text = kTexts.find(Concat(" ", member.key, " ")) != std::string_view::npos;
    const bool hides = is_text && member.value.IsString();
    members.push_back(
        {member.key, hides ? JsonValue(std::string(kSecret)) : WithSecrets(member.value)});
  }
  return JsonValue(std::move(members));
}

void CheckParams(const GenerationParams& params) {
  const protocol::SamplingParams& sampling = params.sampling;
  Require(protocol::ValidateSamplingParams(sampling).ok(), "sampling is within its ranges");
  Require(Within(sampling.temperature, 0, 2) && Within(sampling.top_p, 0, 1) &&
              Within(sampling.min_p, 0, 1) && sampling.top_k >= 0,
          "so are its numbers");
  Require(Within(params.edits.presence_penalty, -2, 2) &&
              Within(params.edits.frequency_penalty, -2, 2) &&
              Within(params.edits.repetition_penalty, 0, 2),
          "and penalties");
  for (const protocol::TokenBias& bias : params.edits.bias) {
    Require(bias.token >= 0 && bias.token < kRequestLimits.vocab_size, "a bias has a token");
  }
  for (const int32_t token : params.stop.stop_token_ids) {
    Require(token >= 0 && token < kRequestLimits.vocab_size, "a stop is a token");
  }
  Require(params.stop_strings.strings.size() <= coordinator::kStopStringsMax, "stops are few");
  for (const std::string& stop : params.stop_strings.strings) {
    Require(!stop.empty() && stop.size() <= coordinator::kStopBytesMax, "and short");
  }
  Require(!params.max_tokens || *params.max_tokens >= 0, "an answer has a length");
  Require(params.n >= 1 && params.stop.min_tokens >= 0, "and there is one");
}

void CheckConversation(const ChatConversation& conversation) {
  ChatConversation other = conversation;
  for (ChatMessage& message : other.messages) {
    message.content = "x";
    message.reasoning_content = "y";
  }
  Require(SpecialIds(conversation) == SpecialIds(other), "no text becomes a special id");
}

}  // namespace skein::tests
