// Calls of the sampler, with the edits before it: every truncation, greedy rows, masked rows, rows
// with NaN, ties.
#include <limits>

#include "kernels/ops/draft.h"
#include "kernels/ops/logit_edits.h"
#include "kernels/ops/sampling.h"
#include "tests/kernels/conformance.h"

namespace skein::kernels {
namespace {

// Parameters of a row by its id.
SampleParams ParamsOf(uint32_t id) {
  SampleParams params;
  params.seed = 0x123456789abcdefull * (id + 1);
  params.position = id * 17;
  params.temperature = id % 4 == 0 ? 0.0f : id % 4 == 1 ? 1.0f : id % 4 == 2 ? 0.3f : 2.0f;
  if (id % 3 == 1) params.top_k = static_cast<int32_t>(id % 9 * 12 + 1);
  if (id % 5 >= 3) params.top_p = id % 2 == 0 ? 0.9f : 0.5f;
  if (id % 7 >= 5) params.min_p = 0.05f;
  params.num_top = static_cast<int32_t>(id % 4) * 2;
  if (id / 2 % 3 == 1) params.logprobs = LogprobForm::kProcessed;
  return params;
}

double Logit(uint32_t id, int64_t v) {
  constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
  TestRandom random(63, id * 8192 + static_cast<uint32_t>(v));
  if (id % 11 == 3) return kMinusInfinity;
  if (id % 11 == 7) return v == 100 ? 1.5 : kMinusInfinity;
  if (id % 13 == 6) return 2.0;
  if (id % 13 == 9 && v == 40) return std::numeric_limits<double>::infinity();
  if (random.Below(10) == 0) return kMinusInfinity;
  return 3.0 * static_cast<double>(random.Bell());
}

// A row before its edits: the sampled logits are another's, so nothing can be taken for the other.
double RawLogit(uint32_t id, int64_t v) {
  TestRandom random(67, id * 8192 + static_cast<uint32_t>(v));
  return id % 13 == 11 && v == 70 ? std::numeric_limits<double>::infinity()
                                  : 3.0 * static_cast<double>(random.Bell());
}

Instance SampleCall(const Rows& rows, int vocab, bool edited) {
  CallBuilder call(rows);
  SampleTokens::Args args;
  args.logits = call.InBy(DType::kF32, {vocab}, Logit);
  if (edited) args.raw = call.InBy(DType::kF32, {vocab}, RawLogit);
  args.params = call.InBy(DType::kU8, {sizeof(SampleParams)}, [](uint32_t id, int64_t byte) {
    const SampleParams params = ParamsOf(id);
    return static_cast<double>(reinterpret_cast<const uint8_t*>(&params)[byte]);
  });
  args.record = call.WholeOut("record", DType::kU8,
                              {rows.size(), static_cast<int64_t>(sizeof(SampleRecord))});
  args.top_id = call.Out("top_id", DType::kI32, {5}, Tolerance::kBits);
  args.top_logprob = call.Out("top_logprob", DType::kF32, {5}, Tolerance::kF32);
  args.chosen = call.Out("chosen", DType::kI32, {}, Tolerance::kBits);
  Instance instance =
      call.Finish<SampleTokens>({vocab, 5, DType::kF32, static_cast<int>(rows.size())}, args);
  instance.outputs[0].tolerance = Tolerance::kRecord;
  instance.outputs[0].per_row = true;
  return instance;
}

constexpr uint32_t kDraftRows = 40;

// Verification of a row: drafts of every form, also ones that the target cuts off.
VerifyParams VerifyOf(uint32_t id, int vocab) {
  VerifyParams params;
  params.sampling = ParamsOf(id);
  if (params.sampling.temperature == 0) params.sampling.temperature = 0.7f;
  TestRandom random(64, id);
  params.draft_token = static_cast<int32_t>(random.Below(static_cast<uint32_t>(vocab)));
  params.draft_row = static_cast<int32_t>(id % kDraftRows);
  // Drafts that do not exist.
  if (id % 11 == 3) params.draft_token = -1;
  if (id % 13 == 4) params.draft_row = kDraftRows;
  params.form = id % 6 == 5   ? DraftForm::kNone
                : id % 6 == 4 ? DraftForm::kPoint
                              : DraftForm::kLogits;
  return params;
}

// The draft's logits: near the target's in some rows, unrelated in others, once not a number.
double DraftLogit(uint32_t id, int64_t v) {
  TestRandom random(65, id * 8192 + static_cast<uint32_t>(v));
  if (id % 17 == 8 && v == 3) return std::numeric_limits<double>::quiet_NaN();
  if (id % 3 == 0) return Logit(id, v);
  if (id % 3 == 1) return Logit(id, v) + 0.5 * static_cast<double>(random.Bell());
  return 2.0 * static_cast<double>(random.Bell());
}

Instance VerifyCall(const Rows& rows, int vocab, bool edited) {
  CallBuilder call(rows);
  VerifyDrafts::Args args;
  args.logits = call.InBy(DType::kF32, {vocab}, Logit);
  if (edited) args.raw = call.InBy(DType::kF32, {vocab}, RawLogit);
  args.draft_logits = call.SharedBy(DType::kF32, {kDraftRows, vocab}, [vocab](int64_t i) {
    return DraftLogit(static_cast<uint32_t>(i / vocab), i % vocab);
  });
  args.params = call.InBy(DType::kU8, {sizeof(VerifyParams)}, [vocab](uint32_t id, int64_t byte) {
    const VerifyParams params = VerifyOf(id, vocab);
    return static_cast<double>(reinterpret_cast<const uint8_t*>(&params)[byte]);
  });
  const auto out = [&](const char* name) {
    return call.Out(name, DType::kF32, {}, Tolerance::kF32);
  };
  args.target_probability = out("target_probability");
  args.draft_probability = out("draft_probability");
  args.residual_mass = out("residual_mass");
  args.recovered = call.Out("recovered", DType::kI32, {}, Tolerance::kBits);
  args.draft_logprob = out("draft_logprob");
  args.recovered_logprob = out("recovered_logprob");
  args.flags = call.Out("flags", DType::kI32, {}, Tolerance::kBits);
  return call.Finish<VerifyDrafts>({vocab, DType::kF32, static_cast<int>(rows.size())}, args);
}

constexpr int kEntries = 35;
constexpr int kEntriesOfRow = 7;
constexpr int kMaskRows = 4;

// Entry i: tokens differ among those of a row, and one in six is outside the vocabulary.
TokenEdit EntryOf(int64_t i, int vocab) {
  TokenEdit entry;
  entry.token = static_cast<int32_t>((i * 37 + 5) % vocab);
  if (i % 6 == 4) entry.token = i % 12 == 4 ? -1 : vocab;
  entry.output_count = static_cast<int32_t>(i % 4);
  entry.in_prompt = i % 3 == 0 ? 1 : 0;
  entry.bias = i % 5 == 0   ? -std::numeric_limits<float>::infinity()
               : i % 5 == 1 ? 0.0f
                            : static_cast<float>(i % 7) - 3.25f;
  return entry;
}

LogitEdit EditOf(uint32_t id) {
  LogitEdit edit;
  const uint32_t form = id % 8;
  edit.mask_row = static_cast<int32_t>(id % (kMaskRows + 1)) - 1;
  if (form == 0) return edit;
  edit.first_entry = static_cast<int32_t>(id * kEntriesOfRow % kEntries);
  edit.num_entries = kEntriesOfRow;
  edit.first_draft = static_cast<int32_t>(id % 20);
  edit.num_drafts = static_cast<int32_t>(id % 6);
  if ((form & 1) != 0) edit.presence = 0.625f;
  if ((form & 2) != 0) edit.frequency = -0.3f;
  if ((form & 4) != 0) edit.repetition = id % 3 == 0 ? 0.7f : 1.3f;
  return edit;
}

template <typename T>
double ByteOf(const T& value, int64_t byte) {
  return static_cast<double>(reinterpret_cast<const uint8_t*>(&value)[byte]);
}

// Masks of ones, of nothing, alternating and drawn; bits beyond the vocabulary are set.
double MaskWord(int64_t row, int64_t word) {
  if (row < 3) return row == 0 ? -1 : row == 1 ? 0 : 0x55555555;
  TestRandom random(68, static_cast<uint32_t>(word));
  return static_cast<double>(static_cast<int32_t>(random.Below(0x7fffffff)));
}

Instance EditCall(const Rows& rows, int vocab) {
  CallBuilder call(rows);
  EditLogits::Args args;
  args.raw = call.InBy(DType::kF32, {vocab}, Logit);
  args.edits = call.InBy(DType::kU8, {sizeof(LogitEdit)},
                         [](uint32_t id, int64_t byte) { return ByteOf(EditOf(id), byte); });
  constexpr auto kBytes = static_cast<int64_t>(sizeof(TokenEdit));
  args.entries = call.SharedBy(DType::kU8, {kEntries, kBytes}, [vocab](int64_t i) {
    return ByteOf(EntryOf(i / kBytes, vocab), i % kBytes);
  });
  args.drafts = call.SharedBy(DType::kI32, {32}, [vocab](int64_t i) {
    return static_cast<double>(EntryOf(i * 3 % kEntries, vocab).token);
  });
  const int64_t words = MaskWords(vocab);
  args.mask = call.SharedBy(DType::kI32, {kMaskRows, words},
                            [words](int64_t i) { return MaskWord(i / words, i % words); });
  args.logits = call.Out("logits", DType::kF32, {vocab}, Tolerance::kBits);
  return call.Finish<EditLogits>({vocab, DType::kF32}, args);
}

constexpr int kPlacedVocab = 97;

// Tokens around both ends of the vocabulary, counts up to the depth.
Instance PlaceCall(const Rows& rows, int depth, int order) {
  CallBuilder call(rows);
  PlaceDrafts::Args args;
  const auto record_bytes = static_cast<int64_t>(sizeof(SampleRecord));
  args.record = call.InBy(DType::kU8, {depth * record_bytes}, [=](uint32_t id, int64_t byte) {
    TestRandom random(66, id * 16 + static_cast<uint32_t>(byte / record_bytes));
    SampleRecord record;
    record.token = static_cast<int32_t>(random.Below(kPlacedVocab + 2)) - 1;
    return static_cast<double>(reinterpret_cast<const uint8_t*>(&record)[byte % record_bytes]);
  });
  args.count = call.InBy(DType::kI32, {}, [depth](uint32_t id, int64_t) {
    return static_cast<double>(id % static_cast<uint32_t>(depth + 1));
  });
  args.ids = call.InOut("ids", DType::kI32, {1 + depth}, Draw::kBell, Tolerance::kBits);
  if (order > 0) {
    args.ngram =
        call.InOut("ngram", DType::kI32, {(1 + depth) * order}, Draw::kBell, Tolerance::kBits);
    args.token_map = call.SharedBy(DType::kI32, {kPlacedVocab},
                                   [](int64_t i) { return static_cast<double>(i * 7 % 31); });
  }
  const auto verify_bytes = static_cast<int64_t>(sizeof(VerifyParams));
  args.verify_params = call.InOut("verify_params", DType::kU8, {(1 + depth) * verify_bytes},
                                  Draw::kE2m1, Tolerance::kBits);
  return call.Finish<PlaceDrafts>({depth, order, kPlacedVocab}, args);
}

}  // namespace

void AddSamplingCases(std::vector<Case>& cases) {
  for (const int vocab : {101, 503, 1501}) {
    for (const bool edited : {false, true}) {
      const std::string name = "vocabulary " + std::to_string(vocab) + (edited ? ", edited" : "");
      cases.push_back({OpId::kSampleTokens, name, [vocab, edited](const Rows& rows) {
                         return SampleCall(rows, vocab, edited);
                       }});
      cases.push_back({OpId::kVerifyDrafts, name, [vocab, edited](const Rows& rows) {
                         return VerifyCall(rows, vocab, edited);
                       }});
    }
    cases.push_back({OpId::kEditLogits, "vocabulary " + std::to_string(vocab),
                     [vocab](const Rows& rows) { return EditCall(rows, vocab); }});
  }
  for (const int order : {0, 4}) {
    cases.push_back({OpId::kPlaceDrafts, order == 0 ? "tokens alone" : "with 4-grams",
                     [order](const Rows& rows) { return PlaceCall(rows, 5, order); }});
  }
}

}  // namespace skein::kernels
