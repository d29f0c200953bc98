// Handwritten transcripts and a generator with a fixed seed.
#include "tests/coordinator/tool_transcripts.h"

#include <random>

namespace skein::tests {
namespace {

const std::string kD = std::string(kTranscriptMark);

std::string Parameter(const std::string& name, const char* is_string, const std::string& value) {
  return "<" + kD + " parameter name=\"" + name + "\" string=\"" + is_string + "\">" + value +
         "</" + kD + " parameter>";
}
std::string Invoke(const std::string& name, const std::string& parameters) {
  return "<" + kD + " invoke name=\"" + name + "\">\n" + parameters + "\n</" + kD + " invoke>";
}
std::string Block(const std::string& calls) {
  return "\n\n<" + kD + " calls>\n" + calls + "\n</" + kD + " calls>";
}

std::vector<Transcript> ByHand() {
  const std::string weather = Invoke("get_weather", Parameter("location", "true", "Paris"));
  const std::string note = Invoke("note", "");
  return {
      {"plain", "Hanoi is the capital of Vietnam."},
      {"one_call", Block(weather)},
      {"text_then_call", "I look it up." + Block(weather)},
      {"two_calls",
       Block(weather + "\n" +
             Invoke("calculator", Parameter("expression", "true", "1 < 2 </b> \"q\"")))},
      {"no_parameters", Block(note)},
      {"json_value", Block(Invoke("note", Parameter("x", "false", "{\"a\": [1.50, null]}")))},
      {"broken_json_value", Block(Invoke("note", Parameter("x", "false", "{\"a\": ")))},
      {"unicode",
       Block(Invoke("get_weather", Parameter("location", "true", "Hà Nội 🏛️\n\\\"")))},
      {"no_wrapper", weather},
      {"no_wrapper_after_text", "Sure: " + weather + " that was it"},
      {"no_blank_line", "Sure.\n<" + kD + " calls>\n" + weather + "\n</" + kD + " calls>"},
      {"three_newlines", "Sure.\n" + Block(weather)},
      {"no_wrapper_undeclared", Invoke("rm", Parameter("path", "true", "/"))},
      {"no_wrapper_required_missing", Invoke("get_weather", Parameter("city", "true", "Paris"))},
      {"no_wrapper_unclosed", "a " + weather.substr(0, weather.size() - 3)},
      {"undeclared_in_block", "a" + Block(Invoke("rm", ""))},
      {"undeclared_after_call", Block(weather + "\n" + Invoke("rm", ""))},
      {"duplicate_parameter",
       Block(Invoke("note", Parameter("x", "true", "1") + "\n" + Parameter("x", "true", "2")))},
      {"prose_tag", "Write <" + kD + " calls to call, <" + kD + "> or " + kD + " alone."},
      {"prose_without_token", "Use <invoke name=\"get_weather\"> and </invoke>.\n\n<b>x</b>\n\n<"},
      {"token_in_value", Block(Invoke("note", Parameter("x", "true", "a" + kD + "b")))},
      {"open_tag_in_value", Block(Invoke("note", Parameter("x", "true", "a<" + kD + " invoke")))},
      {"block_in_broken_value",
       Block(Invoke("note", Parameter("x", "true", "a" + Block(weather))))},
      {"empty_block", "a" + Block("")},
      {"garbage_in_block", Block("hm " + weather)},
      {"broken_tag_then_block", "<" + kD + " foo" + Block(weather)},
      {"broken_tag_then_call", "<" + kD + " inv<" + kD + weather.substr(1 + kD.size())},
      {"after_block", Block(weather) + "\nignored"},
      {"quote_in_tag", Block(Invoke("note", Parameter("a>b", "true", "x")))},
      {"newlines_only", "\n\n\n"},
      {"angle", "a <b> << \n< \n\n<c\n\n"},
  };
}

using Random = std::mt19937;

const std::string& Pick(const std::vector<std::string>& list, Random* random) {
  return list[(*random)() % list.size()];
}

std::string Text(Random* random) {
  static const std::vector<std::string> kPieces = {
      "word ", "\n", "\n\n", "<", "</", ">", "é", "🏛️", "\"", "\\", " calls>", "\t"};
  std::string text;
  for (size_t i = (*random)() % 7; i > 0; --i) text += Pick(kPieces, random);
  return text;
}

std::string Call(Random* random) {
  static const std::vector<std::string> kNames = {"get_weather", "calculator", "note", "note",
                                                  "unknown"};
  static const std::vector<std::string> kKeys = {"location", "expression", "x", "y"};
  static const std::vector<std::string> kValues = {"1.50", "[1, {\"a\":\"b\"}]", "true", "{\"a\"",
                                                   "nul"};
  std::string parameters;
  for (size_t i = (*random)() % 4; i > 0; --i) {
    if (!parameters.empty()) parameters += "\n";
    const bool is_json = (*random)() % 2 == 0;
    parameters += Parameter(Pick(kKeys, random), is_json ? "false" : "true",
                            is_json ? Pick(kValues, random) : Text(random));
  }
  return Invoke(Pick(kNames, random), parameters);
}

// Whole answers; each second one is then cut, or loses or gains a piece.
std::string Generated(Random* random) {
  std::string calls;
  for (size_t i = 1 + (*random)() % 3; i > 0; --i) {
    if (!calls.empty()) calls += "\n";
    calls += Call(random);
  }
  std::string text = Text(random);
  text += (*random)() % 4 == 0 ? calls : Block(calls);
  switch ((*random)() % 6) {
    case 0:  // cut by length; never inside the mark or a character
      for (size_t end = (*random)() % text.size(); end > 0; --end) {
        if (text[end] == '<' || text[end] == '>') return text.substr(0, end);
      }
      return text;
    case 1: {  // a piece is lost
      const size_t at = text.find('<', (*random)() % text.size());
      if (at != std::string::npos) text.erase(at, 1);
      return text;
    }
    case 2: {  // a token too many
      const size_t at = text.find('>', (*random)() % text.size());
      if (at != std::string::npos) text.insert(at, kD);
      return text;
    }
    default:
      return text;
  }
}

}  // namespace

std::vector<coordinator::DeclaredTool> TranscriptTools() {
  return {{"get_weather", {"location"}}, {"calculator", {"expression"}}, {"note", {}}};
}

std::vector<Transcript> Transcripts() {
  std::vector<Transcript> list = ByHand();
  Random random(41);
  while (list.size() < 220) {
    list.push_back({"generated_" + std::to_string(list.size()), Generated(&random)});
  }
  return list;
}

}  // namespace skein::tests
