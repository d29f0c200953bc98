// Choosing and verifying tokens: a block per row. Truncation by radix descent over exact integer
// weights, the Gumbel race in f64 from the shared polynomials; a token whose noise cannot win is
// skipped on a sound bound.
#include <limits>

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/select.cuh"
#include "kernels/exact_math.h"
#include "kernels/ops/sampling.h"
#include "kernels/philox.h"
#include "kernels/sm90/family.cuh"

namespace skein::kernels::sm90 {
namespace {

using cuda::kWarp;
using cuda::OrderedKey;

constexpr unsigned kThreads = 1024;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kLn2 = 0.693147180559945309417;
constexpr double kSlack = 1e-6;  // above the rounding of any key that is compared with a bound
constexpr int kNone = std::numeric_limits<int>::max();

struct Scratch {
  cuda::SelectScratch select;
  unsigned counts[kWarp];
  unsigned sums[kWarp + 1];
  float floats[kWarp + 1];
  double doubles[kWarp + 1];
  int ints[kWarp + 1];
  unsigned long long masses[kWarp + 1];
  double race_key[kWarp];
  int race_token[kWarp];
  int tie;
};

// What is known of a row of logits.
struct RowFacts {
  const float* z;
  int vocab;
  float largest;
  int argmax;      // the lowest id at `largest`
  double log_sum;  // ln of the sum of exp(z)
};

__device__ RowFacts LookAt(const float* z, int vocab, Scratch& scratch) {
  RowFacts facts{z, vocab, 0, kNone, 0};
  float largest = -kInf;
  for (int v = static_cast<int>(threadIdx.x); v < vocab; v += static_cast<int>(kThreads)) {
    largest = cuda::LargerOrNan()(largest, z[v]);
  }
  facts.largest = cuda::BlockReduce(largest, scratch.floats, cuda::LargerOrNan());
  if (facts.largest != facts.largest || facts.largest == -kInf) return facts;
  int argmax = kNone;
  double sum = 0;
  for (int v = static_cast<int>(threadIdx.x); v < vocab; v += static_cast<int>(kThreads)) {
    if (z[v] == facts.largest) argmax = min(argmax, v);
    if (facts.largest != kInf) sum += ExactExp(double{z[v]} - double{facts.largest});
  }
  facts.argmax =
      cuda::BlockReduce(argmax, scratch.ints, [](int a, int b) { return a < b ? a : b; });
  const double total = cuda::BlockSum(sum, scratch.doubles);
  facts.log_sum = facts.largest == kInf ? double{kInf} : double{facts.largest} + ExactLog(total);
  return facts;
}

__device__ bool IsNan(const RowFacts& facts) { return facts.largest != facts.largest; }

__device__ float LogProb(const RowFacts& facts, int token) {
  const float z = facts.z[token];
  return z == kInf ? 0.0f : static_cast<float>(double{z} - facts.log_sum);
}

// Weight of a token in units of 2^-40 of the most likely one.
__device__ unsigned long long Weight(float z, float largest, const SampleParams& params) {
  const double x = (double{z} - double{largest}) / double{params.temperature};
  if (x < -28) return 0;  // e^-28 * 2^40 is below 1
  return static_cast<unsigned long long>(ExactExp(x) * 0x1p40);
}

// The tokens that survive truncation.
struct Survivors {
  uint32_t key = cuda::kMinusInfinityKey + 1;  // those above survive,
  int tie = kNone;                             // at it those up to this id
  double least = 0;                            // and of them those with this weight

  __device__ bool Has(const RowFacts& facts, const SampleParams& params, int v) const {
    const float z = facts.z[v];
    if (z == -kInf) return false;
    const uint32_t k = OrderedKey(z);
    if (k < key || (k == key && v > tie)) return false;
    return least == 0 || z == facts.largest ||
           static_cast<double>(Weight(z, facts.largest, params)) >= least;
  }
};

// The id of the `wanted`-th token with this key, or kNone when there are no more than that.
__device__ int TieOf(const RowFacts& facts, uint32_t key, unsigned long long wanted,
                     Scratch& scratch) {
  if (threadIdx.x == 0) scratch.tie = kNone;
  __syncthreads();
  unsigned long long seen = 0;
  for (int begin = 0; begin < facts.vocab && seen < wanted; begin += static_cast<int>(kThreads)) {
    const int v = begin + static_cast<int>(threadIdx.x);
    const bool same = v < facts.vocab && OrderedKey(facts.z[v]) == key;
    const cuda::Position position = cuda::BlockCount(same, scratch.counts);
    if (same && seen + position.before + 1 == wanted) scratch.tie = v;
    seen += position.total;
  }
  __syncthreads();
  const int tie = scratch.tie;
  __syncthreads();
  return tie;
}

__device__ Survivors Truncate(const RowFacts& facts, const SampleParams& params, Scratch& scratch) {
  Survivors survivors;
  const auto key = [&](int64_t v) { return OrderedKey(facts.z[v]); };
  if (params.top_k > 0) {
    unsigned allowed = 0;
    for (int v = static_cast<int>(threadIdx.x); v < facts.vocab; v += static_cast<int>(kThreads)) {
      allowed += facts.z[v] != -kInf ? 1 : 0;
    }
    const unsigned total = cuda::BlockSum(allowed, scratch.sums);
    if (total > static_cast<unsigned>(params.top_k)) {
      const cuda::Cut cut = cuda::FindCut(
          facts.vocab, static_cast<unsigned long long>(params.top_k), key,
          [&](int64_t v) { return facts.z[v] != -kInf ? 1ull : 0ull; }, scratch.select);
      survivors.key = cut.key;
      survivors.tie = TieOf(facts, cut.key, cut.equal, scratch);
    }
  }
  if (params.top_p < 1) {
    const auto mass = [&](int64_t v) {
      return survivors.Has(facts, params, static_cast<int>(v))
                 ? Weight(facts.z[v], facts.largest, params)
                 : 0ull;
    };
    unsigned long long mine = 0;
    for (int v = static_cast<int>(threadIdx.x); v < facts.vocab; v += static_cast<int>(kThreads)) {
      mine += mass(v);
    }
    const unsigned long long total = cuda::BlockSum(mine, scratch.masses);
    const auto share =
        static_cast<unsigned long long>(ceil(double{params.top_p} * static_cast<double>(total)));
    const unsigned long long wanted = share == 0 ? 1 : share;
    const cuda::Cut cut = cuda::FindCut(facts.vocab, wanted, key, mass, scratch.select);
    // All tokens at the cut weigh the same: as many as reach the mass.
    const uint32_t bits = cut.key >> 31 != 0 ? cut.key ^ 0x80000000u : ~cut.key;
    const unsigned long long each = Weight(__uint_as_float(bits), facts.largest, params);
    const unsigned long long equal = each == 0 ? 1 : (cut.equal + each - 1) / each;
    survivors.key = cut.key;
    survivors.tie = TieOf(facts, cut.key, equal, scratch);
  }
  if (params.min_p > 0) survivors.least = double{params.min_p} * 0x1p40;
  return survivors;
}

// The best token of a race, by key and then by the lower id.
struct Racer {
  double key = -std::numeric_limits<double>::infinity();
  int token = kNone;

  __device__ void Meet(double other_key, int other) {
    if (other == kNone) return;
    if (token == kNone || other_key > key || (other_key == key && other < token)) {
      key = other_key;
      token = other;
    }
  }
};

// The best of all threads' racers, for each of them.
__device__ Racer BestOfBlock(Racer best, Scratch& scratch) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const double other_key = __shfl_xor_sync(cuda::kAllLanes, best.key, offset);
    const int other = __shfl_xor_sync(cuda::kAllLanes, best.token, offset);
    best.Meet(other_key, other);
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (threadIdx.x % kWarp == 0) {
    scratch.race_key[warp] = best.key;
    scratch.race_token[warp] = best.token;
  }
  __syncthreads();
  Racer winner;
  for (int w = 0; w < static_cast<int>(kThreads) / kWarp; ++w) {
    winner.Meet(scratch.race_key[w], scratch.race_token[w]);
  }
  __syncthreads();
  return winner;
}

// Runs the race over the tokens for which `enter(v, scaled)` is true and sets their logarithmic
// weight; every thread gets the winner, kNone if nobody entered.
template <typename Enter>
__device__ int Race(int vocab, const SampleParams& params, RandomPurpose purpose,
                    const Enter& enter, Scratch& scratch) {
  Racer best;
  const int blocks = (vocab + 3) / 4;
  for (int block = static_cast<int>(threadIdx.x); block < blocks;
       block += static_cast<int>(kThreads)) {
    PhiloxBlock high = {}, low = {};
    bool have_high = false, have_low = false;
    for (int i = 0; i < 4; ++i) {
      const int v = block * 4 + i;
      double scaled = 0;
      if (v >= vocab || !enter(v, scaled)) continue;
      if (scaled + kMostGumbelNoise + kSlack < best.key) continue;
      if (!have_high) {
        high = RandomBlock(params.seed, params.position, purpose, static_cast<uint32_t>(block), 0);
        have_high = true;
      }
      // -ln(-ln u) < -ln(1 - u) and 1 - u > (2^32 - 1 - high) * 2^-32: a bound from leading zeros.
      const uint32_t rest = ~high[static_cast<size_t>(i)];
      if (rest != 0 && scaled + (__clz(static_cast<int>(rest)) + 1) * kLn2 + kSlack < best.key) {
        continue;
      }
      if (!have_low) {
        low = RandomBlock(params.seed, params.position, purpose, static_cast<uint32_t>(block), 1);
        have_low = true;
      }
      best.Meet(scaled + GumbelNoise(high[static_cast<size_t>(i)], low[static_cast<size_t>(i)]), v);
    }
  }
  return BestOfBlock(best, scratch).token;
}

__device__ int Draw(const RowFacts& facts, const SampleParams& params, Scratch& scratch) {
  if (params.temperature < 1e-5f || facts.largest == kInf) return facts.argmax;
  const Survivors survivors = Truncate(facts, params, scratch);
  const auto enter = [&](int v, double& scaled) {
    if (!survivors.Has(facts, params, v)) return false;
    scaled = double{facts.z[v]} / double{params.temperature};
    return true;
  };
  return Race(facts.vocab, params, params.purpose, enter, scratch);
}

// A distribution under temperature and truncation: a cut and a normaliser.
struct Distribution {
  RowFacts facts;
  Survivors survivors;
  double total = 0;  // 0: the row gives no distribution
  bool point = false;
  int token = -1;  // of a point

  __device__ double At(const SampleParams& params, int v) const {
    if (point) return v == token ? 1.0 : 0.0;
    if (total == 0 || !survivors.Has(facts, params, v)) return 0;
    return ExactExp((double{facts.z[v]} - double{facts.largest}) / double{params.temperature}) /
           total;
  }
  __device__ bool Keeps(const SampleParams& params, int v) const {
    return point ? v == token : survivors.Has(facts, params, v);
  }
  // The logarithm of its probability, also of one that is too small for a double.
  __device__ float LogOf(const SampleParams& params, int v) const {
    if (!Keeps(params, v)) return -kInf;
    if (point) return 0;
    return static_cast<float>((double{facts.z[v]} - double{facts.largest}) /
                                  double{params.temperature} -
                              ExactLog(total));
  }
};

__device__ Distribution Spread(const RowFacts& facts, const SampleParams& params,
                               Scratch& scratch) {
  Distribution out{facts};
  if (out.facts.argmax == kNone) return out;
  if (out.facts.largest == kInf) {
    out.point = true;
    out.token = out.facts.argmax;
    out.total = 1;
    return out;
  }
  out.survivors = Truncate(out.facts, params, scratch);
  double sum = 0;
  for (int v = static_cast<int>(threadIdx.x); v < facts.vocab; v += static_cast<int>(kThreads)) {
    if (!out.survivors.Has(out.facts, params, v)) continue;
    sum += ExactExp((double{facts.z[v]} - double{out.facts.largest}) / double{params.temperature});
  }
  out.total = cuda::BlockSum(sum, scratch.doubles);
  return out;
}

struct TopParameters {
  int32_t* id;
  int64_t id_step;
  float* logprob;
  int64_t logprob_step;
  int count;
};

// The largest logits that count, in order: one pass per entry, each below the one before.
template <typename Keeps, typename LogOf>
__device__ void StoreTop(const RowFacts& facts, int wanted, int64_t r, const TopParameters& top,
                         const Keeps& keeps, const LogOf& log_of, Scratch& scratch) {
  float z_before = 0;
  int before = -1;
  bool more = wanted > 0;
  for (int i = 0; i < top.count; ++i) {
    more = more && i < wanted;
    int token = kNone;
    if (more) {
      Racer best;
      for (int v = static_cast<int>(threadIdx.x); v < facts.vocab;
           v += static_cast<int>(kThreads)) {
        const float z = facts.z[v];
        const bool after = before < 0 || z < z_before || (z == z_before && v > before);
        if (after && keeps(v)) best.Meet(double{z}, v);
      }
      token = BestOfBlock(best, scratch).token;
      more = token != kNone;
    }
    if (more) {
      before = token;
      z_before = facts.z[token];
    }
    if (threadIdx.x != 0) continue;
    if (top.id != nullptr) top.id[r * top.id_step + i] = more ? token : -1;
    if (top.logprob != nullptr) {
      top.logprob[r * top.logprob_step + i] = more ? log_of(token) : 0.0f;
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    SampleTokensKernel(const float* logits, int64_t step, const float* raw, int64_t raw_step,
                       int vocab, const SampleParams* params, uint8_t* record, int64_t record_step,
                       int32_t* chosen, TopParameters top) {
  cuda::BeginAfterLast();
  __shared__ Scratch scratch;
  const int64_t r = blockIdx.x;
  const SampleParams row = params[r];
  const RowFacts facts = LookAt(logits + r * step, vocab, scratch);
  // Raw logprobs are of the logits before any edit.
  const RowFacts before = raw == nullptr ? facts : LookAt(raw + r * raw_step, vocab, scratch);
  SampleRecord out;
  if (facts.largest == -kInf) out.flags = kSampleAllMasked;
  if (IsNan(facts) || IsNan(before)) out.flags = kSampleNonFinite;
  const bool usable = out.flags == 0;
  if (usable) {
    out.argmax = facts.argmax;
    out.token = Draw(facts, row, scratch);
  }
  const auto store = [&](const RowFacts& listed, const auto& keeps, const auto& log_of) {
    if (usable) {
      out.argmax_logprob = log_of(out.argmax);
      out.logprob = log_of(out.token);
    }
    if (threadIdx.x == 0) {
      *reinterpret_cast<SampleRecord*>(record + r * record_step) = out;
      if (chosen != nullptr) chosen[r] = out.token;
    }
    StoreTop(listed, usable ? row.num_top : 0, r, top, keeps, log_of, scratch);
  };
  if (usable && row.logprobs == LogprobForm::kProcessed) {
    const SampleParams drawn = LogprobParams(row);
    const Distribution p = Spread(facts, drawn, scratch);
    store(
        facts, [&](int v) { return p.Keeps(drawn, v); }, [&](int v) { return p.LogOf(drawn, v); });
  } else {
    store(
        before, [&](int v) { return before.z[v] != -kInf; },
        [&](int v) { return LogProb(before, v); });
  }
}

struct SampleTokensOp {
  static absl::Status Supports(const SampleTokens::Problem& problem) {
    return Support()
        .Is("wide", problem.wide, DType::kF32)
        .Positive("vocab", problem.vocab)
        .Want(problem.max_top >= 0, "max_top", std::to_string(problem.max_top), "0 and more")
        .Take();
  }
  static size_t WorkspaceBytes(const SampleTokens::Problem&) { return 0; }
  static absl::Status Run(const SampleTokens::Problem& problem, const SampleTokens::Args& args,
                          Workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    TopParameters top = {};
    top.count = problem.max_top;
    if (!args.top_id.absent()) {
      top.id = args.top_id.as<int32_t>();
      top.id_step = args.top_id.step(0);
    }
    if (!args.top_logprob.absent()) {
      top.logprob = args.top_logprob.as<float>();
      top.logprob_step = args.top_logprob.step(0);
    }
    return cuda::Launch(
        SampleTokens::kId, SampleTokensKernel, dim3(static_cast<unsigned>(args.logits.dim(0))),
        kThreads, 0, stream, args.logits.as<float>(), args.logits.step(0),
        args.raw.absent() ? nullptr : args.raw.as<float>(),
        args.raw.absent() ? 0 : args.raw.step(0), problem.vocab, args.params.as<SampleParams>(),
        args.record.as<uint8_t>(), args.record.step(0),
        args.chosen.absent() ? nullptr : args.chosen.as<int32_t>(), top);
  }
};

struct VerifyParameters {
  const float* logits;
  int64_t logits_step;
  const float* raw;  // null: the logits
  int64_t raw_step;
  const float* draft_logits;
  int64_t draft_step, draft_rows;
  int vocab;
  const VerifyParams* params;
  float *target_probability, *draft_probability, *residual_mass;
  int32_t* recovered;
  float *draft_logprob, *recovered_logprob;
  int32_t* flags;
};

struct VerifyResult {
  double target = 0, draft = 0, mass = 0;
  float draft_logprob = 0, recovered_logprob = 0;
  int recovered = -1;
  int flags = 0;
};

__device__ VerifyResult Verify(const VerifyParameters& p, int64_t r, Scratch& scratch) {
  VerifyResult result;
  const VerifyParams row = p.params[r];
  const SampleParams& params = row.sampling;
  if (!HasDraft(row, p.vocab, p.draft_rows)) return result;
  const Distribution target =
      Spread(LookAt(p.logits + r * p.logits_step, p.vocab, scratch), params, scratch);
  const RowFacts before =
      p.raw == nullptr ? target.facts : LookAt(p.raw + r * p.raw_step, p.vocab, scratch);
  if (target.total == 0 || IsNan(before)) {
    const bool nan = IsNan(target.facts) || IsNan(before);
    result.flags = nan ? kVerifyNonFinite : kVerifyAllMasked;
    return result;
  }
  Distribution draft;
  if (row.form == DraftForm::kPoint) {
    draft.point = true;
    draft.token = row.draft_token;
    draft.total = 1;
  } else {
    draft = Spread(LookAt(p.draft_logits + row.draft_row * p.draft_step, p.vocab, scratch), params,
                   scratch);
  }
  const auto residual = [&](int v) {
    const double difference = target.At(params, v) - draft.At(params, v);
    return difference > 0 ? difference : 0.0;
  };
  double mine = 0;
  for (int v = static_cast<int>(threadIdx.x); v < p.vocab; v += static_cast<int>(kThreads)) {
    mine += residual(v);
  }
  result.mass = cuda::BlockSum(mine, scratch.doubles);
  result.target = target.At(params, row.draft_token);
  result.draft = draft.At(params, row.draft_token);
  if (result.draft == 0) result.flags |= kVerifyDraftMissing;
  const bool from_residual = result.mass > kResidualMassMin;
  const auto enter = [&](int v, double& scaled) {
    const double weight = from_residual ? residual(v) : target.At(params, v);
    if (!(weight > 0)) return false;
    scaled = ExactLog(weight);
    return true;
  };
  result.recovered = Race(p.vocab, params, RandomPurpose::kResidual, enter, scratch);
  const bool processed = params.logprobs == LogprobForm::kProcessed;
  const auto log_of = [&](int v) {
    return processed ? target.LogOf(params, v) : LogProb(before, v);
  };
  result.draft_logprob = log_of(row.draft_token);
  result.recovered_logprob = log_of(result.recovered);
  return result;
}

__global__ void __launch_bounds__(kThreads) VerifyDraftsKernel(VerifyParameters p) {
  cuda::BeginAfterLast();
  __shared__ Scratch scratch;
  const int64_t r = blockIdx.x;
  const VerifyResult result = Verify(p, r, scratch);
  if (threadIdx.x != 0) return;
  p.target_probability[r] = static_cast<float>(result.target);
  p.draft_probability[r] = static_cast<float>(result.draft);
  p.residual_mass[r] = static_cast<float>(result.mass);
  p.recovered[r] = result.recovered;
  p.draft_logprob[r] = result.draft_logprob;
  p.recovered_logprob[r] = result.recovered_logprob;
  p.flags[r] = result.flags;
}

struct VerifyDraftsOp {
  static absl::Status Supports(const VerifyDrafts::Problem& problem) {
    return Support().Is("wide", problem.wide, DType::kF32).Positive("vocab", problem.vocab).Take();
  }
  static size_t WorkspaceBytes(const VerifyDrafts::Problem&) { return 0; }
  static absl::Status Run(const VerifyDrafts::Problem& problem, const VerifyDrafts::Args& args,
                          Workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    VerifyParameters p;
    p.logits = args.logits.as<float>();
    p.logits_step = args.logits.step(0);
    p.raw = args.raw.absent() ? nullptr : args.raw.as<float>();
    p.raw_step = args.raw.absent() ? 0 : args.raw.step(0);
    p.draft_logits = args.draft_logits.absent() ? nullptr : args.draft_logits.as<float>();
    p.draft_step = args.draft_logits.absent() ? 0 : args.draft_logits.step(0);
    p.draft_rows = args.draft_logits.absent() ? 0 : args.draft_logits.dim(0);
    p.vocab = problem.vocab;
    p.params = args.params.as<VerifyParams>();
    p.target_probability = args.target_probability.as<float>();
    p.draft_probability = args.draft_probability.as<float>();
    p.residual_mass = args.residual_mass.as<float>();
    p.recovered = args.recovered.as<int32_t>();
    p.draft_logprob = args.draft_logprob.as<float>();
    p.recovered_logprob = args.recovered_logprob.as<float>();
    p.flags = args.flags.as<int32_t>();
    return cuda::Launch(VerifyDrafts::kId, VerifyDraftsKernel,
                        dim3(static_cast<unsigned>(args.logits.dim(0))), kThreads, 0, stream, p);
  }
};

struct PlaceParameters {
  const uint8_t* record;
  int64_t record_step;
  const int32_t* count;
  int32_t* ids;
  int64_t ids_step;
  int32_t* ngram;  // null: none
  int64_t ngram_step;
  const int32_t* token_map;
  uint8_t* verify;
  int64_t verify_step;
  int order, vocab;
  int64_t rows;
};

// A thread per sequence.
__global__ void PlaceDraftsKernel(PlaceParameters p) {
  cuda::BeginAfterLast();
  const int64_t r = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (r >= p.rows) return;
  const auto* record = reinterpret_cast<const SampleRecord*>(p.record + r * p.record_step);
  auto* verify = reinterpret_cast<VerifyParams*>(p.verify + r * p.verify_step);
  int32_t* ids = p.ids + r * p.ids_step;
  for (int j = 1; j <= p.count[r]; ++j) {
    int32_t token = record[j - 1].token;
    if (token < 0 || token >= p.vocab) token = -1;
    ids[j] = token;
    verify[j - 1].draft_token = token;
    if (p.ngram == nullptr) continue;
    // The row before, moved by one, with its own token in front.
    int32_t* row = p.ngram + r * p.ngram_step + j * p.order;
    for (int s = p.order - 1; s > 0; --s) row[s] = row[s - 1 - p.order];
    row[0] = token < 0 ? 0 : p.token_map[token];
  }
}

struct PlaceDraftsOp {
  static absl::Status Supports(const PlaceDrafts::Problem& problem) {
    return Support().Positive("depth", problem.depth).Positive("vocab", problem.vocab).Take();
  }
  static size_t WorkspaceBytes(const PlaceDrafts::Problem&) { return 0; }
  static absl::Status Run(const PlaceDrafts::Problem& problem, const PlaceDrafts::Args& args,
                          Workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const bool ngram = problem.ngram > 0;
    PlaceParameters p;
    p.record = args.record.as<uint8_t>();
    p.record_step = args.record.step(0);
    p.count = args.count.as<int32_t>();
    p.ids = args.ids.as<int32_t>();
    p.ids_step = args.ids.step(0);
    p.ngram = ngram ? args.ngram.as<int32_t>() : nullptr;
    p.ngram_step = ngram ? args.ngram.step(0) : 0;
    p.token_map = ngram ? args.token_map.as<int32_t>() : nullptr;
    p.verify = args.verify_params.as<uint8_t>();
    p.verify_step = args.verify_params.step(0);
    p.order = problem.ngram;
    p.vocab = problem.vocab;
    p.rows = args.ids.dim(0);
    constexpr unsigned kRowsPerBlock = 128;
    return cuda::Launch(PlaceDrafts::kId, PlaceDraftsKernel,
                        dim3(cuda::BlocksFor(p.rows, kRowsPerBlock)), kRowsPerBlock, 0, stream, p);
  }
};

}  // namespace

absl::Status RegisterSampling(KernelRegistry& registry) {
  constexpr DeterminismClass kRows = DeterminismClass::kBatchInvariant;
  absl::Status status = RegisterKernel<SampleTokens, SampleTokensOp>(registry, kRows);
  if (status.ok()) status = RegisterKernel<VerifyDrafts, VerifyDraftsOp>(registry, kRows);
  if (status.ok()) {
    status = RegisterKernel<PlaceDrafts, PlaceDraftsOp>(registry, DeterminismClass::kBitwise);
  }
  return status;
}

}  // namespace skein::kernels::sm90
