#include "tests/accept/stream_load.h"

#include <algorithm>
#include <stdexcept>

#include "protocol/base/strings.h"
#include "tests/process/mock_model.h"

namespace skein::tests {
namespace {

using protocol::Concat;

// Characters that decide where the stream goes on after a flaw.
constexpr size_t kWindow = 8;
constexpr std::string_view kText = "\"text\":\"";

// Pseudo-random, the same in every run.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

std::vector<int32_t> PromptOf(size_t stream) {
  std::vector<int32_t> prompt(32 + stream % 32);
  for (size_t i = 0; i < prompt.size(); ++i) {
    prompt[i] = static_cast<int32_t>(20 + Mix(stream * 1000 + i + 1) % 72);
  }
  return prompt;
}

// The bytes of a JSON string after `at`, as they are written, up to its end.
std::string_view JsonString(std::string_view json, size_t at) {
  size_t end = at;
  while (end < json.size() && json[end] != '"') end += json[end] == '\\' ? 2 : 1;
  return json.substr(at, end - at);
}

double Seconds(StreamLoad::Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

Flaw FlawOf(std::string_view expected, std::string_view got) {
  const auto [mine, theirs] =
      std::mismatch(got.begin(), got.end(), expected.begin(), expected.end());
  if (mine == got.end()) return Flaw::kNone;
  const auto at = static_cast<size_t>(mine - got.begin());
  const std::string_view after = got.substr(at, kWindow);
  const size_t found = expected.find(after);
  if (after.size() < kWindow || found == std::string_view::npos) return Flaw::kMixed;
  return found < at ? Flaw::kDuplicated : Flaw::kLost;
}

std::string_view TextOf(std::string_view event) {
  const size_t text = event.find(kText);
  if (text == std::string_view::npos) return {};
  return JsonString(event, text + kText.size());
}

StreamLoad::StreamLoad(const Options& options) : options_(options), streams_(options.streams) {
  protocol::HttpClientPool::Options pool;
  pool.port = options.port;
  pool.timeout = std::chrono::seconds(60);
  auto made = protocol::HttpClientPool::Create(pool);
  if (!made.ok()) throw std::runtime_error(made.status().ToString());
  pool_ = *std::move(made);
  for (size_t i = 0; i < streams_.size(); ++i) {
    const std::vector<int32_t> prompt = PromptOf(i);
    for (const int32_t id : prompt) {
      streams_[i].prompt += Concat(streams_[i].prompt.empty() ? "" : ",", id);
    }
    streams_[i].prompt_size = prompt.size();
    if (options.is_mock) streams_[i].expected = MockAnswer(prompt, options.tokens);
  }
}

bool StreamLoad::Record() {
  records_ = true;
  repeats_ = false;
  Start();
  while (!idle()) Poll(std::chrono::milliseconds(100));
  const bool all = totals_.whole == streams_.size();
  records_ = false;
  repeats_ = true;
  totals_ = Totals();
  return all;
}

void StreamLoad::Start() {
  for (size_t i = 0; i < streams_.size(); ++i) Begin(i);
}

void StreamLoad::Begin(size_t index) {
  Stream& stream = streams_[index];
  stream.got.clear();
  stream.error.clear();
  stream.events.Clear();
  stream.is_done = stream.has_finish = false;
  stream.runs = true;
  stream.silence = 0;
  stream.began = stream.last = Clock::now();
  ++totals_.started;
  pool_->Start(index,
               protocol::KeptRequest("POST", "/v1/completions", "127.0.0.1",
                                     "content-type: application/json\r\n",
                                     Concat(R"({"prompt":[)", stream.prompt,
                                            R"(],"temperature":0,"ignore_eos":true,"stream":true,)",
                                            R"("max_tokens":)", options_.tokens, "}")));
}

void StreamLoad::Poll(std::chrono::milliseconds timeout) { pool_->Poll(timeout, *this); }

void StreamLoad::OnEvent(Stream& stream, std::string_view event, Clock::time_point at) {
  if (event == "[DONE]") {
    stream.is_done = true;
    return;
  }
  if (event.find("\"error\"") != std::string_view::npos) stream.error = std::string(event);
  if (event.find("\"finish_reason\":\"length\"") != std::string_view::npos) {
    stream.has_finish = true;
  }
  const std::string_view text = TextOf(event);
  if (text.data() == nullptr) return;
  stream.got += text;
  received_ += text.size();
  stream.silence = std::max(stream.silence, Seconds(at - stream.last));
  stream.last = at;
}

void StreamLoad::OnBody(uint64_t call, int status, std::string_view bytes, Clock::time_point at) {
  Stream& stream = streams_[call];
  if (status != 200) {
    stream.error += bytes;
    return;
  }
  stream.events.Feed(bytes, [&](std::string_view event) {
    OnEvent(stream, event, at);
    return true;
  });
}

void StreamLoad::OnEnd(uint64_t call, int status, const absl::Status& result,
                       Clock::time_point at) {
  Stream& stream = streams_[call];
  stream.runs = false;
  Judge(stream, status, result, at);
  if (repeats_) Begin(call);
}

void StreamLoad::Judge(Stream& stream, int status, const absl::Status& result,
                       Clock::time_point at) {
  const bool whole =
      result.ok() && status == 200 && stream.is_done && stream.has_finish && stream.error.empty();
  if (records_) stream.expected = stream.got;
  totals_.characters += stream.got.size();
  const Flaw flaw = FlawOf(stream.expected, stream.got);
  totals_.lost += flaw == Flaw::kLost ? 1 : 0;
  totals_.duplicated += flaw == Flaw::kDuplicated ? 1 : 0;
  totals_.mixed += flaw == Flaw::kMixed ? 1 : 0;
  if (whole && flaw == Flaw::kNone && stream.got.size() == stream.expected.size()) {
    ++totals_.whole;
    totals_.rows += stream.prompt_size + options_.tokens - 1;
    durations_.push_back(Seconds(at - stream.began));
    totals_.shortest_s = std::min(totals_.shortest_s, durations_.back());
    return;
  }
  if (!whole || flaw == Flaw::kNone) ++totals_.unfinished;
  if (!result.ok() && !stream.is_done && !stream.has_finish) ++cut_;
  if (totals_.failure.empty()) {
    totals_.failure =
        Concat("status ", status, " ", protocol::StatusText(result), " after ", stream.got.size(),
               " of ", stream.expected.size(), " characters ", stream.error);
  }
}

std::vector<double> StreamLoad::TakeSilences() {
  std::vector<double> silences;
  const Clock::time_point now = Clock::now();
  for (Stream& stream : streams_) {
    if (!stream.runs) continue;
    silences.push_back(std::max(stream.silence, Seconds(now - stream.last)));
    stream.silence = 0;
  }
  return silences;
}

size_t StreamLoad::NumBeyond(size_t characters) const {
  return static_cast<size_t>(
      std::count_if(streams_.begin(), streams_.end(), [characters](const Stream& stream) {
        return stream.runs && stream.got.size() >= characters;
      }));
}

}  // namespace skein::tests
