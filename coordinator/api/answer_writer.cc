// Thread: one object is used by one thread.
// Must never: end a stream in two ways.
#include "coordinator/api/answer_writer.h"

#include "coordinator/api/messages_writer.h"
#include "coordinator/api/sse_writer.h"

namespace skein::coordinator {
namespace {

SseWriter::ChunkUsage UsageOf(const GenerationParams& params) {
  if (params.continuous_usage) return SseWriter::ChunkUsage::kSoFar;
  return params.include_usage ? SseWriter::ChunkUsage::kNull : SseWriter::ChunkUsage::kNone;
}

// The OpenAI forms.
class CompletionWriter final : public AnswerWriter {
 public:
  CompletionWriter(const AnswerIdentity& identity, const GenerationParams& params)
      : identity_(identity),
        includes_usage_(params.include_usage),
        sse_(identity, UsageOf(params)) {}

  std::string First(size_t index, bool reasons, const Usage& usage,
                    const std::optional<std::vector<int32_t>>& prompt_ids) override {
    if (identity_.form == RequestForm::kCompletion) return {};
    const auto opens = reasons ? SseWriter::Opens::kReasoning : SseWriter::Opens::kContent;
    return sse_.First(index, opens, usage, prompt_ids);
  }
  std::string Delta(size_t index, const ChoicePiece& piece, const Usage& usage) override {
    return sse_.Delta(index, piece, usage);
  }
  std::string Last(size_t index, const ChoiceEnd& end, const Usage& usage) override {
    return sse_.Last(index, end, usage);
  }
  std::string Done(const Usage& usage) override {
    return (includes_usage_ ? sse_.UsageChunk(usage) : std::string()) + SseWriter::Done();
  }
  std::string Error(const ApiError& error, const Usage& usage) override {
    return SseWriter::Error(error, usage);
  }
  std::string Whole(std::span<const ChoiceAnswer> choices, const Usage& usage) override {
    return AnswerJson(identity_, choices, usage);
  }
  protocol::HttpResponse Refusal(const ApiError& error, int retry_after_s) override {
    return ErrorResponse(error, retry_after_s);
  }

 private:
  const AnswerIdentity identity_;
  const bool includes_usage_;
  const SseWriter sse_;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeAnswerWriter(const AnswerIdentity& identity,
                                               const GenerationParams& params) {
  if (identity.form == RequestForm::kMessages) return std::make_unique<MessagesWriter>(identity);
  return std::make_unique<CompletionWriter>(identity, params);
}

}  // namespace skein::coordinator
