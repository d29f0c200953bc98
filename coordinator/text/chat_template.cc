// The V4.1 chat encoding.
// Thread: const after Create.
// Must never: tokenise text of users or tools with special tokens on.
#include "coordinator/text/chat_template.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <utility>

#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"
#include "protocol/json/json.h"

namespace skein::coordinator {
namespace {

using protocol::Concat;

constexpr std::string_view kResourceFile = "encoding_resource.json";
constexpr std::string_view kBlankLine = "\n\n";
// Used when the resource has no wording of its own; the line is part of the model's definition.
constexpr std::string_view kEffortLine =
    "Reasoning Effort: {effort} (range 1-100, the higher the value, the more thorough the "
    "reasoning)\n\n";

struct KnownTemplate {
  std::string_view name;
  std::string_view hole;
};
constexpr std::array<KnownTemplate, 3> kKnownTemplates = {{
    {"tools", "{tool_schemas}"},
    {"response_format", "{schema}"},
    {"effort", "{effort}"},
}};

// The next `{name}` hole at or after `from`; empty when there is none.
std::string_view NextHole(std::string_view text, size_t from) {
  for (size_t open = text.find('{', from); open != std::string_view::npos;
       open = text.find('{', open + 1)) {
    const size_t close = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz_", open + 1);
    if (close != std::string_view::npos && close > open + 1 && text[close] == '}') {
      return text.substr(open, close + 1 - open);
    }
  }
  return {};
}

absl::Status CheckTemplate(const KnownTemplate& known, std::string_view text) {
  int num_holes = 0;
  size_t from = 0;
  while (true) {
    const std::string_view hole = NextHole(text, from);
    if (hole.empty()) break;
    if (hole != known.hole) {
      return absl::InvalidArgumentError(Concat(kResourceFile, ": template ", known.name,
                                               " has the unknown hole ", hole,
                                               "; known: ", known.hole));
    }
    ++num_holes;
    from = static_cast<size_t>(hole.data() - text.data()) + hole.size();
  }
  if (num_holes == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(Concat(kResourceFile, ": template ", known.name, " has ",
                                           num_holes, " holes; expected one ", known.hole));
}

// One piece of a prompt between two headers: a merged user turn, one assistant message, ...
struct Turn {
  ChatRole role = ChatRole::kUser;
  std::vector<std::string> blocks;         // joined by a blank line
  const ChatMessage* assistant = nullptr;  // for kAssistant
};

absl::Status MessageError(size_t index, std::string_view what) {
  return absl::InvalidArgumentError(Concat("messages[", index, "]", what));
}

// Appends a run of user and tool messages that starts at `index` as one turn; returns its end.
absl::StatusOr<size_t> MergeUserTurn(const std::vector<ChatMessage>& messages, size_t index,
                                     const ChatMessage* calls, std::vector<Turn>* turns) {
  struct Result {
    size_t call_index;
    std::string text;
  };
  Turn turn;
  std::vector<size_t> places;
  std::vector<Result> results;
  for (; index < messages.size(); ++index) {
    const ChatMessage& message = messages[index];
    if (message.role == ChatRole::kUser) {
      turn.blocks.push_back(message.content);
    } else if (message.role == ChatRole::kTool) {
      size_t call = 0;
      const size_t num_calls = calls == nullptr ? 0 : calls->tool_calls.size();
      while (call < num_calls && calls->tool_calls[call].id != message.tool_call_id) ++call;
      if (call == num_calls) {
        return MessageError(index, ".tool_call_id names no call of the assistant message before");
      }
      places.push_back(turn.blocks.size());
      turn.blocks.emplace_back();
      results.push_back({call, "<tool_result>" + message.content + "</tool_result>"});
    } else {
      break;
    }
  }
  std::stable_sort(results.begin(), results.end(),
                   [](const Result& a, const Result& b) { return a.call_index < b.call_index; });
  for (size_t i = 0; i < places.size(); ++i) turn.blocks[places[i]] = std::move(results[i].text);
  turns->push_back(std::move(turn));
  return index;
}

// The turns after the leading system message.
absl::StatusOr<std::vector<Turn>> MakeTurns(const std::vector<ChatMessage>& messages) {
  std::vector<Turn> turns;
  const ChatMessage* calls = nullptr;
  const bool leading_system = !messages.empty() && messages[0].role == ChatRole::kSystem;
  for (size_t index = leading_system ? 1 : 0; index < messages.size();) {
    const ChatMessage& message = messages[index];
    if (message.role == ChatRole::kUser || message.role == ChatRole::kTool) {
      SKEIN_ASSIGN_OR_RETURN(index, MergeUserTurn(messages, index, calls, &turns));
      continue;
    }
    Turn turn{message.role, {}, nullptr};
    if (message.role == ChatRole::kAssistant) {
      turn.assistant = calls = &message;
    } else {
      turn.blocks.push_back(message.content);
    }
    turns.push_back(std::move(turn));
    ++index;
  }
  if (turns.empty() || turns.back().role == ChatRole::kAssistant) {
    return absl::InvalidArgumentError(
        "messages must end with a user, tool or system message for the assistant to answer");
  }
  return turns;
}

bool IsAnswered(ChatRole role) { return role == ChatRole::kUser || role == ChatRole::kSystem; }

std::string JoinBlocks(const std::vector<std::string>& blocks) {
  std::string text;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (i > 0) text += kBlankLine;
    text += blocks[i];
  }
  return text;
}

}  // namespace

// Collects ids; plain text that meets is tokenised as one piece.
class PromptBuilder {
 public:
  PromptBuilder(const Tokenizer& tokenizer, const ChatSpecialIds& special)
      : tokenizer_(tokenizer), special_(special) {}

  void Text(std::string_view text) { pending_ += text; }

  void Special(int32_t id) {
    Flush();
    ids_.push_back(id);
  }

  // Wording of the model directory, whose DSML marks are special, with its hole filled by text
  // that is not.
  void Wording(std::string_view wording, std::string_view filling) {
    const std::string_view hole = NextHole(wording, 0);
    const size_t begin = static_cast<size_t>(hole.data() - wording.data());
    Trusted(wording.substr(0, begin));
    Text(filling);
    Trusted(wording.substr(begin + hole.size()));
  }

  void Calls(const std::vector<ChatToolCall>& calls) {
    Text(kBlankLine);
    OpenTag(" calls>\n");
    for (size_t i = 0; i < calls.size(); ++i) {
      if (i > 0) Text("\n");
      Call(calls[i]);
    }
    Text("\n");
    CloseTag(" calls>");
  }

  // All turns. Reasoning before the last user turn is dropped unless `keep_reasoning`.
  void Turns(const std::vector<Turn>& turns, bool thinking, bool keep_reasoning) {
    size_t last_answered = 0;
    for (size_t i = 0; i < turns.size(); ++i) {
      if (IsAnswered(turns[i].role)) last_answered = i;
    }
    for (size_t i = 0; i < turns.size(); ++i) {
      if (turns[i].role == ChatRole::kAssistant) {
        Answer(*turns[i].assistant, thinking && (keep_reasoning || i > last_answered));
      } else {
        Special(MarkOf(turns[i].role));
        Text(JoinBlocks(turns[i].blocks));
      }
    }
    Special(special_.assistant);
    Special(thinking ? special_.think : special_.end_think);
  }

  absl::StatusOr<std::vector<int32_t>> Take() {
    Flush();
    if (!status_.ok()) return status_;
    return std::move(ids_);
  }

 private:
  int32_t MarkOf(ChatRole role) const {
    if (role == ChatRole::kSystem) return special_.system;
    if (role == ChatRole::kLatestReminder) return special_.latest_reminder;
    return special_.user;
  }

  void Answer(const ChatMessage& message, bool with_reasoning) {
    Special(special_.assistant);
    if (with_reasoning) {
      Special(special_.think);
      Text(message.reasoning_content);
    }
    Special(special_.end_think);
    Text(message.content);
    if (!message.tool_calls.empty()) Calls(message.tool_calls);
    Special(special_.eos);
  }

  void OpenTag(std::string_view rest) { Tag("<", rest); }
  void CloseTag(std::string_view rest) { Tag("</", rest); }
  void Tag(std::string_view open, std::string_view rest) {
    Text(open);
    Special(special_.dsml);
    Text(rest);
  }

  void Call(const ChatToolCall& call) {
    if (!call.original.empty()) return Original(call.original);
    OpenTag(Concat(" invoke name=\"", call.name, "\">\n"));
    const std::string_view arguments =
        call.arguments.empty() ? std::string_view("{}") : std::string_view(call.arguments);
    const auto members = protocol::ParseRawMembers(arguments);
    if (!members.ok()) {
      if (status_.ok()) {
        status_ = absl::InvalidArgumentError(Concat("arguments of the call to ", call.name, ": ",
                                                    protocol::StatusText(members.status())));
      }
      return;
    }
    for (size_t i = 0; i < members->size(); ++i) {
      const protocol::RawJsonMember& member = (*members)[i];
      if (i > 0) Text("\n");
      OpenTag(Concat(" parameter name=\"", member.key, "\" string=\"",
                     member.is_string ? "true" : "false", "\">"));
      Text(member.is_string ? std::string_view(member.text) : member.raw);
      CloseTag(" parameter>");
    }
    Text("\n");
    CloseTag(" invoke>");
  }

  void Original(const std::vector<std::string>& pieces) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (i > 0) Special(special_.dsml);
      Text(pieces[i]);
    }
  }

  void Trusted(std::string_view text) {
    const std::string_view mark = tokenizer_.TokenBytes(special_.dsml);
    for (size_t at = text.find(mark); at != std::string_view::npos; at = text.find(mark)) {
      Text(text.substr(0, at));
      Special(special_.dsml);
      text.remove_prefix(at + mark.size());
    }
    Text(text);
  }

  void Flush() {
    if (pending_.empty()) return;
    const auto ids = tokenizer_.Encode(pending_, SpecialTokens::kPlain);
    pending_.clear();
    if (ids.ok()) {
      ids_.insert(ids_.end(), ids->begin(), ids->end());
    } else if (status_.ok()) {
      status_ = ids.status();
    }
  }

  const Tokenizer& tokenizer_;
  const ChatSpecialIds& special_;
  std::string pending_;
  std::vector<int32_t> ids_;
  absl::Status status_;
};

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Create(const Tokenizer& tokenizer,
                                                                   std::string_view resource) {
  std::unique_ptr<ChatTemplate> chat(new ChatTemplate(tokenizer));
  SKEIN_RETURN_IF_ERROR(chat->FindSpecialIds());
  if (!resource.empty()) SKEIN_RETURN_IF_ERROR(chat->ReadResource(resource));
  return chat;
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Load(const Tokenizer& tokenizer,
                                                                 const std::string& model_dir) {
  std::ifstream file(Concat(model_dir, "/", kResourceFile), std::ios::binary);
  std::string text;
  if (file) {
    text.resize(kResourceBytesMax + 1);
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(file.gcount()));
    if (text.empty()) {
      return absl::InvalidArgumentError(Concat(model_dir, "/", kResourceFile, " is empty"));
    }
  }
  return Create(tokenizer, text);
}

absl::Status ChatTemplate::FindSpecialIds() {
  struct Wanted {
    std::string_view text;
    int32_t* id;
  };
  const std::array<Wanted, 9> wanted = {{
      {"<｜begin▁of▁sentence｜>", &special_.bos},
      {"<｜end▁of▁sentence｜>", &special_.eos},
      {"<｜System｜>", &special_.system},
      {"<｜User｜>", &special_.user},
      {"<｜Assistant｜>", &special_.assistant},
      {"<think>", &special_.think},
      {"</think>", &special_.end_think},
      {"｜DSML｜", &special_.dsml},
      {"<｜latest_reminder｜>", &special_.latest_reminder},
  }};
  for (const Wanted& token : wanted) {
    const std::optional<int32_t> id = tokenizer_.FindSpecial(token.text);
    if (!id.has_value()) {
      return absl::InvalidArgumentError(Concat("tokenizer.json has no added token ", token.text,
                                               ", which the v4.1 chat encoding needs"));
    }
    *token.id = *id;
  }
  return absl::OkStatus();
}

absl::Status ChatTemplate::ReadResource(std::string_view resource) {
  const auto parsed = protocol::ParseJson(resource, {.bytes_max = kResourceBytesMax});
  if (!parsed.ok()) {
    return absl::Status(parsed.status().code(),
                        Concat(kResourceFile, ": ", protocol::StatusText(parsed.status())));
  }
  const std::string path(kResourceFile);
  SKEIN_ASSIGN_OR_RETURN(const auto* format, parsed->Require("format", path));
  SKEIN_RETURN_IF_ERROR(format->AsInt64(path + ": format", 1, 1).status());
  SKEIN_ASSIGN_OR_RETURN(const auto* generation, parsed->Require("generation", path));
  if (generation->string() != "v4.1") {
    return absl::UnimplementedError(
        Concat(path, ": generation is ", generation->Describe(), "; supported: v4.1"));
  }
  SKEIN_ASSIGN_OR_RETURN(const auto* templates, parsed->Require("templates", path));
  SKEIN_ASSIGN_OR_RETURN(const auto members, templates->AsObject(path + ": templates"));
  const std::array targets = {&wording_.tools, &wording_.response_format, &wording_.effort};
  for (const protocol::JsonMember& member : members) {
    size_t known = 0;
    while (known < kKnownTemplates.size() && kKnownTemplates[known].name != member.key) ++known;
    if (known == kKnownTemplates.size()) {
      return absl::InvalidArgumentError(Concat(path, ": unknown template ",
                                               protocol::JsonValue(member.key).Describe(),
                                               "; known: tools, response_format, effort"));
    }
    SKEIN_ASSIGN_OR_RETURN(const std::string_view text,
                           member.value.AsString(path + ": templates." + member.key));
    SKEIN_RETURN_IF_ERROR(CheckTemplate(kKnownTemplates[known], text));
    *targets[known] = std::string(text);
  }
  return absl::OkStatus();
}

namespace {

absl::Status MissingWording(std::string_view name) {
  return absl::UnimplementedError(Concat("the model directory has no template \"", name, "\" in ",
                                         kResourceFile, ", which this request needs"));
}

}  // namespace

absl::StatusOr<ChatPrompt> ChatTemplate::Render(const ChatConversation& conversation) const {
  const bool thinking = conversation.thinking == ThinkingMode::kEnabled;
  const bool has_tools = !conversation.tool_schemas.empty();
  const bool has_schema = !conversation.response_schema.empty();
  if (has_tools && !wording_.tools.has_value()) return MissingWording("tools");
  if (has_schema && !wording_.response_format.has_value()) {
    return MissingWording("response_format");
  }
  SKEIN_ASSIGN_OR_RETURN(const std::vector<Turn> turns, MakeTurns(conversation.messages));
  const bool leading_system = conversation.messages[0].role == ChatRole::kSystem;

  PromptBuilder prompt(tokenizer_, special_);
  prompt.Special(special_.bos);
  if (leading_system || thinking || has_tools || has_schema) prompt.Special(special_.system);
  if (thinking) {
    prompt.Wording(wording_.effort.has_value() ? std::string_view(*wording_.effort) : kEffortLine,
                   std::to_string(conversation.reasoning_effort));
  }
  bool needs_blank_line = leading_system && !conversation.messages[0].content.empty();
  if (leading_system) prompt.Text(conversation.messages[0].content);
  if (has_tools) {
    if (needs_blank_line) prompt.Text(kBlankLine);
    std::string lines;
    for (const std::string& schema : conversation.tool_schemas) {
      if (!lines.empty()) lines += "\n";
      lines += schema;
    }
    prompt.Wording(*wording_.tools, lines);
    needs_blank_line = true;
  }
  if (has_schema) {
    if (needs_blank_line) prompt.Text(kBlankLine);
    prompt.Wording(*wording_.response_format, conversation.response_schema);
  }
  prompt.Turns(turns, thinking, has_tools);
  ChatPrompt result;
  result.starts_in_reasoning = thinking;
  SKEIN_ASSIGN_OR_RETURN(result.ids, prompt.Take());
  return result;
}

}  // namespace skein::coordinator
