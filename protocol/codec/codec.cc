// One Write and one Read per message, then the two entry points. Only this folder knows KJ.
// Must never read a list before its size was checked.
#include "protocol/codec/codec.h"

#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/exception.h>

#include "absl/status/status.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"
#include "protocol/codec/edits_codec.h"
#include "protocol/codec/groups_codec.h"
#include "protocol/codec/list_limits.h"
#include "protocol/codec/moves_codec.h"
#include "protocol/codec/scores_codec.h"
#include "protocol/codec/text_codec.h"
#include "protocol/schema/control.capnp.h"
#include "protocol/schema/step.capnp.h"

namespace skein::protocol {
namespace {

constexpr std::string_view kUnknownType = "unknown";  // where a type has no name

absl::Status Write(const SequenceStep& in, wire::SequenceStep::Builder out) {
  if (in.tokens.size() > kStepTokensMax) {
    return TooLarge("SequenceStep.tokens", in.tokens.size(), kStepTokensMax);
  }
  if (in.new_blocks.size() > kStepBlocksMax) {
    return TooLarge("SequenceStep.new_blocks", in.new_blocks.size(), kStepBlocksMax);
  }
  if (in.provided_drafts.size() > kStepDraftsMax || in.draft_depth > kStepDraftsMax) {
    return TooLarge("SequenceStep drafts",
                    std::max<size_t>(in.provided_drafts.size(), in.draft_depth), kStepDraftsMax);
  }
  out.setSequence(in.sequence.value());
  out.setSlot(in.slot.value());
  out.setFreshSlot(in.fresh_slot);
  out.setFirstPosition(in.first_position);
  auto tokens = out.initTokens(static_cast<uint32_t>(in.tokens.size()));
  for (uint32_t i = 0; i < tokens.size(); ++i) tokens.set(i, in.tokens[i]);
  out.setTableSizeBefore(in.table_size_before);
  auto blocks = out.initNewBlocks(static_cast<uint32_t>(in.new_blocks.size()));
  for (uint32_t i = 0; i < blocks.size(); ++i) blocks.set(i, in.new_blocks[i].value());
  out.setSample(in.sample);
  auto sampling = out.initSampling();
  sampling.setTemperature(in.sampling.temperature);
  sampling.setTopP(in.sampling.top_p);
  sampling.setMinP(in.sampling.min_p);
  sampling.setTopK(in.sampling.top_k);
  sampling.setSeed(in.sampling.seed);
  sampling.setNumTopLogprobs(in.sampling.num_top_logprobs);
  sampling.setProcessedLogprobs(in.sampling.processed_logprobs);
  out.setMode(static_cast<uint8_t>(in.mode));
  out.setDraftDepth(in.draft_depth);
  out.setMinSurvival(in.min_survival);
  auto drafts = out.initProvidedDrafts(static_cast<uint32_t>(in.provided_drafts.size()));
  for (uint32_t i = 0; i < drafts.size(); ++i) drafts.set(i, in.provided_drafts[i]);
  out.setFeedDrafter(in.feed_drafter);
  out.setSharedLength(in.shared_length);
  if (in.restore_from) out.setRestoreFrom(in.restore_from->value() + 1);
  if (in.save_to) out.setSaveTo(in.save_to->value() + 1);
  SKEIN_RETURN_IF_ERROR(WriteScoring(in.scoring, out));
  return WriteEdits(in, out);
}

absl::Status ReadSampling(wire::RowSampling::Reader in, RowSampling& out) {
  out.temperature = in.getTemperature();
  out.top_p = in.getTopP();
  out.min_p = in.getMinP();
  out.top_k = in.getTopK();
  out.seed = in.getSeed();
  out.num_top_logprobs = in.getNumTopLogprobs();
  out.processed_logprobs = in.getProcessedLogprobs();
  if (!std::isfinite(out.temperature) || !std::isfinite(out.top_p) || !std::isfinite(out.min_p)) {
    return Malformed("RowSampling", "temperature, top_p or min_p is not finite");
  }
  if (out.top_k < 0) return Malformed("RowSampling.top_k", Concat(out.top_k, " is negative"));
  if (out.num_top_logprobs < 0 || out.num_top_logprobs > static_cast<int32_t>(kTopLogprobsMax)) {
    return Malformed("RowSampling.num_top_logprobs",
                     Concat(out.num_top_logprobs, "; from 0 to ", kTopLogprobsMax));
  }
  return absl::OkStatus();
}

absl::Status ReadSpeculation(wire::SequenceStep::Reader in, SequenceStep& out) {
  if (in.getMode() > static_cast<uint8_t>(VerificationMode::kCoupled)) {
    return Malformed("SequenceStep.mode", Concat(in.getMode(), " names no mode"));
  }
  out.mode = static_cast<VerificationMode>(in.getMode());
  out.draft_depth = in.getDraftDepth();
  out.min_survival = in.getMinSurvival();
  out.feed_drafter = in.getFeedDrafter();
  if (out.draft_depth > kStepDraftsMax) {
    return Malformed("SequenceStep.draft_depth",
                     Concat(out.draft_depth, "; at most ", kStepDraftsMax));
  }
  if (!std::isfinite(out.min_survival)) {
    return Malformed("SequenceStep.min_survival", "not finite");
  }
  const auto drafts = in.getProvidedDrafts();
  SKEIN_RETURN_IF_ERROR(CheckSize(drafts, "SequenceStep.provided_drafts", kStepDraftsMax));
  out.provided_drafts.reserve(drafts.size());
  for (const int32_t token : drafts) out.provided_drafts.push_back(token);
  return absl::OkStatus();
}

absl::Status Read(wire::SequenceStep::Reader in, SequenceStep& out) {
  out.sequence = SequenceId(in.getSequence());
  out.slot = SlotId(in.getSlot());
  out.fresh_slot = in.getFreshSlot();
  out.first_position = in.getFirstPosition();
  const auto tokens = in.getTokens();
  SKEIN_RETURN_IF_ERROR(CheckSize(tokens, "SequenceStep.tokens", kStepTokensMax));
  out.tokens.reserve(tokens.size());
  for (const int32_t token : tokens) out.tokens.push_back(token);
  out.table_size_before = in.getTableSizeBefore();
  const auto blocks = in.getNewBlocks();
  SKEIN_RETURN_IF_ERROR(CheckSize(blocks, "SequenceStep.new_blocks", kStepBlocksMax));
  out.new_blocks.reserve(blocks.size());
  for (const uint32_t block : blocks) out.new_blocks.push_back(BlockId(block));
  out.sample = in.getSample();
  out.shared_length = in.getSharedLength();
  if (in.getRestoreFrom() > 0) out.restore_from = SlotId(in.getRestoreFrom() - 1);
  if (in.getSaveTo() > 0) out.save_to = SlotId(in.getSaveTo() - 1);
  SKEIN_RETURN_IF_ERROR(ReadSpeculation(in, out));
  SKEIN_RETURN_IF_ERROR(ReadEdits(in, out));
  SKEIN_RETURN_IF_ERROR(ReadScoring(in, out.scoring));
  return ReadSampling(in.getSampling(), out.sampling);
}

absl::Status Write(const StepPlan& in, wire::StepPlan::Builder out) {
  if (in.sequences.size() > kPlanSequencesMax) {
    return TooLarge("StepPlan.sequences", in.sequences.size(), kPlanSequencesMax);
  }
  out.setGroup(in.group.value());
  out.setRank(in.rank.value());
  out.setEpoch(in.epoch.value());
  out.setStep(in.step.value());
  out.setLane(in.lane);
  out.setPlanHash(in.plan_hash);
  auto sequences = out.initSequences(static_cast<uint32_t>(in.sequences.size()));
  for (uint32_t i = 0; i < sequences.size(); ++i) {
    SKEIN_RETURN_IF_ERROR(Write(in.sequences[i], sequences[i]));
  }
  return absl::OkStatus();
}

absl::Status Read(wire::StepPlan::Reader in, StepPlan& out) {
  out.group = GroupId(in.getGroup());
  out.rank = RankId(in.getRank());
  out.epoch = Epoch(in.getEpoch());
  out.step = StepId(in.getStep());
  out.lane = in.getLane();
  out.plan_hash = in.getPlanHash();
  const auto sequences = in.getSequences();
  SKEIN_RETURN_IF_ERROR(CheckSize(sequences, "StepPlan.sequences", kPlanSequencesMax));
  out.sequences.reserve(sequences.size());
  for (const auto sequence : sequences) {
    SKEIN_RETURN_IF_ERROR(Read(sequence, out.sequences.emplace_back()));
  }
  return absl::OkStatus();
}

absl::Status Write(const VerificationSummary& in, wire::VerificationSummary::Builder out) {
  if (in.rows.size() > kSummaryRowsMax) {
    return TooLarge("VerificationSummary.rows", in.rows.size(), kSummaryRowsMax);
  }
  out.setSequence(in.sequence.value());
  auto rows = out.initRows(static_cast<uint32_t>(in.rows.size()));
  for (uint32_t i = 0; i < rows.size(); ++i) {
    const RowSummary& row = in.rows[i];
    SKEIN_RETURN_IF_ERROR(CheckTop(row.top, "RowSummary.top"));
    rows[i].setPosition(row.position);
    rows[i].setPlainToken(row.plain_token);
    rows[i].setArgmaxToken(row.argmax_token);
    rows[i].setPlainLogprob(row.plain_logprob);
    rows[i].setArgmaxLogprob(row.argmax_logprob);
    rows[i].setFlags(row.flags);
    rows[i].setDraftToken(row.draft_token);
    rows[i].setDraftLogprob(row.draft_logprob);
    rows[i].setConfidence(row.confidence);
    rows[i].setTargetProbability(row.target_probability);
    rows[i].setDraftProbability(row.draft_probability);
    rows[i].setRecoveredToken(row.recovered_token);
    rows[i].setRecoveredLogprob(row.recovered_logprob);
    rows[i].setResidualMass(row.residual_mass);
    WriteTop(row.top, rows[i]);
  }
  return WriteScores(in.scores, out);
}

absl::Status Read(wire::RowSummary::Reader in, RowSummary& out) {
  out.position = in.getPosition();
  out.plain_token = in.getPlainToken();
  out.argmax_token = in.getArgmaxToken();
  out.plain_logprob = in.getPlainLogprob();
  out.argmax_logprob = in.getArgmaxLogprob();
  out.flags = in.getFlags();
  out.draft_token = in.getDraftToken();
  out.draft_logprob = in.getDraftLogprob();
  out.confidence = in.getConfidence();
  out.target_probability = in.getTargetProbability();
  out.draft_probability = in.getDraftProbability();
  out.recovered_token = in.getRecoveredToken();
  out.recovered_logprob = in.getRecoveredLogprob();
  out.residual_mass = in.getResidualMass();
  return ReadTop(in.getTop(), "RowSummary.top", out.top);
}

absl::Status Read(wire::VerificationSummary::Reader in, VerificationSummary& out) {
  out.sequence = SequenceId(in.getSequence());
  const auto rows = in.getRows();
  SKEIN_RETURN_IF_ERROR(CheckSize(rows, "VerificationSummary.rows", kSummaryRowsMax));
  out.rows.reserve(rows.size());
  for (const auto row : rows) SKEIN_RETURN_IF_ERROR(Read(row, out.rows.emplace_back()));
  return ReadScores(in, out.scores);
}

absl::Status Write(const StepResult& in, wire::StepResult::Builder out) {
  if (in.sequences.size() > kPlanSequencesMax) {
    return TooLarge("StepResult.sequences", in.sequences.size(), kPlanSequencesMax);
  }
  out.setGroup(in.group.value());
  out.setRank(in.rank.value());
  out.setEpoch(in.epoch.value());
  out.setStep(in.step.value());
  out.setLane(in.lane);
  out.setStatus(static_cast<uint8_t>(in.status));
  WriteText(in.message, [&](capnp::Text::Reader text) { out.setMessage(text); });
  out.setDeviceTimeUs(in.device_time_us);
  out.setDraftTimeUs(in.draft_time_us);
  auto sequences = out.initSequences(static_cast<uint32_t>(in.sequences.size()));
  for (uint32_t i = 0; i < sequences.size(); ++i) {
    SKEIN_RETURN_IF_ERROR(Write(in.sequences[i], sequences[i]));
  }
  return WriteLoad(in.expert_load, out);
}

absl::Status Read(wire::StepResult::Reader in, StepResult& out) {
  out.group = GroupId(in.getGroup());
  out.rank = RankId(in.getRank());
  out.epoch = Epoch(in.getEpoch());
  out.step = StepId(in.getStep());
  out.lane = in.getLane();
  if (in.getStatus() > static_cast<uint8_t>(StepStatus::kAborted)) {
    return Malformed("StepResult.status", Concat(in.getStatus(), " names no status"));
  }
  out.status = static_cast<StepStatus>(in.getStatus());
  SKEIN_RETURN_IF_ERROR(ReadText(in.getMessage(), "StepResult.message", out.message));
  out.device_time_us = in.getDeviceTimeUs();
  out.draft_time_us = in.getDraftTimeUs();
  const auto sequences = in.getSequences();
  SKEIN_RETURN_IF_ERROR(CheckSize(sequences, "StepResult.sequences", kPlanSequencesMax));
  out.sequences.reserve(sequences.size());
  for (const auto sequence : sequences) {
    SKEIN_RETURN_IF_ERROR(Read(sequence, out.sequences.emplace_back()));
  }
  return ReadLoad(in, out.expert_load);
}

absl::Status Write(const RegisterWorker& in, wire::RegisterWorker::Builder out) {
  if (in.features.size() > kFeaturesMax) {
    return TooLarge("RegisterWorker.features", in.features.size(), kFeaturesMax);
  }
  out.setProtocolVersion(in.protocol_major);
  out.setProtocolMinor(in.protocol_minor);
  WriteText(in.build, [&](capnp::Text::Reader text) { out.setBuild(text); });
  WriteText(in.backend, [&](capnp::Text::Reader text) { out.setBackend(text); });
  WriteText(in.model, [&](capnp::Text::Reader text) { out.setModel(text); });
  WriteText(in.tokenizer, [&](capnp::Text::Reader text) { out.setTokenizer(text); });
  WriteText(in.cache_layout, [&](capnp::Text::Reader text) { out.setCacheLayout(text); });
  WriteText(in.numerics, [&](capnp::Text::Reader text) { out.setNumerics(text); });
  auto features = out.initFeatures(static_cast<uint32_t>(in.features.size()));
  for (uint32_t i = 0; i < features.size(); ++i) {
    WriteText(in.features[i], [&](capnp::Text::Reader text) { features.set(i, text); });
  }
  out.setPredecessorEnd(static_cast<uint8_t>(in.predecessor_end));
  out.setIncarnation(in.incarnation.value());
  out.setRank(in.rank.value());
  out.setNumRanks(in.num_ranks);
  WriteText(in.block_address, [&](capnp::Text::Reader text) { out.setBlockAddress(text); });
  WriteText(in.host, [&](capnp::Text::Reader text) { out.setHost(text); });
  WriteText(in.group_address, [&](capnp::Text::Reader text) { out.setGroupAddress(text); });
  auto geometry = out.initGeometry();
  geometry.setBlockTokens(in.geometry.block_tokens);
  geometry.setNumBlocks(in.geometry.num_blocks);
  geometry.setNumSlots(in.geometry.num_slots);
  geometry.setMaxRows(in.geometry.max_rows);
  geometry.setMaxModelLen(in.geometry.max_model_len);
  geometry.setMaxDraftTokens(in.geometry.max_draft_tokens);
  geometry.setEditsLogits(in.geometry.edits_logits);
  geometry.setNumCheckpoints(in.geometry.num_checkpoints);
  geometry.setRecomputeTokens(in.geometry.recompute_tokens);
  geometry.setScoresPrompts(in.geometry.scores_prompts);
  geometry.setProcessesLogprobs(in.geometry.processes_logprobs);
  return absl::OkStatus();
}

// What 1.1 added; absent fields read as empty.
absl::Status ReadIdentity(wire::RegisterWorker::Reader in, RegisterWorker& out) {
  SKEIN_RETURN_IF_ERROR(ReadText(in.getTokenizer(), "RegisterWorker.tokenizer", out.tokenizer));
  SKEIN_RETURN_IF_ERROR(
      ReadText(in.getCacheLayout(), "RegisterWorker.cache_layout", out.cache_layout));
  SKEIN_RETURN_IF_ERROR(ReadText(in.getNumerics(), "RegisterWorker.numerics", out.numerics));
  const auto features = in.getFeatures();
  SKEIN_RETURN_IF_ERROR(CheckSize(features, "RegisterWorker.features", kFeaturesMax));
  for (const auto feature : features) {
    SKEIN_RETURN_IF_ERROR(
        ReadText(feature, "RegisterWorker.features", out.features.emplace_back()));
  }
  if (in.getPredecessorEnd() > static_cast<uint8_t>(PredecessorEnd::kOrdered)) {
    return Malformed("RegisterWorker.predecessor_end",
                     Concat(in.getPredecessorEnd(), " names no end"));
  }
  out.predecessor_end = static_cast<PredecessorEnd>(in.getPredecessorEnd());
  return absl::OkStatus();
}

absl::Status Read(wire::RegisterWorker::Reader in, RegisterWorker& out) {
  out.protocol_major = in.getProtocolVersion();
  out.protocol_minor = in.getProtocolMinor();
  SKEIN_RETURN_IF_ERROR(ReadIdentity(in, out));
  SKEIN_RETURN_IF_ERROR(ReadText(in.getBuild(), "RegisterWorker.build", out.build));
  SKEIN_RETURN_IF_ERROR(ReadText(in.getBackend(), "RegisterWorker.backend", out.backend));
  SKEIN_RETURN_IF_ERROR(ReadText(in.getModel(), "RegisterWorker.model", out.model));
  out.incarnation = Incarnation(in.getIncarnation());
  out.rank = RankId(in.getRank());
  out.num_ranks = in.getNumRanks();
  if (out.rank.value() >= out.num_ranks) {
    return Malformed("RegisterWorker.rank",
                     Concat(out.rank.value(), " of ", out.num_ranks, " ranks"));
  }
  SKEIN_RETURN_IF_ERROR(
      ReadText(in.getBlockAddress(), "RegisterWorker.block_address", out.block_address));
  SKEIN_RETURN_IF_ERROR(ReadText(in.getHost(), "RegisterWorker.host", out.host));
  SKEIN_RETURN_IF_ERROR(
      ReadText(in.getGroupAddress(), "RegisterWorker.group_address", out.group_address));
  const auto geometry = in.getGeometry();
  out.geometry.block_tokens = geometry.getBlockTokens();
  out.geometry.num_blocks = geometry.getNumBlocks();
  out.geometry.num_slots = geometry.getNumSlots();
  out.geometry.max_rows = geometry.getMaxRows();
  out.geometry.max_model_len = geometry.getMaxModelLen();
  out.geometry.max_draft_tokens = geometry.getMaxDraftTokens();
  out.geometry.edits_logits = geometry.getEditsLogits();
  out.geometry.num_checkpoints = geometry.getNumCheckpoints();
  out.geometry.recompute_tokens = geometry.getRecomputeTokens();
  out.geometry.scores_prompts = geometry.getScoresPrompts();
  out.geometry.processes_logprobs = geometry.getProcessesLogprobs();
  return absl::OkStatus();
}

absl::Status Write(const GroupFormed& in, wire::GroupFormed::Builder out) {
  out.setGroup(in.group.value());
  out.setRank(in.rank.value());
  out.setEpoch(in.epoch.value());
  return absl::OkStatus();
}

absl::Status Read(wire::GroupFormed::Reader in, GroupFormed& out) {
  out = {GroupId(in.getGroup()), RankId(in.getRank()), Epoch(in.getEpoch())};
  return absl::OkStatus();
}

absl::Status Write(const AbortEpoch& in, wire::AbortEpoch::Builder out) {
  out.setGroup(in.group.value());
  out.setEpoch(in.epoch.value());
  WriteText(in.reason, [&](capnp::Text::Reader text) { out.setReason(text); });
  return absl::OkStatus();
}

absl::Status Read(wire::AbortEpoch::Reader in, AbortEpoch& out) {
  out.group = GroupId(in.getGroup());
  out.epoch = Epoch(in.getEpoch());
  return ReadText(in.getReason(), "AbortEpoch.reason", out.reason);
}

absl::Status Write(const Heartbeat& in, wire::Heartbeat::Builder out) {
  out.setLastStep(in.last_step.value());
  out.setQueuedPlans(in.queued_plans);
  out.setRunningMs(in.running_ms);
  return absl::OkStatus();
}

absl::Status Read(wire::Heartbeat::Reader in, Heartbeat& out) {
  out = {StepId(in.getLastStep()), in.getQueuedPlans(), in.getRunningMs()};
  return absl::OkStatus();
}

absl::Status Write(const LeaseGrant& in, wire::LeaseGrant::Builder out) {
  out.setDurationMs(in.duration_ms);
  return absl::OkStatus();
}

absl::Status Read(wire::LeaseGrant::Reader in, LeaseGrant& out) {
  out.duration_ms = in.getDurationMs();
  return absl::OkStatus();
}

absl::Status Write(const Shutdown& in, wire::Shutdown::Builder out) {
  WriteText(in.reason, [&](capnp::Text::Reader text) { out.setReason(text); });
  out.setRefused(in.refused);
  return absl::OkStatus();
}

absl::Status Read(wire::Shutdown::Reader in, Shutdown& out) {
  out.refused = in.getRefused();
  return ReadText(in.getReason(), "Shutdown.reason", out.reason);
}

// Which wire struct and number belong to a value type.
template <typename T>
struct WireOf;
#define SKEIN_WIRE(Type)                                       \
  template <>                                                  \
  struct WireOf<Type> {                                        \
    using Wire = wire::Type;                                   \
    static constexpr MessageType kType = MessageType::k##Type; \
    static constexpr std::string_view kName = #Type;           \
  };
SKEIN_WIRE(StepPlan)
SKEIN_WIRE(StepResult)
SKEIN_WIRE(RegisterWorker)
SKEIN_WIRE(FormGroup)
SKEIN_WIRE(GroupFormed)
SKEIN_WIRE(AbortEpoch)
SKEIN_WIRE(Heartbeat)
SKEIN_WIRE(LeaseGrant)
SKEIN_WIRE(Shutdown)
SKEIN_WIRE(MoveBlocks)
SKEIN_WIRE(BlocksMoved)
#undef SKEIN_WIRE

// Runs `body` and turns what it throws into a status.
template <typename Body>
absl::Status Catching(Body body) {
  absl::Status status;
  const auto exception = kj::runCatchingExceptions([&] { status = body(); });
  KJ_IF_MAYBE (thrown, exception) {
    return absl::InvalidArgumentError(
        Concat("not a Cap'n Proto message: ", thrown->getDescription().cStr()));
  }
  return status;
}

template <typename T>
absl::Status DecodeAs(kj::ArrayPtr<const capnp::word> words, Message& out) {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = 2 * words.size() + 64;
  options.nestingLimit = kNestingMax;
  T value;
  SKEIN_RETURN_IF_ERROR(Catching([&]() -> absl::Status {
    capnp::FlatArrayMessageReader reader(words, options);
    if (reader.getEnd() != words.end()) {
      return Malformed(WireOf<T>::kName, "bytes after the end of the message");
    }
    return Read(reader.getRoot<typename WireOf<T>::Wire>(), value);
  }));
  out = std::move(value);
  return absl::OkStatus();
}

// Tries the alternatives of Message in turn; `known` says whether one had the type.
template <size_t Index = 0>
absl::Status DecodeAny(MessageType type, kj::ArrayPtr<const capnp::word> words, Message& out) {
  if constexpr (Index < std::variant_size_v<Message>) {
    using T = std::variant_alternative_t<Index, Message>;
    if (WireOf<T>::kType == type) return DecodeAs<T>(words, out);
    return DecodeAny<Index + 1>(type, words, out);
  } else {
    return absl::InvalidArgumentError(
        Concat("message type ", static_cast<uint32_t>(type), " is not known to this build"));
  }
}

template <size_t Index = 0>
std::string_view NameOf(MessageType type) {
  if constexpr (Index < std::variant_size_v<Message>) {
    using T = std::variant_alternative_t<Index, Message>;
    return WireOf<T>::kType == type ? WireOf<T>::kName : NameOf<Index + 1>(type);
  } else {
    return kUnknownType;
  }
}

}  // namespace

MessageType TypeOf(const Message& message) {
  return std::visit([](const auto& value) { return WireOf<std::decay_t<decltype(value)>>::kType; },
                    message);
}

std::string_view MessageTypeName(MessageType type) { return NameOf<>(type); }

absl::StatusOr<std::vector<std::byte>> EncodeMessage(const Message& message) {
  std::vector<std::byte> bytes;
  SKEIN_RETURN_IF_ERROR(Catching([&]() -> absl::Status {
    capnp::MallocMessageBuilder builder(1024);
    SKEIN_RETURN_IF_ERROR(std::visit(
        [&](const auto& value) {
          using T = std::decay_t<decltype(value)>;
          return Write(value, builder.initRoot<typename WireOf<T>::Wire>());
        },
        message));
    const size_t size = capnp::computeSerializedSizeInWords(builder) * sizeof(capnp::word);
    if (size > kBodyBytesMax) {
      return absl::ResourceExhaustedError(Concat(MessageTypeName(TypeOf(message)), " needs ", size,
                                                 " bytes; at most ", kBodyBytesMax,
                                                 " fit a frame"));
    }
    const kj::Array<capnp::word> words = capnp::messageToFlatArray(builder);
    const auto flat = words.asBytes();
    const auto* begin = reinterpret_cast<const std::byte*>(flat.begin());
    bytes.assign(begin, begin + flat.size());
    return absl::OkStatus();
  }));
  return bytes;
}

absl::StatusOr<Message> DecodeMessage(MessageType type, std::span<const std::byte> body) {
  if (body.size() > kBodyBytesMax || body.size() % sizeof(capnp::word) != 0 || body.empty()) {
    return absl::InvalidArgumentError(Concat(MessageTypeName(type), ": a body of ", body.size(),
                                             " bytes; must be whole words, at most ",
                                             kBodyBytesMax));
  }
  // A frame gives no alignment: words are copied unless they happen to lie right.
  kj::Array<capnp::word> copy;
  kj::ArrayPtr<const capnp::word> words;
  const size_t num_words = body.size() / sizeof(capnp::word);
  if (reinterpret_cast<uintptr_t>(body.data()) % alignof(capnp::word) == 0) {
    words = kj::arrayPtr(reinterpret_cast<const capnp::word*>(body.data()), num_words);
  } else {
    copy = kj::heapArray<capnp::word>(num_words);
    std::memcpy(copy.begin(), body.data(), body.size());
    words = copy;
  }
  Message message;
  const absl::Status read = DecodeAny(type, words, message);
  if (read.ok()) return message;
  const std::string_view name = MessageTypeName(type);
  const std::string_view reason = StatusText(read);
  if (name == kUnknownType || reason.starts_with(name)) return read;
  return absl::InvalidArgumentError(Concat(name, ": ", reason));
}

}  // namespace skein::protocol
