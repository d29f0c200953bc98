// How an answer is written for a client: whole, as the events of a stream, or as an error.
// Owns: nothing here; writers keep what every event repeats.
// Thread: one object is used by one thread.
// Must never: end a stream in two ways.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/api/answer_format.h"
#include "coordinator/api/api_error.h"
#include "coordinator/api/generation_params.h"
#include "protocol/http/http_message.h"

namespace skein::coordinator {

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // Opens a choice of a stream, at acceptance.
  virtual std::string First(size_t index, bool reasons, const Usage& usage,
                            const std::optional<std::vector<int32_t>>& prompt_ids) = 0;
  // Text of a choice that became certain.
  virtual std::string Delta(size_t index, const ChoicePiece& piece, const Usage& usage) = 0;
  // Closes a choice.
  virtual std::string Last(size_t index, const ChoiceEnd& end, const Usage& usage) = 0;
  // Ends the stream behind all choices.
  virtual std::string Done(const Usage& usage) = 0;
  // Ends it with an error instead.
  virtual std::string Error(const ApiError& error, const Usage& usage) = 0;

  virtual std::string Whole(std::span<const ChoiceAnswer> choices, const Usage& usage) = 0;
  virtual protocol::HttpResponse Refusal(const ApiError& error, int retry_after_s) = 0;
};

// The writer of an answer's form.
std::unique_ptr<AnswerWriter> MakeAnswerWriter(const AnswerIdentity& identity,
                                               const GenerationParams& params);

}  // namespace skein::coordinator
