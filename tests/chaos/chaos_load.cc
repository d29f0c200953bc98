#include "tests/chaos/chaos_load.h"

#include <algorithm>
#include <stdexcept>

#include "protocol/base/strings.h"
#include "protocol/json/json.h"
#include "tests/accept/stream_load.h"
#include "tests/process/mock_model.h"

namespace skein::tests {
namespace {

using protocol::Concat;

constexpr size_t kSharedTokens = 200;
constexpr std::chrono::milliseconds kPause{200};
// Between two questions whether the server is ready, and between a refusal and the answer to one
// that explains it.
constexpr std::chrono::milliseconds kQuestions{20}, kBeside{500};

// The text of a completion that came as one JSON value.
std::string WholeText(std::string_view body) {
  const auto json = protocol::ParseJson(body);
  if (!json.ok()) return {};
  const protocol::JsonValue* choices = json->Find("choices");
  if (choices == nullptr || choices->elements().empty()) return {};
  const protocol::JsonValue* text = choices->elements()[0].Find("text");
  return text == nullptr ? std::string() : std::string(text->string());
}

}  // namespace

ChaosLoad::ChaosLoad(const Options& options)
    : options_(options), streams_(options.streams), random_(options.seed) {
  protocol::HttpClientPool::Options pool;
  pool.port = options.port;
  pool.timeout = std::chrono::seconds(60);
  auto made = protocol::HttpClientPool::Create(pool);
  if (!made.ok()) throw std::runtime_error(made.status().ToString());
  pool_ = *std::move(made);
  for (size_t i = 0; i < kSharedTokens; ++i) {
    shared_prefix_.push_back(static_cast<int32_t>(20 + Draw(72)));
  }
}

uint64_t ChaosLoad::Draw(uint64_t bound) {
  random_ += 0x9E3779B97F4A7C15u;
  uint64_t x = random_;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return (x ^ (x >> 31)) % bound;
}

void ChaosLoad::Start() {
  for (size_t i = 0; i < streams_.size(); ++i) Begin(i);
}

// Half the prompts begin alike, so that blocks are shared; one answer in eight is no stream.
void ChaosLoad::Begin(size_t index) {
  Stream& stream = streams_[index] = Stream();
  std::vector<int32_t> prompt;
  if (Draw(2) == 0) {
    const auto length = static_cast<std::ptrdiff_t>(1 + Draw(kSharedTokens));
    prompt.assign(shared_prefix_.begin(), shared_prefix_.begin() + length);
  }
  for (uint64_t left = 1 + Draw(64); left > 0; --left) {
    prompt.push_back(static_cast<int32_t>(20 + Draw(72)));
  }
  const size_t tokens = 1 + Draw(200);
  stream.expected = MockAnswer(prompt, tokens);
  stream.streams = Draw(8) != 0;
  stream.began = Clock::now();
  std::string ids;
  for (const int32_t id : prompt) ids += Concat(ids.empty() ? "" : ",", id);
  ++totals_.started;
  pool_->Start(index,
               protocol::KeptRequest(
                   "POST", "/v1/completions", "127.0.0.1", "content-type: application/json\r\n",
                   Concat(R"({"prompt":[)", ids, R"(],"temperature":0,"ignore_eos":true,"stream":)",
                          stream.streams ? "true" : "false", R"(,"max_tokens":)", tokens, "}")));
}

void ChaosLoad::AskWhetherReady() {
  if (is_asking_ || Clock::now() < next_question_) return;
  is_asking_ = true;
  pool_->Start(streams_.size(), protocol::KeptRequest("GET", "/health/ready", "127.0.0.1", "", ""));
}

void ChaosLoad::Poll(std::chrono::milliseconds timeout) {
  AskWhetherReady();
  pool_->Poll(timeout, *this);
  const Clock::time_point now = Clock::now();
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (!streams_[i].waits || now < *streams_[i].waits) continue;
    streams_[i].waits.reset();
    if (repeats_) Begin(i);
  }
}

void ChaosLoad::OnEvent(Stream& stream, std::string_view event) {
  stream.is_done |= event == "[DONE]";
  if (event.find("\"error\"") != std::string_view::npos) stream.error = std::string(event);
  stream.has_finish |= event.find("\"finish_reason\":\"length\"") != std::string_view::npos;
  stream.got += TextOf(event);
}

void ChaosLoad::OnBody(uint64_t call, int status, std::string_view bytes, Clock::time_point) {
  if (call == streams_.size()) return;
  Stream& stream = streams_[call];
  if (status != 200 || !stream.streams) {
    stream.body += bytes;
    return;
  }
  stream.events.Feed(bytes, [&](std::string_view event) {
    OnEvent(stream, event);
    return true;
  });
}

void ChaosLoad::OnEnd(uint64_t call, int status, const absl::Status& result, Clock::time_point at) {
  if (call == streams_.size()) {
    if (!result.ok() || status != 200) unready_.push_back(at);
    next_question_ = at + kQuestions;
    is_asking_ = false;
    return;
  }
  Stream& stream = streams_[call];
  const uint64_t whole = totals_.whole;
  Judge(stream, status, result);
  // What failed waits, so that a server which is not there is not asked for ever.
  stream.waits = totals_.whole > whole ? at : at + kPause;
}

void ChaosLoad::Judge(Stream& stream, int status, const absl::Status& result) {
  bool looks_whole = result.ok() && status == 200 && stream.error.empty();
  if (stream.streams) {
    looks_whole = looks_whole && stream.is_done;
  } else if (looks_whole) {
    stream.got = WholeText(stream.body);
  }
  const bool is_begin = std::string_view(stream.expected).starts_with(stream.got);
  if (!is_begin || (looks_whole && stream.got != stream.expected) ||
      (looks_whole && stream.streams && !stream.has_finish)) {
    ++totals_.mismatches;
    return Note("mismatch", stream, status, result);
  }
  if (looks_whole) {
    ++totals_.whole;
  } else if (stream.began <= excused_) {
    ++totals_.cut;
  } else if (status == 503 && stream.body.find("\"not_ready\"") != std::string::npos) {
    refused_.push_back(Clock::now());
  } else {
    ++totals_.failed;
    Note("failed", stream, status, result);
  }
}

// A refusal is true when somebody else was told the same at about that time.
void ChaosLoad::CountRefusals() {
  for (const Clock::time_point at : refused_) {
    const auto seen = std::lower_bound(unready_.begin(), unready_.end(), at - kBeside);
    if (seen != unready_.end() && *seen <= at + kBeside) {
      ++totals_.refused;
      continue;
    }
    ++totals_.failed;
    if (totals_.failure.empty()) totals_.failure = "refused although the server was ready";
  }
}

const ChaosLoad::Totals& ChaosLoad::Close() {
  pool_.reset();
  CountRefusals();
  return totals_;
}

void ChaosLoad::Note(std::string_view what, const Stream& stream, int status,
                     const absl::Status& result) {
  if (!totals_.failure.empty()) return;
  totals_.failure = Concat(what, ": status ", status, " ", protocol::StatusText(result), " after ",
                           stream.got.size(), " of ", stream.expected.size(), " characters; ",
                           stream.error, stream.streams ? "" : stream.body.substr(0, 200));
}

}  // namespace skein::tests
