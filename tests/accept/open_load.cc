#include "tests/accept/open_load.h"

#include <stdexcept>
#include <utility>

#include "protocol/base/strings.h"
#include "tests/accept/stream_load.h"
#include "tests/process/mock_model.h"

namespace skein::tests {
namespace {

using protocol::Concat;

double Seconds(OpenLoad::Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

OpenLoad::OpenLoad(const Options& options) : options_(options) {
  protocol::HttpClientPool::Options pool;
  pool.port = options.port;
  pool.timeout = std::chrono::seconds(60);
  auto made = protocol::HttpClientPool::Create(pool);
  if (!made.ok()) throw std::runtime_error(made.status().ToString());
  pool_ = *std::move(made);
}

double OpenLoad::now_s() const { return Seconds(Clock::now() - start_); }

void OpenLoad::Begin() {
  const uint64_t call = calls_.size();
  calls_.emplace_back().arrived_s = now_s();
  auto answer = std::make_unique<Answer>();
  std::vector<int32_t> prompt(options_.prompt_tokens);
  std::string ids;
  for (size_t i = 0; i < prompt.size(); ++i) {
    prompt[i] = static_cast<int32_t>(20 + (call * 31 + i * i * 7 + call % (i + 3)) % 72);
    ids += Concat(i == 0 ? "" : ",", prompt[i]);
  }
  answer->expected = MockAnswer(prompt, options_.tokens);
  answers_.push_back(std::move(answer));
  pool_->Start(call,
               protocol::KeptRequest("POST", "/v1/completions", "127.0.0.1", "",
                                     Concat(R"({"prompt":[)", ids,
                                            R"(],"temperature":0,"ignore_eos":true,"stream":true,)",
                                            R"("max_tokens":)", options_.tokens, "}")));
}

void OpenLoad::Run(double per_second, double seconds) {
  const double begin = now_s();
  uint64_t arrived = 0;
  for (double at = 0; at < seconds; at = now_s() - begin) {
    while (static_cast<double>(arrived) < at * per_second) {
      Begin();
      ++arrived;
    }
    const double next = static_cast<double>(arrived + 1) / per_second - (now_s() - begin);
    pool_->Poll(std::chrono::microseconds(static_cast<int64_t>(1e6 * std::max(next, 0.0))), *this);
  }
}

void OpenLoad::Finish() {
  while (pool_->num_calls() > 0) pool_->Poll(std::chrono::milliseconds(20), *this);
}

void OpenLoad::OnBody(uint64_t call, int status, std::string_view bytes, Clock::time_point at) {
  if (status != 200) return;
  Answer& answer = *answers_[call];
  answer.events.Feed(bytes, [&](std::string_view event) {
    if (event == "[DONE]") answer.is_done = true;
    answer.got += TextOf(event);
    return true;
  });
  OpenCall& record = calls_[call];
  if (record.first_token_s < 0 && !answer.got.empty()) {
    record.first_token_s = Seconds(at - start_) - record.arrived_s;
  }
}

void OpenLoad::OnEnd(uint64_t call, int status, const absl::Status& result, Clock::time_point at) {
  const std::unique_ptr<Answer> answer = std::move(answers_[call]);
  OpenCall& record = calls_[call];
  record.status = status;
  record.ended_s = Seconds(at - start_) - record.arrived_s;
  if (result.ok() && (status == 429 || status == 503)) {
    record.end = OpenCall::End::kRefused;
  } else if (!result.ok() || status != 200 || !answer->is_done) {
    record.end = OpenCall::End::kBroken;
  } else {
    record.end = answer->got == answer->expected ? OpenCall::End::kWhole : OpenCall::End::kFlawed;
  }
  if (record.end != OpenCall::End::kWhole && record.end != OpenCall::End::kRefused &&
      first_failure_.empty()) {
    first_failure_ = Concat("status ", status, " ", protocol::StatusText(result), " after ",
                            answer->got.size(), " of ", answer->expected.size(), " characters");
  }
}

}  // namespace skein::tests
