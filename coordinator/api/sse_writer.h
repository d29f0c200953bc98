// The events of one streamed answer.
// Owns: the parts that every chunk repeats.
// Thread: one object is used by one thread.
// Must never: write an event that is not one JSON value or [DONE].
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/api/answer_format.h"
#include "coordinator/api/api_error.h"

namespace skein::coordinator {

class SseWriter {
 public:
  // Whether chunks carry usage: not at all, as null, or the usage so far.
  enum class ChunkUsage { kNone, kNull, kSoFar };

  SseWriter(const AnswerIdentity& identity, ChunkUsage usage);

  // The opening chunk of a chat choice; with reasoning or calls first its content is null.
  // `prompt_ids`: to be shown, if wanted.
  enum class Opens { kContent, kReasoning };
  std::string First(size_t index, Opens opens, const Usage& usage,
                    const std::optional<std::vector<int32_t>>& prompt_ids = std::nullopt) const;
  // Text of a choice that became certain.
  std::string Delta(size_t index, const ChoicePiece& piece, const Usage& usage) const;
  // The closing chunk of a choice.
  std::string Last(size_t index, const ChoiceEnd& end, const Usage& usage) const;
  // The chunk that include_usage asks for.
  std::string UsageChunk(const Usage& usage) const;

  // "data: [DONE]\n\n".
  static std::string Done();
  // The event that ends a failed stream.
  static std::string Error(const ApiError& error, const Usage& usage);

 private:
  std::string Event(std::string_view choices, std::string_view usage) const;
  std::string Chunk(std::string_view choice, const Usage& usage) const;

  const RequestForm form_;
  const bool names_reasoning_;
  const ChunkUsage usage_;
  std::string head_;  // {"id":...,"system_fingerprint":"..."
};

}  // namespace skein::coordinator
