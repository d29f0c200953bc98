// Answers in the Anthropic form: the message object, the events of its stream, its errors.
// Owns: the open content block of a stream.
// Thread: one object is used by one thread.
// Must never: open a block inside another.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "coordinator/api/answer_writer.h"

namespace skein::coordinator {

class MessagesWriter final : public AnswerWriter {
 public:
  explicit MessagesWriter(const AnswerIdentity& identity) : identity_(identity) {}

  // Nothing yet: message_start says how much of the prompt was cached, which the first step tells.
  std::string First(size_t, bool, const Usage&,
                    const std::optional<std::vector<int32_t>>&) override {
    return {};
  }
  std::string Delta(size_t index, const ChoicePiece& piece, const Usage& usage) override;
  std::string Last(size_t index, const ChoiceEnd& end, const Usage& usage) override;
  std::string Done(const Usage& usage) override;
  std::string Error(const ApiError& error, const Usage& usage) override;
  std::string Whole(std::span<const ChoiceAnswer> choices, const Usage& usage) override;
  protocol::HttpResponse Refusal(const ApiError& error, int retry_after_s) override;

 private:
  enum class Block { kNone, kThinking, kText, kToolUse };

  void Start(const Usage& usage, std::string* events);
  void OpenBlock(Block block, std::string_view content, std::string* events);
  void CloseBlock(std::string* events);
  void DeltaOf(std::string_view type, std::string_view member, std::string_view text,
               std::string* events) const;
  std::string Signature() const;

  const AnswerIdentity identity_;
  bool has_started_ = false;
  Block block_ = Block::kNone;
  size_t num_blocks_ = 0;
};

// {"type":"error","error":{...}}, with the type of the Anthropic table.
std::string MessagesErrorBody(const ApiError& error);
// The whole refusal; what the OpenAI forms refuse with 503 has status 529.
protocol::HttpResponse MessagesErrorResponse(const ApiError& error, int retry_after_s);

}  // namespace skein::coordinator
