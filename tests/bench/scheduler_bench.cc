// What a request costs the coordinator per step: planning and commit of the scheduler alone, and
// the whole control loop around them, at a number of live requests of which 1 % end and are
// replaced in each step, without drafts and with five that are rejected or kept by chance, without
// the prefix cache and with it. Also a lookup in a prefix cache of 100,000 blocks. Workers answer
// at once, outside the measured time. Owns everything it measures. Thread: main's. Must never print
// a case whose checks failed as valid.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/control_loop.h"
#include "scheduler/audit.h"
#include "scheduler/cluster_scheduler.h"
#include "scheduler/invariants.h"
#include "tests/bench/bench_line.h"
#include "tests/bench/lookup_bench.h"

namespace {

// Allocations of the measured parts; one thread.
bool counting = false;
uint64_t allocations = 0;

}  // namespace

void* operator new(size_t size) {
  if (counting) ++allocations;
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace skein::bench {
namespace {

using protocol::GroupId;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kMeanSteps = 100;     // of a request: 1 % end in each step
constexpr double kKept = 0.7;            // of a draft that is reached
constexpr double kTokensPerStep = 2.94;  // with five drafts: 1 + 0.7 + 0.7^2 + ... + 0.7^5
constexpr uint32_t kPrompt = 128;
constexpr uint32_t kBlockTokens = 64;
// With the prefix cache: what each prompt shares with others, and how many such beginnings there
// are.
constexpr uint32_t kShared = 128;
constexpr uint32_t kDocuments = 64;
constexpr uint32_t kCachedBlocks = 100'000;
constexpr uint32_t kMaxModelLen = 4096;
constexpr int kWarmSteps = 120;  // longer than the longest request

struct Case {
  std::string name;
  uint32_t live = 0;
  uint32_t lanes = 1;
  uint32_t groups = 1;
  uint32_t depth = 0;   // drafts of a sequence in a step
  bool cached = false;  // with the prefix cache
};

// Time and allocations of one part of the work.
struct Part {
  double seconds = 0;
  template <typename Fn>
  auto Measure(Fn&& fn) {
    counting = true;
    const Clock::time_point begin = Clock::now();
    auto result = fn();
    seconds += std::chrono::duration<double>(Clock::now() - begin).count();
    counting = false;
    return result;
  }
};

struct Figures {
  Part add, plan, commit;
  uint64_t steps = 0;
  uint64_t request_steps = 0;  // sequences summed over the steps
  uint64_t ended = 0;
  uint64_t drafts = 0;  // verified
  double hit_rate = 0;
  double sums_us = 0, audit_us = 0;  // of the accounts of the first group
  bool valid = true;
};

// The audits of a group, repeated.
void MeasureAudits(const scheduler::GroupScheduler& group, Figures& figures) {
  constexpr int kRepeats = 200;
  Part sums, audit;
  for (int i = 0; i < kRepeats; ++i) {
    figures.valid = sums.Measure([&] { return scheduler::SumsAgree(group); }) && figures.valid;
    figures.valid = audit.Measure([&] { return scheduler::AuditBlocks(group); }) ==
                        scheduler::AuditFindings{} &&
                    figures.valid;
  }
  figures.sums_us = sums.seconds * 1e6 / kRepeats;
  figures.audit_us = audit.seconds * 1e6 / kRepeats;
}

scheduler::SchedulerLimits LimitsOf(const Case& bench) {
  scheduler::SchedulerLimits limits;
  limits.max_num_seqs = bench.live / bench.groups + 1;
  limits.max_num_batched_tokens = 1 << 20;
  limits.lanes = bench.lanes;
  limits.admission = {UINT32_MAX, UINT64_MAX};
  limits.speculation = {bench.depth, scheduler::Adaptation::kAdaptive};
  limits.prefix_caching = bench.cached;
  return limits;
}

protocol::CacheGeometry GeometryOf(const Case& bench) {
  const uint32_t seqs = bench.live / bench.groups + 1;
  protocol::CacheGeometry geometry{kBlockTokens, seqs * 8,     seqs,
                                   1 << 20,      kMaxModelLen, bench.depth};
  if (bench.cached) {
    geometry.num_blocks = std::max(kCachedBlocks, seqs * 8);
    geometry.num_checkpoints = 2 * seqs;
  }
  return geometry;
}

// Requests of random length, one after the other.
class Requests {
 public:
  Requests(const Case& bench, uint64_t seed)
      : tokens_per_step_(bench.depth > 0 ? kTokensPerStep : 1),
        cached_(bench.cached),
        random_(seed) {}

  std::vector<int32_t> Prompt() {
    const uint32_t shared = cached_ ? kShared : 0;
    std::vector<int32_t> prompt(shared + kPrompt);
    const uint64_t document = random_() % kDocuments;
    for (uint32_t i = 0; i < prompt.size(); ++i) {
      const uint64_t token = i < shared ? document * 1000 + i : random_();
      prompt[i] = static_cast<int32_t>(token % 100'000);
    }
    return prompt;
  }
  // The first ones are in the middle of their lives.
  int32_t Limit(bool first) {
    const uint64_t steps = first ? 1 + random_() % kMeanSteps : kMeanSteps - 10 + random_() % 21;
    return static_cast<int32_t>(tokens_per_step_ * static_cast<double>(steps));
  }
  uint64_t NextId() { return ++last_id_; }

 private:
  const double tokens_per_step_;
  const bool cached_;
  std::mt19937_64 random_;
  uint64_t last_id_ = 0;
};

protocol::RowSummary RowAt(uint32_t position) {
  protocol::RowSummary row;
  row.position = position;
  row.plain_token = row.argmax_token = 7;
  row.plain_logprob = row.argmax_logprob = -0.5F;
  return row;
}

// A worker for which all drafts pay: what is chosen among is the most.
protocol::StepResult AnswerTo(const protocol::StepPlan& plan) {
  protocol::StepResult result;
  result.group = plan.group;
  result.rank = plan.rank;
  result.epoch = plan.epoch;
  result.step = plan.step;
  result.lane = plan.lane;
  result.sequences.reserve(plan.sequences.size());
  double rows = 0;
  double drafted = 0;
  for (const protocol::SequenceStep& step : plan.sequences) {
    protocol::VerificationSummary& summary = result.sequences.emplace_back();
    summary.sequence = step.sequence;
    if (!step.sample) continue;
    const uint32_t position = step.first_position + static_cast<uint32_t>(step.tokens.size());
    summary.rows.reserve(1 + step.draft_depth);
    for (uint32_t i = 0; i <= step.draft_depth; ++i) {
      protocol::RowSummary& row = summary.rows.emplace_back(RowAt(position + i));
      if (i == step.draft_depth) break;
      row.draft_token = 7;
      row.draft_logprob = -0.5F;
      row.confidence = static_cast<float>(kKept);
      row.target_probability = static_cast<float>(kKept);
      row.draft_probability = 1;
      row.recovered_token = 8;
    }
    rows += static_cast<double>(step.tokens.size() + step.draft_depth);
    drafted += step.draft_depth > 0 ? 1 : 0;
  }
  result.draft_time_us = static_cast<uint64_t>(drafted / 10);
  result.device_time_us = 50'000 + result.draft_time_us + static_cast<uint64_t>(rows / 10);
  return result;
}

// Share of the looked up prompt tokens that were found.
double HitRate(const scheduler::ClusterScheduler& scheduler) {
  double hits = 0;
  double queries = 0;
  for (uint32_t i = 0; i < scheduler.num_groups(); ++i) {
    const scheduler::SchedulerCounters& counters = scheduler.engine(i).counters();
    hits += static_cast<double>(counters.cache_hits);
    queries += static_cast<double>(counters.cache_queries);
  }
  return queries > 0 ? hits / queries : 0;
}

uint64_t DraftTokens(const scheduler::ClusterScheduler& scheduler) {
  uint64_t drafts = 0;
  for (uint32_t i = 0; i < scheduler.num_groups(); ++i) {
    drafts += scheduler.engine(i).counters().draft_tokens;
  }
  return drafts;
}

// ---- the scheduler alone

class SchedulerRun {
 public:
  SchedulerRun(const Case& bench, uint64_t seed)
      : bench_(bench), scheduler_(LimitsOf(bench), bench.groups), requests_(bench, seed) {
    for (uint32_t group = 0; group < bench.groups; ++group) {
      const protocol::CacheGeometry geometry[] = {GeometryOf(bench)};
      scheduler_.StartEpoch(GroupId(group), protocol::Epoch(group + 1), geometry);
    }
    for (uint32_t i = 0; i < bench.live; ++i) Add(true, warm_);
    results_.resize(size_t{bench.groups} * bench.lanes);
  }

  Figures Run(int steps) {
    for (int i = 0; i < kWarmSteps; ++i) Round(warm_);
    Figures figures;
    allocations = 0;
    const uint64_t before = DraftTokens(scheduler_);
    for (int i = 0; i < steps; ++i) Round(figures);
    figures.drafts = DraftTokens(scheduler_) - before;
    figures.hit_rate = HitRate(scheduler_);
    MeasureAudits(scheduler_.engine(0), figures);
    figures.valid = figures.valid && scheduler::CheckInvariants(scheduler_).ok() &&
                    scheduler_.sequences().size() == bench_.live && figures.ended > 0 &&
                    scheduler_.num_queued() <= bench_.live / 20;
    return figures;
  }

 private:
  void Add(bool first, Figures& figures) {
    scheduler::NewSequence sequence;
    sequence.id = protocol::SequenceId(requests_.NextId());
    sequence.prompt = requests_.Prompt();
    sequence.stop.max_tokens = requests_.Limit(first);
    sequence.sampling.seed = sequence.id.value();
    sequence.speculation.mode = protocol::VerificationMode::kRejection;
    figures.add.Measure([&] { return scheduler_.AddSequence(std::move(sequence)).ok(); });
  }

  // Every lane of every group: commit, and plan again.
  void Round(Figures& figures) {
    for (uint32_t group = 0; group < bench_.groups; ++group) {
      for (uint32_t lane = 0; lane < bench_.lanes; ++lane) Step(group, lane, figures);
    }
    ++figures.steps;
  }

  void Step(uint32_t group, uint32_t lane, Figures& figures) {
    std::optional<protocol::StepResult>& result = results_[group * bench_.lanes + lane];
    if (result) {
      const uint64_t ended = figures.commit.Measure([&] {
        const absl::Status status = scheduler_.CommitStep(GroupId(group), *result, commit_);
        figures.valid = figures.valid && status.ok();
        return static_cast<uint64_t>(
            std::count_if(commit_.deltas.begin(), commit_.deltas.end(),
                          [](const auto& delta) { return delta.ended.has_value(); }));
      });
      figures.ended += ended;
      for (uint64_t i = 0; i < ended; ++i) Add(false, figures);
    }
    auto plans = figures.plan.Measure([&] { return scheduler_.PlanStep(GroupId(group), lane); });
    result.reset();
    if (plans.empty()) return;
    figures.request_steps += plans[0].sequences.size();
    result = AnswerTo(plans[0]);
    // Sending frees it.
    figures.plan.Measure([&] {
      plans.clear();
      return 0;
    });
  }

  const Case bench_;
  scheduler::ClusterScheduler scheduler_;
  Requests requests_;
  std::vector<std::optional<protocol::StepResult>> results_;  // by group and lane
  scheduler::StepCommit commit_;
  Figures warm_;
};

// ---- the control loop

// Keeps the plans that are sent; the clock is the machine's.
class PlanContext final : public protocol::Context {
 public:
  protocol::ActorId self() const override { return protocol::kCoordinatorActor; }
  absl::Time Now() const override {
    return absl::UnixEpoch() + absl::FromChrono(Clock::now().time_since_epoch());
  }
  absl::Status Send(protocol::ActorId to, protocol::Epoch, protocol::Message message) override {
    if (auto* form = std::get_if<protocol::FormGroup>(&message)) forms.emplace_back(to, *form);
    if (auto* plan = std::get_if<protocol::StepPlan>(&message)) {
      plans.emplace_back(to, std::move(*plan));
    }
    return absl::OkStatus();
  }
  protocol::TimerId StartTimer(absl::Duration) override { return {}; }
  void CancelTimer(protocol::TimerId) override {}
  uint64_t RandomUint64() override { return 1; }
  void Stop(absl::Status) override {}

  std::vector<std::pair<protocol::ActorId, protocol::FormGroup>> forms;
  std::vector<std::pair<protocol::ActorId, protocol::StepPlan>> plans;
};

class NoWaker final : public protocol::Waker {
 public:
  void Wake() override {}
};

class EndSink final : public coordinator::TokenSink {
 public:
  explicit EndSink(uint64_t& ended) : ended_(ended) {}
  void Deliver(coordinator::TokenDelta delta) override { ended_ += delta.finish ? 1 : 0; }

 private:
  uint64_t& ended_;
};

class ControlRun {
 public:
  ControlRun(const Case& bench, uint64_t seed)
      : bench_(bench),
        metrics_(registry_, bench.groups, bench.depth),
        door_({.queued_requests_max = UINT32_MAX, .queued_tokens_max = UINT64_MAX}, waker_),
        loop_(OptionsOf(bench), door_, metrics_, drained_),
        sink_(std::make_shared<EndSink>(ended_)),
        requests_(bench, seed) {
    for (uint32_t i = 0; i < bench.groups; ++i) {
      protocol::RegisterWorker registration;
      registration.geometry = GeometryOf(bench);
      Receive({protocol::NodeId(i + 1), 0}, protocol::Epoch(0), registration);
    }
    for (const auto& [worker, form] : std::exchange(context_.forms, {})) {
      Receive(worker, form.epoch, protocol::GroupFormed{form.group, form.rank, form.epoch});
    }
    for (uint32_t i = 0; i < bench.live; ++i) Add(true);
  }

  Figures Run(int steps) {
    Figures warm;
    for (int i = 0; i < kWarmSteps; ++i) Round(warm);
    Figures figures;
    allocations = 0;
    ended_ = 0;
    const uint64_t before = DraftTokens(loop_.scheduler());
    for (int i = 0; i < steps; ++i) Round(figures);
    figures.ended = ended_;
    figures.drafts = DraftTokens(loop_.scheduler()) - before;
    figures.hit_rate = HitRate(loop_.scheduler());
    figures.valid = scheduler::CheckInvariants(loop_.scheduler()).ok() && ended_ > 0 &&
                    loop_.scheduler().sequences().size() <= bench_.live;
    return figures;
  }

 private:
  static coordinator::ControlOptions OptionsOf(const Case& bench) {
    coordinator::ControlOptions options;
    options.limits = LimitsOf(bench);
    options.num_groups = bench.groups;
    options.term = protocol::Term(1);
    return options;
  }

  void Receive(protocol::ActorId from, protocol::Epoch epoch, protocol::Message message) {
    protocol::Envelope envelope;
    envelope.from = from;
    envelope.to = protocol::kCoordinatorActor;
    envelope.epoch = epoch;
    envelope.message = std::move(message);
    loop_.OnMessage(context_, std::move(envelope));
  }

  void Add(bool first) {
    coordinator::SubmitRequest request;
    request.id = protocol::RequestId(requests_.NextId());
    request.prompt_ids = requests_.Prompt();
    request.stop.max_tokens = requests_.Limit(first);
    request.sampling.seed = request.id.value();
    request.speculation.mode = protocol::VerificationMode::kRejection;
    request.arrival = Clock::now();
    request.sink = sink_;
    if (!door_.TrySubmit(std::move(request)).ok()) std::abort();
  }

  // Results of all groups arrive, and the loop runs once: commit, deliver, plan, send.
  void Round(Figures& figures) {
    const uint64_t before = ended_;
    auto plans = std::exchange(context_.plans, {});
    std::vector<std::pair<protocol::ActorId, protocol::StepResult>> results;
    for (auto& [worker, plan] : plans) {
      figures.request_steps += plan.sequences.size();
      results.emplace_back(worker, AnswerTo(plan));
    }
    figures.commit.Measure([&] {
      plans.clear();
      for (auto& [worker, result] : results) {
        const protocol::Epoch epoch = result.epoch;
        Receive(worker, epoch, std::move(result));
      }
      loop_.OnIdle(context_);
      return 0;
    });
    for (uint64_t i = before; i < ended_; ++i) Add(false);
    ++figures.steps;
  }

  const Case bench_;
  NoWaker waker_;
  protocol::MetricsRegistry registry_{{}};
  coordinator::CoordinatorMetrics metrics_;
  coordinator::FrontDoorQueue door_;
  std::atomic<bool> drained_ = false;
  coordinator::ControlLoop loop_;
  PlanContext context_;
  uint64_t ended_ = 0;
  std::shared_ptr<EndSink> sink_;
  Requests requests_;
};

// ---- output

bool Print(const Case& bench, const Figures& f, const RunIdentity& identity) {
  const double total = f.add.seconds + f.plan.seconds + f.commit.seconds;
  const auto steps = static_cast<double>(f.steps);
  const double ns = total * 1e9 / static_cast<double>(f.request_steps);
  // With drafts, the policy must have chosen among all of them and taken most.
  const double drafts = static_cast<double>(f.drafts) / static_cast<double>(f.request_steps);
  const bool valid = f.valid && drafts >= 0.8 * bench.depth && (f.hit_rate > 0.3) == bench.cached;
  const double churn = static_cast<double>(f.ended) / static_cast<double>(f.request_steps);
  const double allocs = static_cast<double>(allocations) / steps;
  RunIdentity run = identity;
  run.reps = static_cast<int>(f.steps);
  PrintCase(run,
            absl::StrCat(bench.name, "_live", bench.live, "_lanes", bench.lanes, "_groups",
                         bench.groups, "_depth", bench.depth, bench.cached ? "_cached" : ""),
            {{"live", JsonNumber(bench.live)},
             {"lanes", JsonNumber(bench.lanes)},
             {"groups", JsonNumber(bench.groups)},
             {"depth", JsonNumber(bench.depth)},
             {"churn", JsonNumber(churn)},
             {"drafts_per_request_step", JsonNumber(drafts)},
             {"hit_rate", JsonNumber(f.hit_rate)},
             {"sums_us", JsonNumber(f.sums_us)},
             {"audit_us", JsonNumber(f.audit_us)},
             {"add_us", JsonNumber(f.add.seconds * 1e6 / steps)},
             {"plan_us", JsonNumber(f.plan.seconds * 1e6 / steps)},
             {"commit_us", JsonNumber(f.commit.seconds * 1e6 / steps)},
             {"ns_per_request_step", JsonNumber(ns)},
             {"allocs_per_step", JsonNumber(allocs)},
             {"allocs_per_request_step",
              JsonNumber(static_cast<double>(allocations) / static_cast<double>(f.request_steps))}},
            valid);
  std::fprintf(stderr,
               "%-10s live %6u lanes %u groups %u depth %u%s  plan %9.1f us  commit %9.1f us  "
               "%7.1f ns per request and step  %s\n",
               bench.name.c_str(), bench.live, bench.lanes, bench.groups, bench.depth,
               bench.cached ? " cached" : "       ", f.plan.seconds * 1e6 / steps,
               f.commit.seconds * 1e6 / steps, ns, valid ? "" : "INVALID");
  return valid;
}

// What to run; empty or 0: everything.
struct Selection {
  uint64_t seed = std::random_device()();
  uint32_t live = 0;
  std::string name;
  std::string commit = "unknown";

  bool Has(const Case& bench) const {
    return (live == 0 || live == bench.live) && (name.empty() || name == bench.name);
  }
};

bool RunCase(Case bench, const Selection& selection, const RunIdentity& identity) {
  const int steps = bench.live == 1'000U ? 2'000 : 200;
  bool valid = true;
  bench.name = "scheduler";
  if (selection.Has(bench)) {
    valid = Print(bench, SchedulerRun(bench, identity.seed).Run(steps), identity);
  }
  bench.name = "control";
  if (selection.Has(bench)) {
    valid = Print(bench, ControlRun(bench, identity.seed).Run(steps), identity) && valid;
  }
  return valid;
}

int Run(const Selection& selection) {
  std::fprintf(stderr, "The control case counts its whole round as commit\n");
  const RunIdentity identity{
      .bench = "scheduler_bench", .commit = selection.commit, .seed = selection.seed, .reps = 1};
  bool valid = true;
  for (const uint32_t live : {1'000U, 10'000U}) {
    for (const uint32_t depth : {0U, 5U}) {
      for (const auto& [lanes, groups] : {std::pair{1U, 1U}, {2U, 1U}, {1U, 4U}}) {
        for (const bool cached : {false, true}) {
          if (cached && lanes > 1) continue;
          valid = RunCase({"", live, lanes, groups, depth, cached}, selection, identity) && valid;
        }
      }
    }
  }
  if (!selection.name.empty() && selection.name != "lookup") return valid ? 0 : 1;
  for (const uint32_t prompt : {4'096U, 32'768U, 131'072U}) {
    for (const bool hit : {true, false}) valid = RunLookup({prompt, hit}, identity) && valid;
  }
  return valid ? 0 : 1;
}

// False when an argument is not understood.
bool Parse(int argc, char** argv, Selection& selection) {
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (i + 1 == argc) return false;
    if (flag == "--seed" && absl::SimpleAtoi(argv[i + 1], &selection.seed)) continue;
    if (flag == "--live" && absl::SimpleAtoi(argv[i + 1], &selection.live)) continue;
    if (flag == "--commit") {
      selection.commit = argv[i + 1];
    } else if (flag == "--case") {
      selection.name = argv[i + 1];
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace skein::bench

int main(int argc, char** argv) {
  skein::bench::Selection selection;
  if (!skein::bench::Parse(argc, argv, selection)) {
    std::fprintf(stderr,
                 "usage: scheduler_bench [--seed N] [--live 1000|10000] "
                 "[--case scheduler|control|lookup] [--commit ID]\n");
    return 64;
  }
  return skein::bench::Run(selection);
}
