// prefix_bench: what the prefix cache of a real server saves, beside the same server without it.
// ttft: a prompt of which 90 % was computed before against one that was not. chat: a trace of
// conversations that grow turn by turn behind one system prompt. Requests follow one another, so a
// time to the first token holds no queue. Owns the servers. Thread: main's. Must never print a
// figure when the two servers answered differently.
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "protocol/base/strings.h"
#include "protocol/http/http_client.h"
#include "protocol/json/json.h"
#include "protocol/json/json_writer.h"
#include "tests/bench/bench_line.h"
#include "tests/process/live_server.h"

namespace skein::bench {
namespace {

using protocol::Concat;
using protocol::JsonValue;
using Clock = std::chrono::steady_clock;

constexpr char kUsage[] =
    "usage: prefix_bench [--case ttft|chat] [--model DIR] [--prompt N] [--reps N] [--seed N]\n"
    "                    [--commit ID]\n"
    "ttft: N tokens (4096), each repetition draws its own. chat: 8 conversations of 6 turns.\n";

constexpr std::chrono::minutes kTimeout{10};
// Of the chat trace, in tokens.
constexpr int kConversations = 8;
constexpr int kTurns = 6;
constexpr size_t kSystemTokens = 200;
constexpr size_t kTurnTokensMin = 40;
constexpr size_t kTurnTokensMax = 120;
constexpr int kAnswerTokens = 48;
constexpr int kVariants = 2;  // prompts that follow the first one that shares with another

struct Options {
  RunIdentity run;
  std::string only;
  std::string model = "deploy/models/tiny-v41";
  size_t prompt = 4096;
};

using Tokens = std::vector<int32_t>;

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  // Ids that every model here has and that end nothing.
  void Append(size_t count, Tokens& tokens) {
    for (size_t i = 0; i < count; ++i) {
      tokens.push_back(static_cast<int32_t>(300 + random_() % 3000));
    }
  }
  size_t Between(size_t low, size_t high) { return low + random_() % (high - low + 1); }

 private:
  std::mt19937_64 random_;
};

struct Answer {
  bool ok = false;
  double ttft_ms = 0;
  Tokens tokens;
  std::vector<std::string> logprobs;  // text that reads back the same: equal text is equal bits
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
};

std::string Body(const Tokens& prompt, int max_tokens) {
  std::string body = "{\"prompt\":[";
  for (size_t i = 0; i < prompt.size(); ++i) {
    body += Concat(i == 0 ? "" : ",", prompt[i]);
  }
  return body + Concat("],\"max_tokens\":", max_tokens,
                       ",\"temperature\":0,\"ignore_eos\":true,\"logprobs\":1,\"stream\":true,"
                       "\"return_tokens_as_token_ids\":true,"
                       "\"stream_options\":{\"include_usage\":true}}");
}

// Adds the tokens of one event; false when it is not understood.
bool AddEvent(std::string_view event, Answer& answer) {
  if (event == "[DONE]") return true;
  const auto json = protocol::ParseJson(event);
  if (!json.ok()) return false;
  const JsonValue* choices = json->Find("choices");
  if (choices == nullptr) return false;
  for (const JsonValue& choice : choices->elements()) {
    const JsonValue* logprobs = choice.Find("logprobs");
    const JsonValue* tokens = logprobs == nullptr ? nullptr : logprobs->Find("tokens");
    if (tokens == nullptr) continue;
    for (const JsonValue& token : tokens->elements()) {
      int32_t id = 0;
      const std::string name(token.string());
      if (!name.starts_with("token_id:") || !absl::SimpleAtoi(name.substr(9), &id)) return false;
      answer.tokens.push_back(id);
    }
    for (const JsonValue& value : logprobs->Find("token_logprobs")->elements()) {
      answer.logprobs.push_back(protocol::WriteJson(value));
    }
  }
  const JsonValue* usage = json->Find("usage");
  if (usage == nullptr || usage->Find("prompt_tokens") == nullptr) return true;
  answer.prompt_tokens = usage->Find("prompt_tokens")->AsInt64("prompt_tokens").value_or(-1);
  const JsonValue* details = usage->Find("prompt_tokens_details");
  const JsonValue* cached = details == nullptr ? nullptr : details->Find("cached_tokens");
  answer.cached_tokens = cached == nullptr ? -1 : cached->AsInt64("cached_tokens").value_or(-1);
  return true;
}

Answer Send(const tests::LiveServer& server, const Tokens& prompt, int max_tokens) {
  Answer answer;
  protocol::HttpCall call;
  call.port = server.port();
  call.method = "POST";
  call.target = "/v1/completions";
  call.body = Body(prompt, max_tokens);
  call.timeout = kTimeout;
  const Clock::time_point begin = Clock::now();
  bool understood = true;
  const auto result = protocol::CallHttpEvents(call, [&](std::string_view event) {
    understood = understood && AddEvent(event, answer);
    if (answer.ttft_ms == 0 && !answer.tokens.empty()) {
      answer.ttft_ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    }
    return true;
  });
  answer.ok = result.ok() && result->status == 200 && understood &&
              answer.tokens.size() == static_cast<size_t>(max_tokens) &&
              answer.prompt_tokens == static_cast<int64_t>(prompt.size());
  if (!answer.ok && result.ok()) std::fprintf(stderr, "%s\n", result->body.c_str());
  return answer;
}

bool Same(const Answer& a, const Answer& b) {
  return a.ok && b.ok && a.tokens == b.tokens && a.logprobs == b.logprobs;
}

// The same server with the cache and without.
struct Servers {
  tests::LiveServer with, without;

  bool Start(const Options& options, size_t max_model_len) {
    const std::vector<std::string> common = {"--model", options.model, "--max-model-len",
                                             std::to_string(max_model_len)};
    std::vector<std::string> flags = common;
    flags.push_back("--enable-prefix-caching");
    if (!with.StartReady(flags)) {
      std::fprintf(stderr, "%s", with.output().c_str());
      return false;
    }
    flags = common;
    flags.push_back("--no-enable-prefix-caching");
    if (without.StartReady(flags)) return true;
    std::fprintf(stderr, "%s", without.output().c_str());
    return false;
  }
};

std::string ModelName(const Options& options) {
  return JsonText(std::filesystem::path(options.model).filename().string());
}

// Times to the first token of one kind of request.
struct Times {
  std::vector<double> ms;
  double cached = 0;
  void Add(const Answer& answer) {
    ms.push_back(answer.ttft_ms);
    cached += static_cast<double>(answer.cached_tokens);
  }
  double Median() { return Percentile(ms, 50); }
  double CachedMean() const { return ms.empty() ? 0 : cached / static_cast<double>(ms.size()); }
};

// One prompt leaves its blocks; others share 90 % of its tokens and differ behind. The first of
// them finds blocks without the state at their end, the next ones find both.
int RunTtft(const Options& options) {
  Servers servers;
  if (!servers.Start(options, options.prompt + 64)) return 1;
  Draw draw(options.run.seed);
  Tokens warm;
  draw.Append(100, warm);
  bool valid = Same(Send(servers.with, warm, 1), Send(servers.without, warm, 1));
  Times off, cold, branch, hit;
  for (int rep = 0; rep < options.run.reps && valid; ++rep) {
    Tokens prompt;
    draw.Append(options.prompt, prompt);
    const Answer first = Send(servers.with, prompt, 1);
    valid = valid && first.ok && first.cached_tokens == 0;
    cold.Add(first);
    Answer with;
    for (int variant = 0; variant <= kVariants && valid; ++variant) {
      prompt.resize(options.prompt * 9 / 10);
      draw.Append(options.prompt - prompt.size(), prompt);
      with = Send(servers.with, prompt, 1);
      valid = valid && with.ok;
      (variant == 0 ? branch : hit).Add(with);
    }
    const Answer without = Send(servers.without, prompt, 1);
    valid = valid && Same(with, without) && without.cached_tokens == 0;
    off.Add(without);
  }
  valid = valid && servers.with.Metric("skein_kv_audit_violations_total") == 0;
  const double base = off.Median();
  std::fprintf(stderr, "%zu tokens: without %.1f ms, cold %.1f, branch %.1f, hit %.1f: x%.2f %s\n",
               options.prompt, base, cold.Median(), branch.Median(), hit.Median(),
               base / hit.Median(), valid ? "" : "INVALID");
  PrintCase(options.run, Concat("ttft_", options.prompt),
            {{"model", ModelName(options)},
             {"off_ms", JsonNumber(base)},
             {"cold_ms", JsonNumber(cold.Median())},
             {"branch_ms", JsonNumber(branch.Median())},
             {"branch_cached_tokens", JsonNumber(branch.CachedMean())},
             {"hit_ms", JsonNumber(hit.Median())},
             {"hit_cached_tokens", JsonNumber(hit.CachedMean())},
             {"speedup_branch", JsonNumber(base / branch.Median())},
             {"speedup_hit", JsonNumber(base / hit.Median())}},
            valid);
  return valid ? 0 : 1;
}

// One pass over the trace; false when the servers differ.
bool RunTrace(const Servers& servers, Draw& draw, Times& off, Times& on, double& prompt_tokens) {
  Tokens system;
  draw.Append(kSystemTokens, system);
  std::vector<Tokens> conversations(kConversations, system);
  for (int turn = 0; turn < kTurns; ++turn) {
    for (Tokens& conversation : conversations) {
      draw.Append(draw.Between(kTurnTokensMin, kTurnTokensMax), conversation);
      const bool swapped = off.ms.size() % 2 == 1;
      const Answer first =
          Send(swapped ? servers.with : servers.without, conversation, kAnswerTokens);
      const Answer second =
          Send(swapped ? servers.without : servers.with, conversation, kAnswerTokens);
      if (!Same(first, second)) return false;
      off.Add(swapped ? second : first);
      on.Add(swapped ? first : second);
      prompt_tokens += static_cast<double>(first.prompt_tokens);
      conversation.insert(conversation.end(), first.tokens.begin(), first.tokens.end());
    }
  }
  return true;
}

int RunChat(const Options& options) {
  Servers servers;
  if (!servers.Start(options, 2048)) return 1;
  Draw draw(options.run.seed);
  Times off, on;
  double prompt_tokens = 0;
  bool valid = true;
  for (int rep = 0; rep < options.run.reps && valid; ++rep) {
    valid = RunTrace(servers, draw, off, on, prompt_tokens);
  }
  valid = valid && servers.with.Metric("skein_kv_audit_violations_total") == 0;
  const double hit_rate = prompt_tokens > 0 ? on.cached / prompt_tokens : 0;
  std::fprintf(stderr, "chat: hit rate %.3f, TTFT p50 %.2f -> %.2f ms, p99 %.2f -> %.2f ms %s\n",
               hit_rate, off.Median(), on.Median(), Percentile(off.ms, 99), Percentile(on.ms, 99),
               valid ? "" : "INVALID");
  PrintCase(options.run, "chat",
            {{"model", ModelName(options)},
             {"requests", JsonNumber(static_cast<double>(on.ms.size()))},
             {"prompt_tokens", JsonNumber(prompt_tokens)},
             {"hit_rate", JsonNumber(hit_rate)},
             {"off_ttft_ms_p50", JsonNumber(off.Median())},
             {"off_ttft_ms_p99", JsonNumber(Percentile(off.ms, 99))},
             {"ttft_ms_p50", JsonNumber(on.Median())},
             {"ttft_ms_p99", JsonNumber(Percentile(on.ms, 99))}},
            valid);
  return valid ? 0 : 1;
}

int Main(int argc, char** argv) {
  Options options;
  options.run = {.bench = "prefix_bench", .seed = 1, .reps = 3};
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (name == "--commit") {
      options.run.commit = value;
    } else if (name == "--case") {
      options.only = value;
    } else if (name == "--model") {
      options.model = value;
    } else if (!(name == "--reps" && absl::SimpleAtoi(value, &options.run.reps)) &&
               !(name == "--seed" && absl::SimpleAtoi(value, &options.run.seed)) &&
               !(name == "--prompt" && absl::SimpleAtoi(value, &options.prompt))) {
      std::fputs(kUsage, stderr);
      return 64;
    }
  }
  int code = 0;
  if (options.only.empty() || options.only == "ttft") code |= RunTtft(options);
  if (options.only.empty() || options.only == "chat") code |= RunChat(options);
  return code;
}

}  // namespace
}  // namespace skein::bench

int main(int argc, char** argv) { return skein::bench::Main(argc, argv); }
