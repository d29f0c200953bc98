#include "protocol/codec/scores_codec.h"

#include "protocol/base/status_macros.h"
#include "protocol/codec/codec.h"
#include "protocol/codec/list_limits.h"

namespace skein::protocol {

absl::Status CheckTop(const std::vector<TopLogprob>& top, std::string_view field) {
  return top.size() > kTopLogprobsMax ? TooLarge(field, top.size(), kTopLogprobsMax)
                                      : absl::OkStatus();
}

absl::Status ReadTop(capnp::List<wire::TopLogprob>::Reader in, std::string_view field,
                     std::vector<TopLogprob>& out) {
  SKEIN_RETURN_IF_ERROR(CheckSize(in, field, kTopLogprobsMax));
  out.reserve(in.size());
  for (const auto entry : in) out.push_back({entry.getToken(), entry.getLogprob()});
  return absl::OkStatus();
}

absl::Status WriteScoring(const PromptScoring& in, wire::SequenceStep::Builder out) {
  if (in.count == 0) return absl::OkStatus();
  if (in.count > kStepScoresMax) {
    return TooLarge("SequenceStep.scoring", in.count, kStepScoresMax);
  }
  auto scoring = out.initScoring();
  scoring.setFrom(in.from);
  scoring.setCount(in.count);
  scoring.setNextToken(in.next_token);
  scoring.setNumTopLogprobs(in.num_top_logprobs);
  return absl::OkStatus();
}

absl::Status ReadScoring(wire::SequenceStep::Reader in, PromptScoring& out) {
  const auto scoring = in.getScoring();
  out.from = scoring.getFrom();
  out.count = scoring.getCount();
  out.next_token = scoring.getNextToken();
  out.num_top_logprobs = scoring.getNumTopLogprobs();
  if (out.count > kStepScoresMax) {
    return Malformed("SequenceStep.scoring", Concat(out.count, " rows; at most ", kStepScoresMax));
  }
  if (out.num_top_logprobs < 0 || out.num_top_logprobs > static_cast<int32_t>(kTopLogprobsMax)) {
    return Malformed("SequenceStep.scoring",
                     Concat(out.num_top_logprobs, " alternatives; from 0 to ", kTopLogprobsMax));
  }
  return absl::OkStatus();
}

absl::Status WriteScores(const std::vector<TokenScore>& in,
                         wire::VerificationSummary::Builder out) {
  if (in.empty()) return absl::OkStatus();
  if (in.size() > kStepScoresMax) {
    return TooLarge("VerificationSummary.scores", in.size(), kStepScoresMax);
  }
  auto scores = out.initScores(static_cast<uint32_t>(in.size()));
  for (uint32_t i = 0; i < scores.size(); ++i) {
    SKEIN_RETURN_IF_ERROR(CheckTop(in[i].top, "TokenScore.top"));
    scores[i].setLogprob(in[i].logprob);
    WriteTop(in[i].top, scores[i]);
  }
  return absl::OkStatus();
}

absl::Status ReadScores(wire::VerificationSummary::Reader in, std::vector<TokenScore>& out) {
  const auto scores = in.getScores();
  SKEIN_RETURN_IF_ERROR(CheckSize(scores, "VerificationSummary.scores", kStepScoresMax));
  out.reserve(scores.size());
  for (const auto score : scores) {
    TokenScore& entry = out.emplace_back();
    entry.logprob = score.getLogprob();
    SKEIN_RETURN_IF_ERROR(ReadTop(score.getTop(), "TokenScore.top", entry.top));
  }
  return absl::OkStatus();
}

}  // namespace skein::protocol
