// cpu_bench: the cpu backend in process, without coordinator or sockets. Checks tokens and logprob
// bits first and last, measures the host's ceilings in the same run, then decode, prefill, first
// token and the cost of verifying q rows. One JSON line per case to stdout, a table to stderr.
// Must never: print a time after a failed check.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/cpu/register.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/device.h"
#include "kernels/philox.h"
#include "protocol/base/status_macros.h"
#include "tests/bench/host_ceilings.h"
#include "tests/bench/step_driver.h"
#include "worker/loaded_model.h"
#include "worker/preflight.h"

namespace skein::tests {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBlockTokens = 64;
constexpr int kMaxLength = 2048;
constexpr int kMaxQ = 6;
constexpr std::string_view kHelp = R"(cpu_bench: speed of the cpu backend, in process

  --model DIR      checkpoint (deploy/models/tiny-v41)
  --threads N      threads of the pool; 0: all that the process may use (0)
  --isa NAME       auto, scalar, avx2 or avx512 (auto)
  --streams LIST   numbers of streams decoded together (1,4,16)
  --prompt N       tokens of the prompt whose first token is timed (100)
  --prefill N      tokens of the prefill case, one step (512)
  --seconds S      wanted time of each case (2)
  --check N        greedy tokens compared with the scalar kernels, one thread (16)
  --check-prompt N tokens of the compared prompts (24); few for a large model: scalar is slow
  --seed N         seed of the prompts (1)
  --pin yes|no     pin the threads (yes)
  --cases LIST     of decode, first_token, prefill and verify (all)
)";

struct Options {
  std::string model = "deploy/models/tiny-v41";
  int threads = 0;
  std::string isa = "auto";
  std::vector<int> streams = {1, 4, 16};
  int prompt = 100;
  int prefill = 512;
  double seconds = 2;
  int check = 16;
  int check_prompt = 24;
  int seed = 1;
  bool pin = true;
  std::set<std::string> cases = {"decode", "first_token", "prefill", "verify"};
};

absl::StatusOr<int> Number(const std::string& flag, const std::string& text, int least) {
  int value = 0;
  if (absl::SimpleAtoi(text, &value) && value >= least) return value;
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": \"", text, "\" is not a whole number from ", least));
}

absl::Status Set(const std::string& flag, const std::string& value, Options& options) {
  const std::map<std::string, std::pair<int*, int>> numbers = {
      {"--threads", {&options.threads, 0}},           {"--prompt", {&options.prompt, 1}},
      {"--prefill", {&options.prefill, 1}},           {"--check", {&options.check, 1}},
      {"--check-prompt", {&options.check_prompt, 1}}, {"--seed", {&options.seed, 0}}};
  if (auto found = numbers.find(flag); found != numbers.end()) {
    SKEIN_ASSIGN_OR_RETURN(*found->second.first, Number(flag, value, found->second.second));
    return absl::OkStatus();
  }
  if (flag == "--model") {
    options.model = value;
  } else if (flag == "--isa") {
    options.isa = value;
  } else if (flag == "--pin" && (value == "yes" || value == "no")) {
    options.pin = value == "yes";
  } else if (flag == "--seconds") {
    if (!absl::SimpleAtod(value, &options.seconds) || options.seconds <= 0) {
      return absl::InvalidArgumentError(absl::StrCat("--seconds: \"", value, "\""));
    }
  } else if (flag == "--streams") {
    options.streams.clear();
    for (const auto part : absl::StrSplit(value, ',')) {
      SKEIN_ASSIGN_OR_RETURN(const int count, Number(flag, std::string(part), 1));
      options.streams.push_back(count);
    }
  } else if (flag == "--cases") {
    options.cases = absl::StrSplit(value, ',');
  } else {
    return absl::InvalidArgumentError(absl::StrCat(flag, " ", value, ": not known; see --help"));
  }
  return absl::OkStatus();
}

absl::StatusOr<kernels::CpuIsa> ResolveIsa(const std::string& name) {
  using kernels::CpuIsa;
  const std::map<std::string, CpuIsa> names = {
      {"scalar", CpuIsa::kScalar}, {"avx2", CpuIsa::kAvx2}, {"avx512", CpuIsa::kAvx512}};
  if (name == "auto") return kernels::BestCpuIsa();
  if (auto found = names.find(name); found != names.end()) return found->second;
  return absl::InvalidArgumentError(
      absl::StrCat("--isa: \"", name, "\"; it knows auto, scalar, avx2, avx512"));
}

// A model with its own registry and pool.
struct Bench {
  kernels::KernelRegistry registry;
  std::unique_ptr<kernels::cpu::ThreadPool> pool;
  std::unique_ptr<worker::LoadedModel> model;
  std::unique_ptr<StepDriver> driver;
};

absl::StatusOr<std::unique_ptr<Bench>> Open(const Options& options, kernels::CpuIsa isa,
                                            int threads, bool pin) {
  auto bench = std::make_unique<Bench>();
  SKEIN_RETURN_IF_ERROR(kernels::RegisterCpuKernels(bench->registry, isa));
  kernels::cpu::ThreadPoolOptions pool;
  pool.threads = threads;
  if (pin) pool.processors = kernels::cpu::UsableProcessorList();
  bench->pool = std::make_unique<kernels::cpu::ThreadPool>(pool);
  const int slots = *std::max_element(options.streams.begin(), options.streams.end());
  worker::LoadOptions load;
  load.model_dir = options.model;
  load.numerics = worker::Numerics::Model();
  load.limits.max_rows = std::max({options.prefill, options.prompt, slots, 64});
  load.limits.max_samples = std::max(slots, kMaxQ);
  load.limits.max_model_len = kMaxLength;
  load.limits.max_top = 0;
  load.limits.max_drafts = kMaxQ - 1;
  load.block_tokens = kBlockTokens;
  load.num_slots = slots;
  load.num_blocks = slots * (kMaxLength / kBlockTokens);
  load.device = std::make_shared<kernels::HostDevice>(kernels::DeviceStream{bench->pool.get()});
  SKEIN_ASSIGN_OR_RETURN(
      bench->model,
      worker::LoadedModel::Load(bench->registry, kernels::KernelManifest::Uniform("cpu"), load));
  bench->driver =
      std::make_unique<StepDriver>(*bench->model, kBlockTokens, kMaxLength / kBlockTokens);
  return bench;
}

std::vector<int32_t> Prompt(const Options& options, int vocab, int number, int length) {
  std::vector<int32_t> ids;
  for (int i = 0; i < length; ++i) {
    const kernels::PhiloxBlock random =
        kernels::RandomBlock(static_cast<uint64_t>(options.seed), static_cast<uint32_t>(number),
                             kernels::RandomPurpose::kAux, static_cast<uint32_t>(i), 0);
    ids.push_back(static_cast<int32_t>(random[0] % static_cast<uint32_t>(vocab - 8)) + 3);
  }
  return ids;
}

// Greedy tokens and logprob bits of a stream.
struct Answer {
  std::vector<int32_t> tokens;
  std::vector<uint32_t> logprob;
  friend bool operator==(const Answer&, const Answer&) = default;
};

absl::StatusOr<std::vector<Answer>> Answers(Bench& bench, const Options& options, int streams,
                                            int chunk, int first) {
  StepDriver& driver = *bench.driver;
  driver.Reset();
  for (int i = 0; i < streams; ++i) {
    driver.Add(Prompt(options, bench.model->spec().vocab, first + i, options.check_prompt));
    for (int done = 0; done < options.check_prompt; done += chunk) {
      SKEIN_RETURN_IF_ERROR(driver.Prefill(i, chunk));
    }
  }
  for (int i = 1; i < options.check; ++i) SKEIN_RETURN_IF_ERROR(driver.Decode());
  std::vector<Answer> answers;
  for (int i = 0; i < streams; ++i) {
    Answer answer{driver.tokens(i), {}};
    for (const float value : driver.logprobs(i)) {
      answer.logprob.push_back(std::bit_cast<uint32_t>(value));
    }
    answers.push_back(std::move(answer));
  }
  return answers;
}

// All streams together, whole prompts, must give what the scalar kernels give alone in chunks of 7
// on one thread.
absl::Status Check(Bench& bench, const std::vector<Answer>& expected, const Options& options) {
  const int streams = static_cast<int>(expected.size());
  SKEIN_ASSIGN_OR_RETURN(const std::vector<Answer> got,
                         Answers(bench, options, streams, kMaxLength, 0));
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i]) continue;
    size_t at = 0;
    while (at < got[i].tokens.size() && got[i].tokens[at] == expected[i].tokens[at]) ++at;
    return absl::InternalError(absl::StrCat("stream ", i, " differs from the scalar kernels ",
                                            at < got[i].tokens.size()
                                                ? absl::StrCat("in token ", at)
                                                : std::string("in the bits of a logprob")));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Answer>> Expected(const Options& options) {
  SKEIN_ASSIGN_OR_RETURN(const std::unique_ptr<Bench> scalar,
                         Open(options, kernels::CpuIsa::kScalar, 1, false));
  std::vector<Answer> expected;
  const int most = *std::max_element(options.streams.begin(), options.streams.end());
  const int streams = std::min(2, most);
  for (int i = 0; i < streams; ++i) {
    SKEIN_ASSIGN_OR_RETURN(std::vector<Answer> one, Answers(*scalar, options, 1, 7, i));
    expected.push_back(std::move(one[0]));
  }
  return expected;
}

// Milliseconds of each repetition.
struct Times {
  std::vector<double> ms;
  double Quantile(double q) const {
    std::vector<double> sorted = ms;
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<size_t>(q * static_cast<double>(sorted.size() - 1))];
  }
  double Median() const { return Quantile(0.5); }
  double Mean() const {
    double sum = 0;
    for (const double value : ms) sum += value;
    return sum / static_cast<double>(ms.size());
  }
};

template <typename Fn>
absl::StatusOr<Times> Repeat(double seconds, int most, const Fn& fn) {
  Times times;
  double total = 0;
  while (static_cast<int>(times.ms.size()) < most &&
         (times.ms.size() < 3 || total < seconds * 1000)) {
    const Clock::time_point begin = Clock::now();
    SKEIN_RETURN_IF_ERROR(fn());
    times.ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
    total += times.ms.back();
  }
  return times;
}

struct Ceilings {
  double read = 0;  // bytes per second
  double dot = 0;   // operations per second
};

class Report {
 public:
  Report(const Options& options, Bench& bench, kernels::CpuIsa isa, const Ceilings& ceilings)
      : options_(options), ceilings_(ceilings) {
    const std::map<kernels::CpuIsa, std::string> names = {{kernels::CpuIsa::kScalar, "scalar"},
                                                          {kernels::CpuIsa::kAvx2, "avx2"},
                                                          {kernels::CpuIsa::kAvx512, "avx512"}};
    head_ = absl::StrFormat(
        R"("model":"%s","threads":%d,"isa":"%s","device":"%s","commit":"%s","seed":%d,)"
        R"("ceilings":{"read_gbs":%.2f,"dot_gflops":%.1f})",
        options.model, bench.pool->threads(), names.at(isa), kernels::HostProperties().name,
        SKEIN_VERSION, options.seed, ceilings.read / 1e9, ceilings.dot / 1e9);
    std::fprintf(stderr,
                 "%s, %d threads, %s: read %.1f GB/s, dot %.1f GFLOP/s\n%-22s %10s %9s %9s %s\n",
                 options.model.c_str(), bench.pool->threads(), names.at(isa).c_str(),
                 ceilings.read / 1e9, ceilings.dot / 1e9, "case", "ms p50", "ms p99", "tok/s", "");
  }
  // A case of `tokens` tokens per repetition; `more` are further JSON members, `note` for people.
  void Line(const std::string& name, const Times& times, double tokens, const std::string& more,
            const std::string& note) const {
    const double rate = tokens / times.Mean() * 1000;
    std::printf(R"({"bench":"cpu_bench","case":"%s",%s,"reps":%zu,"ms_median":%.4f,"ms_p99":%.4f,)"
                R"("tok_s":%.1f%s,"peer":null,"peer_tok_s":null,"valid":true})"
                "\n",
                name.c_str(), head_.c_str(), times.ms.size(), times.Median(), times.Quantile(0.99),
                rate, more.c_str());
    std::fprintf(stderr, "%-22s %10.3f %9.3f %9.1f %s\n", name.c_str(), times.Median(),
                 times.Quantile(0.99), rate, note.c_str());
  }
  // Share of the ceilings that a step of this cost reached in `ms`.
  std::string Shares(const StepCost& cost, double ms, std::string& note) const {
    const double bandwidth = (cost.weight_bytes + cost.cache_bytes) / ms * 1000;
    const double rate = cost.flops / ms * 1000;
    note = absl::StrFormat(
        "%.1f MB (%.1f experts): %.1f GB/s = %.1f %% of read; %.1f GFLOP/s = %.1f %% of dot",
        (cost.weight_bytes + cost.cache_bytes) / 1e6, cost.touched, bandwidth / 1e9,
        bandwidth / ceilings_.read * 100, rate / 1e9, rate / ceilings_.dot * 100);
    return absl::StrFormat(
        R"(,"touched":%.2f,"bytes":%.0f,"flops":%.0f,"read_gbs":%.3f,"pct_bw":%.2f,"pct_dot":%.2f)",
        cost.touched, cost.weight_bytes + cost.cache_bytes, cost.flops, bandwidth / 1e9,
        bandwidth / ceilings_.read * 100, rate / ceilings_.dot * 100);
  }

 private:
  const Options& options_;
  Ceilings ceilings_;
  std::string head_;
};

absl::Status Decode(Bench& bench, const Options& options, int streams, const Report& report) {
  StepDriver& driver = *bench.driver;
  driver.Reset();
  for (int i = 0; i < streams; ++i) {
    driver.Add(Prompt(options, bench.model->spec().vocab, 100 + i, options.prompt));
    SKEIN_RETURN_IF_ERROR(driver.Prefill(i, kMaxLength));
  }
  for (int i = 0; i < 3; ++i) SKEIN_RETURN_IF_ERROR(driver.Decode());
  const int most = kMaxLength - options.prompt - 16;
  SKEIN_ASSIGN_OR_RETURN(const Times times,
                         Repeat(options.seconds, most, [&] { return driver.Decode(); }));
  SKEIN_ASSIGN_OR_RETURN(const StepCost cost, driver.CountDecode());
  std::string note;
  const std::string more = report.Shares(cost, times.Mean(), note);
  report.Line(absl::StrCat("decode_", streams), times, streams,
              absl::StrFormat(R"(,"streams":%d,"decode_tok_s":%.1f%s)", streams,
                              streams / times.Mean() * 1000, more),
              note);
  return absl::OkStatus();
}

// One step over a whole prompt, from an empty cache, with its first token.
absl::Status Prefill(Bench& bench, const Options& options, const std::string& name, int length,
                     const Report& report) {
  StepDriver& driver = *bench.driver;
  int number = 200;
  const auto prefill = [&]() -> absl::Status {
    driver.Reset();
    driver.Add(Prompt(options, bench.model->spec().vocab, ++number, length));
    return driver.Prefill(0, kMaxLength);
  };
  SKEIN_RETURN_IF_ERROR(prefill());
  SKEIN_ASSIGN_OR_RETURN(const Times times, Repeat(options.seconds, 10'000, prefill));
  driver.Reset();
  driver.Add(Prompt(options, bench.model->spec().vocab, number, length));
  SKEIN_ASSIGN_OR_RETURN(const StepCost cost, driver.CountPrefill(0));
  std::string note;
  const std::string more = report.Shares(cost, times.Mean(), note);
  report.Line(absl::StrCat(name, "_", length), times, length,
              absl::StrFormat(R"(,"rows":%d,"prefill_tok_s":%.1f%s)", length,
                              length / times.Mean() * 1000, more),
              note);
  return absl::OkStatus();
}

absl::Status Verify(Bench& bench, const Options& options, const Report& report) {
  StepDriver& driver = *bench.driver;
  std::vector<Times> times(kMaxQ);
  const std::vector<int32_t> drafts = Prompt(options, bench.model->spec().vocab, 301, kMaxQ);
  // All q in turns, so that a disturbance meets all of them.
  const Clock::time_point begin = Clock::now();
  while (times[0].ms.size() < 9 ||
         std::chrono::duration<double>(Clock::now() - begin).count() < options.seconds * 2) {
    driver.Reset();
    driver.Add(Prompt(options, bench.model->spec().vocab, 300, options.prompt));
    SKEIN_RETURN_IF_ERROR(driver.Prefill(0, kMaxLength));
    for (int q = 1; q <= kMaxQ; ++q) {
      const std::vector<int32_t> some(drafts.begin(), drafts.begin() + q - 1);
      SKEIN_ASSIGN_OR_RETURN(const Times one, Repeat(0, 3, [&] { return driver.Verify(0, some); }));
      times[static_cast<size_t>(q - 1)].ms.push_back(one.Median());
    }
  }
  std::vector<std::string> costs;
  for (const Times& each : times) {
    costs.push_back(absl::StrFormat("%.3f", each.Median() / times[0].Median()));
  }
  std::vector<std::string> members;
  for (size_t i = 0; i < costs.size(); ++i) {
    members.push_back(absl::StrFormat(R"("%d":%s)", i + 1, costs[i]));
  }
  report.Line(
      "verify_q1", times[0], 1,
      absl::StrFormat(R"(,"q_cost":{%s},"toks_per_forward":null)", absl::StrJoin(members, ",")),
      absl::StrCat("cost at q = 1...6: ", absl::StrJoin(costs, " ")));
  return absl::OkStatus();
}

absl::Status Run(const Options& options) {
  SKEIN_ASSIGN_OR_RETURN(const kernels::CpuIsa isa, ResolveIsa(options.isa));
  if (std::max(options.prompt, options.prefill) > kMaxLength / 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("--prompt and --prefill are at most ", kMaxLength / 2));
  }
  const int threads = options.threads > 0 ? options.threads : worker::UsableProcessors();
  SKEIN_ASSIGN_OR_RETURN(const std::vector<Answer> expected, Expected(options));
  SKEIN_ASSIGN_OR_RETURN(const std::unique_ptr<Bench> bench,
                         Open(options, isa, threads, options.pin));
  SKEIN_RETURN_IF_ERROR(Check(*bench, expected, options));
  const Ceilings ceilings = {ReadBandwidth(*bench->pool, 5), DotPeak(*bench->pool, isa)};
  const Report report(options, *bench, isa, ceilings);
  const auto wanted = [&](const char* name) { return options.cases.contains(name); };
  for (const int streams : options.streams) {
    if (wanted("decode")) SKEIN_RETURN_IF_ERROR(Decode(*bench, options, streams, report));
  }
  if (wanted("first_token")) {
    SKEIN_RETURN_IF_ERROR(Prefill(*bench, options, "first_token", options.prompt, report));
  }
  if (wanted("prefill")) {
    SKEIN_RETURN_IF_ERROR(Prefill(*bench, options, "prefill", options.prefill, report));
  }
  if (wanted("verify")) SKEIN_RETURN_IF_ERROR(Verify(*bench, options, report));
  return Check(*bench, expected, options);
}

int Main(const std::vector<std::string>& arguments) {
  Options options;
  for (size_t i = 0; i < arguments.size(); i += 2) {
    if (arguments[i] == "--help") {
      std::printf("%s", kHelp.data());
      return 0;
    }
    const absl::Status status =
        i + 1 < arguments.size()
            ? Set(arguments[i], arguments[i + 1], options)
            : absl::InvalidArgumentError(arguments[i] + ": needs a value; see --help");
    if (!status.ok()) {
      std::fprintf(stderr, "cpu_bench: %s\n", std::string(status.message()).c_str());
      return 2;
    }
  }
  if (const absl::Status status = Run(options); !status.ok()) {
    std::fprintf(stderr, "cpu_bench: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace skein::tests

int main(int argc, char** argv) { return skein::tests::Main({argv + 1, argv + argc}); }
