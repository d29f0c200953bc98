// Datasets and arrival times.
// Main thread. Must never draw a number in an order that the clock decides.
#include "worker/node/commands/bench_workload.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <random>

#include "absl/status/status.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"
#include "protocol/json/json.h"
#include "protocol/json/json_writer.h"

namespace skein::worker {
namespace {

using protocol::Concat;
using protocol::JsonValue;
using protocol::JsonWriter;
using Random = std::mt19937_64;

constexpr int64_t kTokenMin = 256;
constexpr int64_t kTraceBlockTokens = 512;
constexpr int64_t kLengthMax = 1 << 24;

bool IsChat(const BenchOptions& options) {
  return options.endpoint.find("chat") != std::string::npos;
}

// A prompt: token ids, or text for the chat form and where a dataset has it.
struct BenchPrompt {
  std::vector<int64_t> ids;
  std::string text;
};

void WriteSampling(const BenchOptions& options, int64_t output_len, JsonWriter& writer) {
  writer.Key("max_tokens");
  writer.Int(output_len);
  writer.Key("temperature");
  writer.Double(options.temperature);
  if (options.ignore_eos) {
    writer.Key("ignore_eos");
    writer.Bool(true);
  }
  writer.Key("stream");
  writer.Bool(true);
  writer.Key("stream_options");
  writer.BeginObject();
  writer.Key("include_usage");
  writer.Bool(true);
  writer.EndObject();
}

// Words that stand for ids where only text goes: each is about one token.
std::string TextOf(const std::vector<int64_t>& ids) {
  constexpr std::string_view kWords[] = {"the", "water", "of", "house",
                                         "and", "green", "to", "day"};
  std::string text;
  for (const int64_t id : ids) {
    text += kWords[static_cast<size_t>(id) % std::size(kWords)];
    text += ' ';
  }
  return text;
}

std::string BodyOf(const BenchOptions& options, const BenchPrompt& prompt, int64_t output_len) {
  std::string out;
  JsonWriter writer(&out);
  writer.BeginObject();
  if (!options.model.empty()) {
    writer.Key("model");
    writer.String(options.model);
  }
  if (IsChat(options)) {
    writer.Key("messages");
    writer.BeginArray();
    writer.BeginObject();
    writer.Key("role");
    writer.String("user");
    writer.Key("content");
    writer.String(prompt.ids.empty() ? prompt.text : TextOf(prompt.ids));
    writer.EndObject();
    writer.EndArray();
  } else if (prompt.ids.empty()) {
    writer.Key("prompt");
    writer.String(prompt.text);
  } else {
    writer.Key("prompt");
    writer.BeginArray();
    for (const int64_t id : prompt.ids) writer.Int(id);
    writer.EndArray();
  }
  WriteSampling(options, output_len, writer);
  writer.EndObject();
  return out;
}

// `count` ids drawn from `random`, behind what `ids` holds.
void DrawIds(const BenchOptions& options, int64_t count, Random& random,
             std::vector<int64_t>& ids) {
  const auto span = static_cast<uint64_t>(options.random_token_max - kTokenMin);
  for (int64_t i = 0; i < count; ++i) {
    ids.push_back(kTokenMin + static_cast<int64_t>(random() % span));
  }
}

int64_t DrawLength(int64_t length, double ratio, Random& random) {
  const auto low = static_cast<int64_t>(std::floor(static_cast<double>(length) * (1 - ratio)));
  const auto high = static_cast<int64_t>(std::ceil(static_cast<double>(length) * (1 + ratio)));
  const auto span = static_cast<uint64_t>(high - low + 1);
  return std::max<int64_t>(1, low + static_cast<int64_t>(random() % span));
}

std::vector<BenchRequest> RandomRequests(const BenchOptions& options, Random& random) {
  std::vector<int64_t> prefix;
  DrawIds(options, options.random_prefix_len, random, prefix);
  std::vector<BenchRequest> requests;
  for (int64_t i = 0; i < options.num_prompts; ++i) {
    BenchPrompt prompt{prefix, {}};
    const double ratio = options.random_range_ratio;
    DrawIds(options, DrawLength(options.random_input_len, ratio, random), random, prompt.ids);
    BenchRequest request;
    request.output_len = DrawLength(options.random_output_len, ratio, random);
    request.body = BodyOf(options, prompt, request.output_len);
    requests.push_back(std::move(request));
  }
  return requests;
}

absl::StatusOr<std::vector<BenchRequest>> ShareGptRequests(const BenchOptions& options,
                                                           std::string_view dataset, Random& random,
                                                           const TokenCounter& count_tokens) {
  const protocol::JsonLimits limits{size_t{4} << 30, size_t{64} << 20, 64, 500'000'000};
  const auto parsed = protocol::ParseJson(dataset, limits);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(
        Concat(options.dataset_path, ": ", protocol::StatusText(parsed.status())));
  }
  std::vector<std::pair<std::string_view, std::string_view>> turns;
  for (const JsonValue& entry : parsed->elements()) {
    const JsonValue* turn = entry.Find("conversations");
    if (turn == nullptr || turn->elements().size() < 2) continue;
    const JsonValue* question = turn->elements()[0].Find("value");
    const JsonValue* answer = turn->elements()[1].Find("value");
    if (question == nullptr || answer == nullptr || question->string().empty()) continue;
    turns.emplace_back(question->string(), answer->string());
  }
  if (turns.empty()) {
    return absl::InvalidArgumentError(
        Concat(options.dataset_path,
               ": no entry has \"conversations\" with two turns that have a \"value\""));
  }
  std::shuffle(turns.begin(), turns.end(), random);
  std::vector<BenchRequest> requests;
  for (int64_t i = 0; i < options.num_prompts; ++i) {
    const auto& [question, answer] = turns[static_cast<size_t>(i) % turns.size()];
    BenchRequest request;
    request.output_len = options.output_len;
    if (request.output_len == 0) {
      SKEIN_ASSIGN_OR_RETURN(const int64_t tokens, count_tokens(answer));
      request.output_len = std::max<int64_t>(1, tokens);
    }
    request.body = BodyOf(options, {{}, std::string(question)}, request.output_len);
    requests.push_back(std::move(request));
  }
  return requests;
}

// Ids of a trace's prompt: blocks with the same hash have the same tokens.
absl::StatusOr<std::vector<int64_t>> TraceIds(const BenchOptions& options, const JsonValue* hashes,
                                              int64_t length, Random& random) {
  std::vector<int64_t> ids;
  if (hashes != nullptr) {
    SKEIN_ASSIGN_OR_RETURN(const auto elements, hashes->AsArray("hash_ids"));
    for (const JsonValue& hash : elements) {
      SKEIN_ASSIGN_OR_RETURN(const uint64_t value, hash.AsUint64("hash_ids"));
      if (static_cast<int64_t>(ids.size()) >= length) break;
      Random block(static_cast<uint64_t>(options.seed) ^ (value * 0x9E3779B97F4A7C15u + 1));
      DrawIds(options, kTraceBlockTokens, block, ids);
    }
  }
  if (static_cast<int64_t>(ids.size()) > length) ids.resize(static_cast<size_t>(length));
  DrawIds(options, length - static_cast<int64_t>(ids.size()), random, ids);
  return ids;
}

absl::StatusOr<BenchRequest> TraceRequest(const BenchOptions& options, std::string_view line,
                                          Random& random) {
  SKEIN_ASSIGN_OR_RETURN(const JsonValue entry, protocol::ParseJson(line));
  SKEIN_ASSIGN_OR_RETURN(const JsonValue* timestamp, entry.Require("timestamp", "$"));
  SKEIN_ASSIGN_OR_RETURN(const double at_ms, timestamp->AsDouble("timestamp", 0, 1e15));
  BenchRequest request;
  request.arrival_s = at_ms / 1000 / options.trace_speed;
  request.output_len = options.output_len;
  if (request.output_len == 0) {
    SKEIN_ASSIGN_OR_RETURN(const JsonValue* output, entry.Require("output_length", "$"));
    SKEIN_ASSIGN_OR_RETURN(request.output_len, output->AsInt64("output_length", 1, kLengthMax));
  }
  BenchPrompt prompt;
  if (const JsonValue* text = entry.Find("prompt"); text != nullptr) {
    SKEIN_ASSIGN_OR_RETURN(const std::string_view value, text->AsString("prompt"));
    prompt.text = std::string(value);
  } else {
    SKEIN_ASSIGN_OR_RETURN(const JsonValue* input, entry.Require("input_length", "$"));
    SKEIN_ASSIGN_OR_RETURN(const int64_t length, input->AsInt64("input_length", 1, kLengthMax));
    SKEIN_ASSIGN_OR_RETURN(prompt.ids, TraceIds(options, entry.Find("hash_ids"), length, random));
  }
  request.body = BodyOf(options, prompt, request.output_len);
  return request;
}

absl::StatusOr<std::vector<BenchRequest>> TraceRequests(const BenchOptions& options,
                                                        std::string_view dataset, Random& random) {
  std::vector<BenchRequest> requests;
  for (size_t number = 1; !dataset.empty(); ++number) {
    const size_t end = std::min(dataset.find('\n'), dataset.size());
    const std::string_view line = dataset.substr(0, end);
    dataset.remove_prefix(std::min(dataset.size(), end + 1));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    if (static_cast<int64_t>(requests.size()) >= options.num_prompts) break;
    auto request = TraceRequest(options, line, random);
    if (!request.ok()) {
      return absl::InvalidArgumentError(
          Concat(options.dataset_path, ":", number, ": ", protocol::StatusText(request.status())));
    }
    requests.push_back(*std::move(request));
  }
  if (requests.empty()) {
    return absl::InvalidArgumentError(Concat(options.dataset_path, ": the trace has no line"));
  }
  std::stable_sort(requests.begin(), requests.end(),
                   [](const auto& a, const auto& b) { return a.arrival_s < b.arrival_s; });
  const double first = requests.front().arrival_s;
  for (BenchRequest& request : requests) request.arrival_s -= first;
  return requests;
}

}  // namespace

absl::StatusOr<BenchWorkload> MakeWorkload(const BenchOptions& options, std::string_view dataset,
                                           const TokenCounter& count_tokens) {
  Random random(static_cast<uint64_t>(options.seed));
  BenchWorkload workload;
  if (options.dataset_name == "trace") {
    SKEIN_ASSIGN_OR_RETURN(workload.requests, TraceRequests(options, dataset, random));
    workload.is_open_loop = true;
    return workload;
  }
  if (options.dataset_name == "sharegpt") {
    SKEIN_ASSIGN_OR_RETURN(workload.requests,
                           ShareGptRequests(options, dataset, random, count_tokens));
  } else {
    workload.requests = RandomRequests(options, random);
  }
  workload.is_open_loop = options.request_rate > 0;
  if (!workload.is_open_loop) return workload;
  std::gamma_distribution<double> interval(options.burstiness,
                                           1 / (options.request_rate * options.burstiness));
  double at = 0;
  for (BenchRequest& request : workload.requests) {
    request.arrival_s = at;
    at += interval(random);
  }
  return workload;
}

}  // namespace skein::worker
