#include "tests/sim/sim_step_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace skein::tests {
namespace {

constexpr size_t kPlansMax = 16;  // as StepExecutor
// The watchdog's grace after the deadline of a step.
constexpr absl::Duration kGrace = absl::Seconds(2);
constexpr int64_t kSlow = 20;
// How long a rank waits for the others of its epoch.
constexpr absl::Duration kMeetingMax = absl::Seconds(10);
// How long it takes to load the experts of another placement, and whose they are in this model.
constexpr absl::Duration kExpertLoadMax = absl::Seconds(3);
constexpr size_t kLayers = 2;
constexpr size_t kExperts = 9;

uint32_t RowsOf(const protocol::StepPlan& plan) {
  size_t rows = 0;
  for (const protocol::SequenceStep& step : plan.sequences) rows += step.tokens.size();
  return static_cast<uint32_t>(rows);
}

protocol::StepResult Failure(const protocol::StepPlan& plan, protocol::StepStatus status) {
  protocol::StepResult result;
  result.group = plan.group;
  result.rank = plan.rank;
  result.epoch = plan.epoch;
  result.step = plan.step;
  result.lane = plan.lane;
  result.status = status;
  result.message = "planned";
  return result;
}

}  // namespace

SimStepRunner::SimStepRunner(SimSystem& system, SimMeetings& meetings, SimTransfers& transfers,
                             const DeviceOptions& options, bool wrong_model, DeviceEvents events,
                             protocol::Waker& actor)
    : system_(system),
      options_(options),
      wrong_model_(wrong_model),
      events_(std::move(events)),
      actor_(actor),
      meetings_(meetings),
      transfers_(transfers) {
  memory_.Restart(options_.geometry);
  memory_.SetWrongDrafts(options_.wrong_drafts_one_in);
  deadline_.Observe(1, options_.step_max);
}

SimStepRunner::~SimStepRunner() { LeaveMeeting(); }

void SimStepRunner::After(absl::Duration delay, void (SimStepRunner::*what)()) {
  system_.After(delay, [this, what, turn = turn_, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.expired() && turn == turn_) (this->*what)();
  });
}

absl::Status SimStepRunner::Submit(protocol::StepPlan plan) {
  if (plan.epoch <= finished_ || plan.epoch < newest_) {
    events_.on_violation(
        4, absl::StrCat("a plan of epoch ", plan.epoch.value(), " is run after its end"));
  }
  if (plan.epoch == newest_ && plan.step <= last_step_) {
    events_.on_violation(
        4, absl::StrCat("step ", plan.step.value(), " is run after step ", last_step_.value()));
  }
  newest_ = plan.epoch;
  last_step_ = plan.step;
  if (unanswered_ >= kPlansMax) {
    return absl::ResourceExhaustedError(absl::StrCat(unanswered_, " plans wait"));
  }
  ++unanswered_;
  jobs_.emplace_back(std::move(plan));
  if (!busy()) Next();
  return absl::OkStatus();
}

// In a group what was submitted ends at once, and the group with it.
absl::Status SimStepRunner::Reset() {
  finished_ = newest_;
  ForgetMoves();
  if (meeting_ != nullptr) {
    LeaveMeeting();
    for (const Job& job : std::exchange(jobs_, {})) {
      if (const auto* plan = std::get_if<protocol::StepPlan>(&job)) {
        results_.push_back(Failure(*plan, protocol::StepStatus::kAborted));
      }
    }
    began_.reset();
    forming_ = false;
    ++turn_;
    actor_.Wake();
  }
  jobs_.emplace_back(Forget{});
  if (!busy()) Next();
  return absl::OkStatus();
}

absl::Status SimStepRunner::Form(const protocol::FormGroup& group) {
  jobs_.emplace_back(group);
  if (!busy()) Next();
  return absl::OkStatus();
}

std::optional<worker::FormOutcome> SimStepRunner::TakeFormed() {
  return std::exchange(formed_, std::nullopt);
}

absl::Duration SimStepRunner::RunningFor() const {
  return began_ ? system_.Now() - *began_ : absl::ZeroDuration();
}

std::vector<protocol::StepResult> SimStepRunner::TakeResults() {
  unanswered_ -= results_.size();
  return std::exchange(results_, {});
}

void SimStepRunner::Next() {
  ++turn_;
  while (!jobs_.empty()) {
    if (std::holds_alternative<protocol::FormGroup>(jobs_.front())) return Meet();
    if (std::holds_alternative<protocol::StepPlan>(jobs_.front())) {
      if (meeting_ == nullptr || !meeting_->broken()) return Begin();
      results_.push_back(Failure(plan(), protocol::StepStatus::kAborted));
      actor_.Wake();
    } else {
      memory_.Restart(options_.geometry);
    }
    jobs_.pop_front();
  }
}

// ---- meetings

void SimStepRunner::Meet() {
  const protocol::FormGroup group = std::get<protocol::FormGroup>(jobs_.front());
  forming_ = true;
  rank_ = group.rank.value();
  meeting_ = meetings_.Find(group.communicator, group.num_ranks);
  if (group.placement == placement_) return Join();
  CheckPlacement(group);
  After(system_.random().Between(absl::ZeroDuration(), kExpertLoadMax), &SimStepRunner::Load);
}

// Every rank has as many experts of a layer as it has memory for.
void SimStepRunner::CheckPlacement(const protocol::FormGroup& group) {
  bool right = group.placement.empty() || group.placement.size() == kLayers;
  for (const std::vector<uint16_t>& layer : group.placement) {
    right = right && layer.size() == kExperts;
    for (size_t rank = 0; right && rank < group.num_ranks; ++rank) {
      const size_t held =
          kExperts * (rank + 1) / group.num_ranks - kExperts * rank / group.num_ranks;
      right = static_cast<size_t>(std::count(layer.begin(), layer.end(), rank)) == held;
    }
  }
  if (!right) events_.on_violation(4, "a placement does not fit the ranks");
}

void SimStepRunner::Load() {
  placement_ = std::get<protocol::FormGroup>(jobs_.front()).placement;
  if (!placement_.empty() && system_.random().OneIn(options_.lose_experts_one_in)) {
    placement_.clear();
    return EndMeeting(absl::DataLossError("an expert cannot be read"));
  }
  ++turn_;
  Join();
}

void SimStepRunner::Join() {
  // The others may load for longer.
  After(kMeetingMax + kExpertLoadMax, &SimStepRunner::GiveUpMeeting);
  meeting_->Join(rank_, *this, placement_);
}

void SimStepRunner::EndMeeting(absl::Status status) {
  formed_ = {std::get<protocol::FormGroup>(jobs_.front()).epoch, std::move(status)};
  jobs_.pop_front();
  forming_ = false;
  if (!formed_->status.ok()) LeaveMeeting();
  actor_.Wake();
  Next();
}

void SimStepRunner::GiveUpMeeting() { EndMeeting(absl::DeadlineExceededError("nobody came")); }

void SimStepRunner::LeaveMeeting() {
  if (const auto left = std::exchange(meeting_, nullptr)) left->Leave(rank_);
}

void SimStepRunner::OnMet() { EndMeeting(absl::OkStatus()); }

void SimStepRunner::OnBroken() {
  if (forming_) return EndMeeting(absl::UnavailableError("a rank left"));
  if (began_ && !computing_) Abort();
}

// ---- steps

// Of the step of this rank; those of the others are as long.
absl::Duration SimStepRunner::Deadline() const { return deadline_.For(RowsOf(plan())); }

void SimStepRunner::Begin() {
  began_ = system_.Now();
  computing_ = false;
  if (meeting_ == nullptr) return Compute();
  After(Deadline(), &SimStepRunner::GiveUp);
  meeting_->Begin(rank_, plan());
}

void SimStepRunner::OnStepBegun() {
  ++turn_;
  Compute();
}

void SimStepRunner::Compute() {
  computing_ = true;
  SimRandom& random = system_.random();
  if (random.OneIn(options_.hang_one_in)) {
    if (meeting_ != nullptr) meeting_->Hang();
    return After(Deadline() + kGrace, &SimStepRunner::Stuck);
  }
  absl::Duration took = random.Between(options_.step_min, options_.step_max);
  if (random.OneIn(options_.slow_one_in)) took *= kSlow;
  After(took, &SimStepRunner::Finish);
}

void SimStepRunner::Stuck() { events_.on_death("a step ran past its deadline"); }

void SimStepRunner::Die() { events_.on_death("a step ended the process"); }

// The others do not come: this rank leaves, which ends it for all.
void SimStepRunner::GiveUp() {
  meeting_->Leave(rank_);
  Abort();
}

// The step ends for want of another rank.
void SimStepRunner::Abort() {
  results_.push_back(Failure(plan(), protocol::StepStatus::kAborted));
  jobs_.pop_front();
  began_.reset();
  actor_.Wake();
  Next();
}

bool SimStepRunner::Has(const protocol::StepPlan& plan, int32_t token) const {
  return std::any_of(
      plan.sequences.begin(), plan.sequences.end(), [token](const protocol::SequenceStep& step) {
        return std::find(step.tokens.begin(), step.tokens.end(), token) != step.tokens.end();
      });
}

void SimStepRunner::Finish() {
  if (meeting_ != nullptr && meeting_->broken()) return Abort();
  if (meeting_ != nullptr && meeting_->hung()) {
    computing_ = false;
    return After(Deadline(), &SimStepRunner::GiveUp);
  }
  // What ends the process is last, since it drops this object. Rows go to the experts of any rank.
  if (Has(plan(), kPoisonToken)) {
    if (meeting_ == nullptr) return Die();
    return meeting_->rank(system_.random().Below(meeting_->num_ranks())).Die();
  }
  if (system_.random().OneIn(options_.death_one_in)) return Die();
  const protocol::StepPlan plan = std::get<protocol::StepPlan>(std::move(jobs_.front()));
  jobs_.pop_front();
  deadline_.Observe(RowsOf(plan), system_.Now() - *began_);
  results_.push_back(Run(plan));
  if (meeting_ != nullptr && results_.back().status != protocol::StepStatus::kOk) {
    meeting_->Leave(rank_);
  }
  began_.reset();
  actor_.Wake();
  Next();
}

protocol::StepResult SimStepRunner::Run(const protocol::StepPlan& plan) {
  if (Has(plan, kFailingToken) || system_.random().OneIn(options_.fail_one_in)) {
    return Failure(plan, protocol::StepStatus::kFailed);
  }
  protocol::StepResult result = memory_.Run(plan);
  if (meeting_ != nullptr && system_.random().OneIn(4)) CountExperts(result.expert_load);
  if (!memory_.defect().empty()) events_.on_violation(1, memory_.defect());
  if (!wrong_model_) return result;
  for (protocol::VerificationSummary& summary : result.sequences) {
    for (protocol::RowSummary& row : summary.rows) {
      row.argmax_token = (row.argmax_token + 1) % 50;
      row.plain_token = (row.plain_token + 1) % 50;
    }
  }
  return result;
}

// Two experts that lie side by side are hot, others by and by.
void SimStepRunner::CountExperts(protocol::ExpertLoad& load) {
  load.prefill = system_.random().OneIn(2);
  const auto hot = static_cast<size_t>(absl::ToUnixSeconds(system_.Now())) % kExperts;
  for (size_t layer = 0; layer < kLayers; ++layer) {
    std::vector<uint32_t>& counts = load.counts.emplace_back();
    for (size_t e = 0; e < kExperts; ++e) counts.push_back(system_.random().Pick(1, 40));
    counts[hot] += 900;
    counts[(hot + 1) % kExperts] += 900;
  }
}

}  // namespace skein::tests
