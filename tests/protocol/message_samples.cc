#include "tests/protocol/message_samples.h"

#include <limits>

namespace skein::tests {

using namespace protocol;  // every type below is one of the wire

StepPlan SamplePlan() {
  StepPlan plan{GroupId(1), RankId(2), Epoch(3), StepId(4), 1, {}, 0x123456789abcdef0u};
  for (uint32_t i = 0; i < 3; ++i) {
    SequenceStep step;
    step.sequence = SequenceId(100 + i);
    step.slot = SlotId(i);
    step.fresh_slot = i == 0;
    step.first_position = i == 0 ? 0 : 77 * i;
    for (uint32_t t = 0; t <= 5 * i; ++t) step.tokens.push_back(static_cast<int32_t>(1000 + t));
    step.table_size_before = i;
    for (uint32_t b = 0; b < i; ++b) step.new_blocks.push_back(BlockId(500 + b));
    step.sample = i != 1;
    step.sampling = {0.7F, 0.9F, 0.05F, 40, 0xdeadbeefcafeu, 5, i == 2};
    step.mode = static_cast<VerificationMode>(i);
    step.draft_depth = i == 0 ? 5 : 0;
    step.min_survival = 0.25F;
    if (i == 2) step.provided_drafts = {11, 12, 13};
    step.feed_drafter = i != 2;
    if (i == 0) {
      SequenceEdits edits;
      edits.edits.presence_penalty = 0.5F;
      edits.edits.frequency_penalty = -0.25F;
      edits.edits.repetition_penalty = 1.125F;
      edits.edits.bias = {{3, -100}, {4, -std::numeric_limits<float>::infinity()}};
      edits.edits.allowed_tokens = {1, 2, 3};
      edits.edits.bad_words = {{7}, {8, 9}};
      edits.prompt_length = 4;
      edits.history_begin = 1;
      edits.history = {1000, 1001};
      step.edits.value = std::make_shared<const SequenceEdits>(edits);
    }
    if (i == 2) step.masks = {{1, 2}, {3, 4}, {5, 6}, {0, 0}};
    step.shared_length = i == 1 ? 64 : 0;
    if (i == 1) step.restore_from = protocol::SlotId(0);
    if (i == 2) step.save_to = protocol::SlotId(9);
    if (i == 1) step.scoring = {2, 4, 31, 3};
    plan.sequences.push_back(step);
  }
  return plan;
}

StepResult SampleResult() {
  StepResult result;
  result.group = GroupId(1);
  result.rank = RankId(2);
  result.epoch = Epoch(3);
  result.step = StepId(4);
  result.lane = 1;
  result.status = StepStatus::kFailed;
  result.message = "device lost";
  result.device_time_us = 1234;
  result.sequences.push_back({SequenceId(9), {}});
  RowSummary row;
  row.position = 42;
  row.plain_token = 7;
  row.argmax_token = 8;
  row.plain_logprob = -0.25F;
  row.argmax_logprob = -std::numeric_limits<float>::infinity();
  row.flags = kRowNonFinite;
  row.top = {{7, -0.25F}, {8, -1.5F}};
  RowSummary verified = row;
  verified.draft_token = 9;
  verified.draft_logprob = -3.5F;
  verified.confidence = 0.875F;
  verified.target_probability = 0.03F;
  verified.draft_probability = 0.5F;
  verified.recovered_token = 10;
  verified.recovered_logprob = -2.5F;
  verified.residual_mass = 0.47F;
  result.draft_time_us = 321;
  result.expert_load = {true, {{4, 0, 7}, {1, 2}}};
  result.sequences.push_back({SequenceId(10), {verified, row}});
  result.sequences[0].scores = {{-0.5F, {{7, -0.25F}}}, {-1.75F, {}}};
  return result;
}

namespace {

RegisterWorker SampleRegistration() {
  RegisterWorker registration;
  registration.protocol_major = 1;
  registration.protocol_minor = 1;
  registration.build = "0.1.0";
  registration.backend = "cpu";
  registration.model = "hash";
  registration.incarnation = Incarnation(5);
  registration.geometry = {64, 100, 8, 512, 4096, 5, false, 16, 708, true, true};
  registration.tokenizer = "vocabulary";
  registration.cache_layout = "layout";
  registration.numerics = "cpu";
  registration.features = {"drafts", "other"};
  registration.predecessor_end = PredecessorEnd::kOutside;
  registration.rank = RankId(2);
  registration.num_ranks = 4;
  registration.block_address = "10.0.0.1:4000";
  registration.host = "0123456789abcdef";
  registration.group_address = "10.0.0.1:4001";
  return registration;
}

}  // namespace

std::vector<Message> SampleMessages() {
  return {SamplePlan(),
          SampleResult(),
          SampleRegistration(),
          FormGroup{GroupId(1),
                    RankId(1),
                    2,
                    Epoch(7),
                    "skein-1-7",
                    {{"here", "10.0.0.1:4001"}, {"there", ""}},
                    {{0, 1, 1, 0}, {1, 0}}},
          GroupFormed{GroupId(1), RankId(0), Epoch(7)},
          AbortEpoch{GroupId(1), Epoch(7), "rank 0 is gone"},
          Heartbeat{StepId(88), 2, 31},
          LeaseGrant{800},
          Shutdown{"stopped by the operator", true},
          MoveBlocks{TransferId(0x123456789abcdef0u),
                     GroupId(1),
                     Epoch(7),
                     MoveSide::kFetch,
                     {BlockId(4), BlockId(9)},
                     SlotId(12),
                     128,
                     "10.0.0.1:4000",
                     "layout",
                     "cpu",
                     5000},
          BlocksMoved{TransferId(0x123456789abcdef0u), GroupId(1), Epoch(7), MoveSide::kFetch,
                      MoveStatus::kLost, "rank 0 is gone", 4096, 250}};
}

}  // namespace skein::tests
