// The table of malformed requests: numbers, types, messages, unsupported features, JSON.
// Thread: any.
// Must never: name a case whose refusal depends on load.
#include "tests/coordinator/malformed_cases.h"

#include <utility>

namespace skein::tests {
namespace {

constexpr char kChat[] = "/v1/chat/completions";
constexpr char kText[] = "/v1/completions";

using Case = MalformedCase;

// A chat body with `fields` beside a good message.
std::string Chat(std::string_view fields) {
  return R"({"messages":[{"role":"user","content":"secret words"}],)" + std::string(fields) + "}";
}
std::string Messages(std::string_view messages) {
  return "{\"messages\":" + std::string(messages) + "}";
}
std::string Text(std::string_view fields) {
  return R"({"prompt":"secret words",)" + std::string(fields) + "}";
}

Case Invalid(std::string path, std::string body, std::string param, std::string detail) {
  return {std::move(path), std::move(body),  400,
          "invalid_value", std::move(param), std::move(detail)};
}
Case Unsupported(std::string path, std::string body, std::string param, std::string detail = "") {
  return {std::move(path),         std::move(body),  400,
          "unsupported_parameter", std::move(param), std::move(detail)};
}
Case Json(std::string body, std::string detail) {
  return {kChat, std::move(body), 400, "invalid_json", "", std::move(detail)};
}

std::vector<Case> NumberCases() {
  return {
      Invalid(kChat, Chat(R"("max_tokens":0)"), "max_tokens", "is 0; accepted: 1 to 4096"),
      Invalid(kChat, Chat(R"("max_tokens":2147483648)"), "max_tokens", "is 2147483648"),
      Invalid(kChat, Chat(R"("max_tokens":9007199254740993)"), "max_tokens", "9007199254740993"),
      Invalid(kChat, Chat(R"("max_tokens":18446744073709551616)"), "max_tokens",
              "is 1.8446744073709552e+19; expected an integer"),
      Invalid(kChat, Chat(R"("max_tokens":1.5)"), "max_tokens", "is 1.5; expected an integer"),
      Invalid(kChat, Chat(R"("max_tokens":"12")"), "max_tokens", "is \"12\"; expected an integer"),
      Invalid(kChat, Chat(R"("max_tokens":5,"max_completion_tokens":6)"), "max_completion_tokens",
              "is 6 but max_tokens is 5"),
      Invalid(kChat, Chat(R"("max_completion_tokens":4097)"), "max_completion_tokens", "is 4097"),
      Invalid(kChat, Chat(R"("min_tokens":-1)"), "min_tokens", "is -1; accepted: 0 to 4096"),
      Invalid(kChat, Chat(R"("min_tokens":9,"max_tokens":8)"), "min_tokens", "is 9"),
      Invalid(kChat, Chat(R"("temperature":2.01)"), "temperature", "is 2.01; accepted: 0.0 to 2.0"),
      Invalid(kChat, Chat(R"("temperature":-0.1)"), "temperature", "is -0.1"),
      Invalid(kChat, Chat(R"("temperature":"hot")"), "temperature", "expected a number"),
      Invalid(kChat, Chat(R"("top_p":0)"), "top_p", "is 0; accepted: above 0 to 1"),
      Invalid(kChat, Chat(R"("top_p":1.1)"), "top_p", "is 1.1"),
      Invalid(kChat, Chat(R"("top_k":-2)"), "top_k", "is -2; accepted: -1 to 2147483647"),
      Invalid(kChat, Chat(R"("top_k":2147483648)"), "top_k", "is 2147483648"),
      Invalid(kChat, Chat(R"("min_p":1.5)"), "min_p", "is 1.5"),
      Invalid(kChat, Chat(R"("seed":18446744073709551616)"), "seed", "expected a 64-bit integer"),
      Invalid(kChat, Chat(R"("seed":0.5)"), "seed", "is 0.5"),
      Invalid(kChat, Chat(R"("n":0)"), "n", "is 0; accepted: 1 to 8"),
      Invalid(kChat, Chat(R"("top_logprobs":21,"logprobs":true)"), "top_logprobs", "is 21"),
      Invalid(kChat, Chat(R"("prompt_logprobs":21)"), "prompt_logprobs", "is 21"),
      Invalid(kChat, Chat(R"("prompt_logprobs":true)"), "prompt_logprobs", "expected an integer"),
      Invalid(kText, Text(R"("prompt_logprobs":1,"stream":true)"), "prompt_logprobs", "stream"),
      Invalid(kChat, Chat(R"("top_logprobs":2)"), "top_logprobs", "logprobs is not true"),
      Invalid(kChat, Chat(R"("priority":101)"), "priority", "is 101; accepted: -100 to 100"),
      Invalid(kChat, Chat(R"("presence_penalty":3)"), "presence_penalty", "is 3"),
      Invalid(kChat, Chat(R"("repetition_penalty":0)"), "repetition_penalty", "above 0 to 2"),
      Invalid(kChat, Chat(R"("reasoning_effort":0)"), "reasoning_effort",
              "is 0; accepted: 1 to 100"),
      Invalid(kText, Text(R"("logprobs":21)"), "logprobs", "is 21; accepted: 0 to 20"),
      Invalid(kText, Text(R"("best_of":0)"), "best_of", "is 0"),
  };
}

std::vector<Case> TypeCases() {
  return {
      Invalid(kChat, Chat(R"("model":7)"), "model", "is an integer; expected a string"),
      Invalid(kChat, Chat(R"("stream":"yes")"), "stream", "is \"yes\"; expected true or false"),
      Invalid(kChat, Chat(R"("stream_options":{"include_usage":true})"), "stream_options",
              "stream is not true"),
      Invalid(kChat, Chat(R"("stream":true,"stream_options":{"include_usage":1})"),
              "stream_options.include_usage", "is 1"),
      Invalid(kChat, Chat(R"("stop":["a","b","c","d","e"])"), "stop", "has 5 strings; at most 4"),
      Invalid(kChat, Chat(R"("stop":"")"), "stop", "has 0 bytes"),
      Invalid(kChat, Chat("\"stop\":\"" + std::string(257, 'x') + "\""), "stop", "has 257 bytes"),
      Invalid(kChat, Chat(R"("stop":["a",5])"), "stop[1]", "is an integer; expected a string"),
      Invalid(kChat, Chat(R"("stop_token_ids":[4096])"), "stop_token_ids[0]",
              "is 4096; accepted: 0 to 4095"),
      Invalid(kChat, Chat(R"("stop_token_ids":5)"), "stop_token_ids", "expected an array"),
      Invalid(kChat, Chat(R"("logit_bias":{"5":101})"), "logit_bias.5", "is 101"),
      Invalid(kChat, Chat(R"("logit_bias":{"4096":1})"), "logit_bias", "\"4096\"; expected"),
      Invalid(kText, Text(R"("logit_bias":{"05":1})"), "logit_bias", "\"05\"; expected"),
      Invalid(kText, Text(R"("logit_bias":{"-1":1})"), "logit_bias", "\"-1\"; expected"),
      Invalid(kText, Text(R"("logit_bias":[1])"), "logit_bias", "expected an object"),
      Invalid(kText, Text(R"("frequency_penalty":-2.5)"), "frequency_penalty", "is -2.5"),
      Invalid(kText, Text(R"("repetition_penalty":2.5)"), "repetition_penalty", "is 2.5"),
      Invalid(kText, Text(R"("repetition_penalty":1e-60)"), "repetition_penalty", "above 0 to 2"),
      Invalid(kText, Text(R"("allowed_token_ids":[])"), "allowed_token_ids", "is empty"),
      Invalid(kText, Text(R"("allowed_token_ids":[4096])"), "allowed_token_ids[0]", "4096"),
      Invalid(kText, Text(R"("allowed_token_ids":"a")"), "allowed_token_ids", "an array"),
      Invalid(kText, Text(R"("bad_words":"secret")"), "bad_words", "an array of strings"),
      Invalid(kText, Text(R"("bad_words":["x",""])"), "bad_words[1]", "has 0 bytes"),
      Invalid(kText, Text(R"("bad_words":[7])"), "bad_words[0]", "a string"),
      Invalid(kChat, Chat(R"("thinking":{"type":"maybe"})"), "thinking.type", "is \"maybe\""),
      Invalid(kChat, Chat(R"("thinking":true)"), "thinking", "is a boolean; expected an object"),
      Invalid(kChat, Chat(R"("reasoning_effort":"extreme")"), "reasoning_effort", "\"extreme\""),
      Invalid(kChat, Chat(R"("thinking":{"type":"enabled"},"reasoning_effort":"none")"),
              "reasoning_effort", "thinking is enabled"),
      Invalid(kChat, Chat(R"("response_format":{"type":"xml"})"), "response_format.type",
              "\"xml\""),
      Invalid(kChat, Chat(R"("metadata":[])"), "metadata", "is an array; expected an object"),
      Invalid(kChat, Chat(R"("repetition_ngram":65)"), "repetition_ngram",
              "is 65; accepted: 0 to 64"),
      Invalid(kChat, Chat(R"("cache_salt":"a/b")"), "cache_salt", "0 to 128 characters"),
      Invalid(kText, R"({"prompt":{}})", "prompt", "is an object"),
      Invalid(kText, R"({"prompt":[]})", "prompt", "is an empty array"),
      Invalid(kText, R"({"prompt":[1,"a"]})", "prompt[1]", "is a string; expected a token id"),
      Invalid(kText, R"({"prompt":[1,4096]})", "prompt[1]", "is 4096; accepted: 0 to 4095"),
      Invalid(kText, R"({"prompt":[1,-1]})", "prompt[1]", "is -1"),
      Invalid(kText, R"({"prompt":["a",[1,-1]]})", "prompt[1][1]", "is -1"),
      Invalid(kText, R"({"prompt":["a",[]]})", "prompt[1]", "has no token ids"),
      Invalid(kText, R"({"prompt":["a",7]})", "prompt[1]", "is an integer; expected a string or"),
      Invalid(kText, R"({"prompt":[["a"]]})", "prompt[0][0]", "is a string; expected a token id"),
      Invalid(kText, R"({"model":"tiny-v41"})", "prompt", "is missing"),
  };
}

std::vector<Case> ToolCases() {
  return {
      Invalid(kChat, Chat(R"("tool_choice":"always")"), "tool_choice", "\"always\""),
      Invalid(kChat, Chat(R"("tool_choice":"required")"), "tool_choice", "there are no tools"),
      Invalid(kChat, Chat(R"("tool_choice":{"type":"tool","function":{"name":"f"}})"),
              "tool_choice.type", "\"tool\""),
      Invalid(kChat, Chat(R"("tool_choice":{"type":"function"})"), "tool_choice.function",
              "an object with name"),
      Invalid(kChat, Chat(R"("tool_choice":{"type":"function","function":{}})"),
              "tool_choice.function.name", "is missing"),
      Invalid(kChat,
              Chat(R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":)"
                   R"({"type":"function","function":{"name":"g"}})"),
              "tool_choice.function.name", "names no function of tools"),
      Invalid(kChat, Chat(R"("parallel_tool_calls":1)"), "parallel_tool_calls",
              "is 1; expected true or false"),
      Invalid(kChat, Chat(R"("tools":[{"type":"web"}])"), "tools[0].type", "\"web\""),
      Invalid(kChat, Chat(R"("tools":[{"type":"function"}])"), "tools[0].function", "an object"),
      Invalid(kChat, Chat(R"("tools":[{"type":"function","function":{"name":"a b"}}])"),
              "tools[0].function.name", "1 to 64 characters"),
      Invalid(kChat,
              Chat(R"("tools":[{"type":"function","function":{"name":"f"}},)"
                   R"({"type":"function","function":{"name":"f"}}])"),
              "tools[1].function.name", "an earlier tool names"),
      Invalid(kChat,
              Chat(R"("tools":[{"type":"function","function":{"name":"f","parameters":)"
                   R"({"required":[1]}}}])"),
              "tools[0].function.parameters.required[0]", "is an integer; expected a string"),
  };
}

std::vector<Case> SpeculationCases() {
  return {
      Invalid(kChat, Chat(R"("speculation":true)"), "speculation",
              "is a boolean; expected an object"),
      Invalid(kChat, Chat(R"("speculation":{"enabled":"no"})"), "speculation.enabled",
              "is \"no\"; expected true or false"),
      Invalid(kChat, Chat(R"("speculation":{"max_draft_tokens":64})"),
              "speculation.max_draft_tokens", "is 64; accepted: 0 to 63"),
      Invalid(kChat, Chat(R"("speculation":{"max_draft_tokens":-1})"),
              "speculation.max_draft_tokens", "is -1"),
      Invalid(kText, Text(R"("speculation":{"max_draft_tokens":2.5})"),
              "speculation.max_draft_tokens", "is 2.5; expected an integer"),
      Invalid(kText, Text(R"("speculation":{"verification":"exact"})"), "speculation.verification",
              "is \"exact\""),
      Invalid(kChat, Chat(R"("speculation":{"max_drafts":2})"), "speculation.max_drafts",
              "is unknown; accepted: enabled, max_draft_tokens, verification"),
  };
}

std::vector<Case> MessageCases() {
  return {
      Invalid(kChat, "{}", "messages", "is missing; expected an array"),
      Invalid(kChat, Messages("[]"), "messages", "has 0 messages; accepted: 1 to 4096"),
      Invalid(kChat, Messages(R"(["secret words"])"), "messages[0]", "is a string"),
      Invalid(kChat, Messages(R"([{"content":"secret words"}])"), "messages[0].role", "is missing"),
      Invalid(kChat, Messages(R"([{"role":"robot","content":"secret words"}])"), "messages[0].role",
              "is \"robot\""),
      Invalid(kChat, Messages(R"([{"role":"user"}])"), "messages[0].content", "is missing"),
      Invalid(kChat, Messages(R"([{"role":"user","content":7}])"), "messages[0].content",
              "is an integer"),
      Invalid(kChat, Messages(R"([{"role":"user","content":["secret words"]}])"),
              "messages[0].content[0]", "is a string; expected an object"),
      Unsupported(kChat, Messages(R"([{"role":"user","content":[{"type":"image_url"}]}])"),
                  "messages[0].content[0].type", "\"image_url\""),
      Invalid(kChat, Messages(R"([{"role":"user","content":[{"type":"text"}]}])"),
              "messages[0].content[0].text", "is missing"),
      Invalid(kChat, Messages(R"([{"role":"user","content":"a"},{"role":"assistant"}])"),
              "messages[1].content", "needs content or tool_calls"),
      Invalid(kChat,
              Messages(R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"}])"),
              "messages[1]", "is an assistant message"),
      Invalid(kChat, Messages(R"([{"role":"tool","content":"a","tool_call_id":"x"}])"),
              "messages[0].tool_call_id", "names no call"),
      Invalid(kChat, Messages(R"([{"role":"tool","content":"a"}])"), "messages[0].tool_call_id",
              "is missing"),
      Invalid(kChat,
              Messages(R"([{"role":"assistant","tool_calls":[{"id":"c","function":)"
                       R"({"name":"f","arguments":"[1"}}]}])"),
              "messages[0].tool_calls[0].function.arguments", "is not the text of a JSON object"),
      Invalid(kChat,
              Messages(R"([{"role":"assistant","tool_calls":[{"id":"c","function":)"
                       R"({"name":"f g"}}]}])"),
              "messages[0].tool_calls[0].function.name", "1 to 64 characters"),
  };
}

std::vector<Case> UnsupportedCases() {
  return {
      Unsupported(kChat,
                  Chat(R"("tools":[{"type":"function","function":{"name":"f","strict":true}}])"),
                  "tools[0].function.strict"),
      Unsupported(kChat, Chat(R"("response_format":{"type":"json_object"})"), "response_format"),
      Unsupported(kChat, Chat(R"("guided_regex":"a+")"), "guided_regex"),
      Unsupported(kChat, Chat(R"("structured_outputs":{"choice":["a"]})"), "structured_outputs"),
      Unsupported(kChat, Chat(R"("chat_template":"{{x}}")"), "chat_template"),
      Unsupported(kChat, Chat(R"("use_beam_search":true)"), "use_beam_search"),
      Unsupported(kChat, Chat(R"("chat_template_kwargs":{"custom":1})"),
                  "chat_template_kwargs.custom", "thinking, enable_thinking"),
      Unsupported(kText, Text(R"("suffix":"x")"), "suffix"),
  };
}

std::vector<Case> OtherCases() {
  std::string deep = Chat("\"user\":" + std::string(70, '[') + std::string(70, ']'));
  return {
      Json("", "the text ends inside a value"),
      Json("{\"messages\":", "at byte 12"),
      Json("[1]", "the body must be a JSON object"),
      Json(Chat(R"("seed":1,"seed":2)"), "($.seed): duplicate key"),
      Json(Chat(R"("temperature":NaN)"), "($.temperature): syntax error"),
      Json(Chat(R"("temperature":1e400)"), "number beyond the range of a double"),
      Json(Chat("\"user\":\"\xff\""), "invalid UTF-8"),
      Json(std::move(deep), "nesting deeper than 64"),
      Json(Chat("\"x\":1}{"), "text after the end of the value"),
      {kChat, Chat(R"("model":"other")"), 404, "model_not_found", "model", "\"other\""},
      {kText, Text(R"("model":"other")"), 404, "model_not_found", "model", "\"other\""},
      {kText, Text(R"("max_tokens":4096)"), 400, "context_length_exceeded", "prompt",
       "maximum context length is 4096 tokens"},
  };
}

}  // namespace

std::vector<MalformedCase> MalformedCases() {
  std::vector<MalformedCase> all;
  for (const auto& some : {NumberCases(), TypeCases(), ToolCases(), SpeculationCases(),
                           MessageCases(), UnsupportedCases(), OtherCases()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace skein::tests
