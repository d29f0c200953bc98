// Thread: one object is used by one thread.
// Must never: be shown before it is complete.
#include "coordinator/api/prompt_logprobs.h"

#include <algorithm>
#include <optional>

#include "protocol/base/log.h"
#include "protocol/json/json_writer.h"

namespace skein::coordinator {
namespace {

using protocol::JsonWriter;

// One member: a token by its id.
void WriteEntry(const Tokenizer& tokenizer, int32_t id, float logprob, std::optional<size_t> rank,
                JsonWriter* writer) {
  writer->Key(std::to_string(id));
  writer->BeginObject();
  writer->Key("logprob");
  writer->Raw(FormatLogprob(logprob));
  writer->Key("rank");
  rank.has_value() ? writer->Uint(*rank) : writer->Null();
  writer->Key("decoded_token");
  writer->String(tokenizer.TokenBytes(id));
  writer->EndObject();
}

}  // namespace

void PromptLogprobs::Append(std::span<const protocol::TokenScore> scores) {
  SKEIN_CHECK(scores_.size() + scores.size() < setup_.ids.size()) << "more scores than tokens";
  scores_.insert(scores_.end(), scores.begin(), scores.end());
}

std::string PromptLogprobs::Json(int32_t num_top) const {
  std::string out;
  JsonWriter writer(&out);
  writer.BeginArray();
  writer.Null();
  for (size_t i = 0; i < scores_.size(); ++i) {
    const protocol::TokenScore& score = scores_[i];
    const int32_t id = setup_.ids[i + 1];
    const size_t count = std::min(score.top.size(), static_cast<size_t>(num_top));
    const auto top = std::span(score.top).first(count);
    const auto own = std::find_if(top.begin(), top.end(), [&](const protocol::TopLogprob& entry) {
      return entry.token == id;
    });
    writer.BeginObject();
    if (own == top.end()) WriteEntry(tokenizer_, id, score.logprob, std::nullopt, &writer);
    for (size_t k = 0; k < count; ++k) {
      WriteEntry(tokenizer_, top[k].token, top[k].logprob, k + 1, &writer);
    }
    writer.EndObject();
  }
  writer.EndArray();
  return out;
}

void PromptLogprobs::AppendTo(LogprobList* list) const {
  list->AppendFirst(setup_.ids.front(),
                    setup_.begins_hidden ? LogprobList::Shown::kNo : LogprobList::Shown::kYes);
  for (size_t i = 0; i < scores_.size(); ++i) {
    list->Append({setup_.ids[i + 1], scores_[i].logprob, scores_[i].top});
  }
}

}  // namespace skein::coordinator
