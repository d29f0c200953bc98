// The V4.1 chat encoding: messages, tools and thinking mode to prompt tokens.
// Owns: the special ids it places and the fixed wording of the model directory.
// Thread: const after Create; Render may run on many threads.
// Must never: tokenise text of users or tools with special tokens on.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/text/tokenizer.h"

namespace skein::coordinator {

enum class ChatRole { kSystem, kUser, kAssistant, kTool, kLatestReminder };
enum class ThinkingMode { kEnabled, kDisabled };

// A call of an assistant message. `arguments` is the JSON object text of the client.
struct ChatToolCall {
  std::string id;
  std::string name;
  std::string arguments;
  // The call as the model wrote it, cut where the DSML token stood; empty: not known, the call is
  // rendered from its arguments.
  std::vector<std::string> original = {};
};

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string content;
  std::string reasoning_content;         // assistant
  std::vector<ChatToolCall> tool_calls;  // assistant
  std::string tool_call_id;              // tool
};

struct ChatConversation {
  std::vector<ChatMessage> messages;
  ThinkingMode thinking = ThinkingMode::kEnabled;
  int32_t reasoning_effort = 75;          // 1..100; used when thinking
  std::vector<std::string> tool_schemas;  // one line of JSON each: the function objects
  std::string response_schema;            // JSON schema of the answer; empty: none
};

struct ChatPrompt {
  std::vector<int32_t> ids;
  bool starts_in_reasoning = false;  // the header ends with <think>
};

// Ids that only the encoder places.
struct ChatSpecialIds {
  int32_t bos = -1, eos = -1, system = -1, user = -1, assistant = -1, think = -1, end_think = -1,
          dsml = -1, latest_reminder = -1;
};

class ChatTemplate {
 public:
  static constexpr size_t kResourceBytesMax = 64 * 1024;

  // `tokenizer` outlives the template. `resource` is the text of encoding_resource.json; empty
  // when the model directory has none. InvalidArgument for an unknown template or hole,
  // Unimplemented for another generation than v4.1.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Create(const Tokenizer& tokenizer,
                                                              std::string_view resource);
  // Reads tokenizer-independent wording from `model_dir`/encoding_resource.json if it exists.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Load(const Tokenizer& tokenizer,
                                                            const std::string& model_dir);

  // Encodes the conversation and the header of the answer. InvalidArgument names the message;
  // Unimplemented when wording is needed that the model directory lacks.
  absl::StatusOr<ChatPrompt> Render(const ChatConversation& conversation) const;

  int32_t bos_id() const { return special_.bos; }
  int32_t eos_id() const { return special_.eos; }
  int32_t think_id() const { return special_.think; }
  int32_t end_think_id() const { return special_.end_think; }
  int32_t dsml_id() const { return special_.dsml; }

 private:
  // Wording of the resource; nullopt when it has none of that name.
  struct Wording {
    std::optional<std::string> tools, response_format, effort;
  };

  explicit ChatTemplate(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  absl::Status FindSpecialIds();
  absl::Status ReadResource(std::string_view resource);

  const Tokenizer& tokenizer_;
  ChatSpecialIds special_;
  Wording wording_;
};

}  // namespace skein::coordinator
