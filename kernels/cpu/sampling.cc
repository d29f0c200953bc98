// Choosing a token per row. The race is decided in f64 with the shared polynomials, but a token
// whose noise cannot win is skipped on a sound bound, so the result is the full race's. Truncation
// sorts no more of the row than the cut needs. Rows are shared over the threads.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/cpu/family.h"
#include "kernels/exact_math.h"
#include "kernels/philox.h"

namespace skein::kernels::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kLn2 = 0.693147180559945309417;
// Above the rounding of any key that is compared with a bound.
constexpr double kSlack = 1e-6;

// The order of tokens everywhere: larger logit first, then the lower id.
struct Before {
  const float* z;
  bool operator()(int32_t a, int32_t b) const { return z[a] > z[b] || (z[a] == z[b] && a < b); }
};

// The best token of a race so far.
class Race {
 public:
  Race(const float* z, const SampleParams& params) : z_(z), params_(params) {}

  // Enters tokens of one block of four; `mask` says which take part.
  void Enter(uint32_t block, uint32_t mask) {
    const double temperature = params_.temperature;
    double largest = -std::numeric_limits<double>::infinity();
    for (uint32_t i = 0; i < 4; ++i) {
      if ((mask >> i & 1) != 0) largest = std::max(largest, z_[block * 4 + i] / temperature);
    }
    if (largest + kMostGumbelNoise + kSlack < key_) return;
    const PhiloxBlock high =
        RandomBlock(params_.seed, params_.position, RandomPurpose::kPlain, block, 0);
    PhiloxBlock low = {};
    bool have_low = false;
    for (uint32_t i = 0; i < 4; ++i) {
      if ((mask >> i & 1) == 0) continue;
      const double scaled = z_[block * 4 + i] / temperature;
      // -ln(-ln u) < -ln(1 - u) and 1 - u > (2^32 - 1 - high) * 2^-32: a bound from leading zeros.
      const uint32_t rest = ~high[i];
      if (rest != 0 && scaled + (std::countl_zero(rest) + 1) * kLn2 + kSlack < key_) continue;
      if (!have_low) {
        low = RandomBlock(params_.seed, params_.position, RandomPurpose::kPlain, block, 1);
        have_low = true;
      }
      const double key = scaled + GumbelNoise(high[i], low[i]);
      const int32_t token = static_cast<int32_t>(block * 4 + i);
      if (token_ < 0 || key > key_ || (key == key_ && token < token_)) {
        key_ = key;
        token_ = token;
      }
    }
  }
  int32_t token() const { return token_; }

 private:
  const float* z_;
  const SampleParams& params_;
  int32_t token_ = -1;
  double key_ = -std::numeric_limits<double>::infinity();
};

// Weight of a token in units of 2^-40 of the most likely one.
uint64_t Weight(float z, float largest, const SampleParams& params) {
  const double x = (double{z} - double{largest}) / double{params.temperature};
  if (x < -28) return 0;  // e^-28 * 2^40 is below 1
  return static_cast<uint64_t>(ExactExp(x) * 0x1p40);
}

// Moves the first `count` tokens of ids[0, size) in order to the front, sorted.
void SortFront(int32_t* ids, int64_t from, int64_t count, int64_t size, const Before& before) {
  if (count < size) std::nth_element(ids + from, ids + count - 1, ids + size, before);
  std::sort(ids + from, ids + count, before);
}

// Leaves in ids[0, result) the tokens that survive top_k, top_p and min_p, in no order that
// matters.
int64_t Truncate(const float* z, float largest, const SampleParams& params, int32_t* ids,
                 int64_t size) {
  const Before before{z};
  if (params.top_k > 0 && params.top_k < size) {
    std::nth_element(ids, ids + params.top_k - 1, ids + size, before);
    size = params.top_k;
  }
  if (params.top_p < 1) {
    uint64_t total = 0;
    for (int64_t i = 0; i < size; ++i) total += Weight(z[ids[i]], largest, params);
    const uint64_t mass =
        static_cast<uint64_t>(std::ceil(double{params.top_p} * static_cast<double>(total)));
    uint64_t sum = 0;
    int64_t keep = 0;
    int64_t sorted = 0;
    while (keep < size && (keep == 0 || sum < mass)) {
      if (keep == sorted) {
        const int64_t more = std::min(size, std::max<int64_t>(64, sorted * 4));
        SortFront(ids, sorted, more, size, before);
        sorted = more;
      }
      sum += Weight(z[ids[keep++]], largest, params);
    }
    size = keep;
  }
  if (params.min_p > 0) {
    const double least = double{params.min_p} * 0x1p40;
    int64_t keep = 0;
    for (int64_t i = 0; i < size; ++i) {
      const bool best = z[ids[i]] == largest;
      if (best || static_cast<double>(Weight(z[ids[i]], largest, params)) >= least) {
        ids[keep++] = ids[i];
      }
    }
    size = keep;
  }
  return size;
}

int32_t Draw(const float* z, int64_t vocab, int32_t argmax, const SampleParams& params,
             int32_t* ids) {
  if (z[argmax] == kInfinity) return argmax;
  Race race(z, params);
  const bool truncated = params.top_k > 0 || params.top_p < 1 || params.min_p > 0;
  if (!truncated) {
    const auto mask = [&](int64_t block) {
      uint32_t bits = 0;
      for (int64_t v = block * 4; v < std::min(vocab, block * 4 + 4); ++v) {
        if (z[v] != -kInfinity) bits |= 1u << (v - block * 4);
      }
      return bits;
    };
    // The likely winner first, so that most others are skipped on the bound.
    race.Enter(static_cast<uint32_t>(argmax / 4), mask(argmax / 4));
    for (int64_t block = 0; block * 4 < vocab; ++block) {
      if (const uint32_t bits = mask(block); bits != 0) {
        race.Enter(static_cast<uint32_t>(block), bits);
      }
    }
    return race.token();
  }
  int64_t size = 0;
  for (int64_t v = 0; v < vocab; ++v) {
    if (z[v] != -kInfinity) ids[size++] = static_cast<int32_t>(v);
  }
  size = Truncate(z, z[argmax], params, ids, size);
  for (int64_t i = 0; i < size; ++i) {
    race.Enter(static_cast<uint32_t>(ids[i] / 4), 1u << (ids[i] % 4));
  }
  return race.token();
}

template <CpuIsa isa>
struct SampleTokensKernel {
  static absl::Status Supports(const SampleTokens::Problem& problem) {
    return Support()
        .Is("wide", problem.wide, DType::kF32)
        .Positive("vocab", problem.vocab)
        .Want(problem.max_top >= 0, "max_top", std::to_string(problem.max_top), "0 and more")
        .Take();
  }
  static size_t WorkspaceBytes(const SampleTokens::Problem& problem) {
    return Scratch::Bytes<int32_t>(int64_t{problem.vocab} * kMaxThreads);
  }
  static absl::Status Run(const SampleTokens::Problem& problem, const SampleTokens::Args& args,
                          Workspace workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    if (absl::Status status = CheckThreads(stream); !status.ok()) return status;
    Scratch scratch(workspace);
    int32_t* ids = scratch.Take<int32_t>(int64_t{problem.vocab} * NumThreads(stream));
    if (absl::Status status = scratch.Check(SampleTokens::kId); !status.ok()) return status;
    ForEachTask(stream, args.logits.dim(0), args.logits.size() * 16, [&](int64_t r, int thread) {
      Row(problem, args, r, ids + int64_t{problem.vocab} * thread);
    });
    return absl::OkStatus();
  }

  static void Row(const SampleTokens::Problem& problem, const SampleTokens::Args& args, int64_t r,
                  int32_t* ids) {
    const float* z = reinterpret_cast<const float*>(args.logits.row(r));
    const SampleParams& params = args.params.as<SampleParams>()[r];
    SampleRecord record;
    const float largest = Lanes<isa>().largest(z, problem.vocab);
    double log_sum = 0;
    const bool usable = !std::isnan(largest) && largest != -kInfinity;
    if (std::isnan(largest)) record.flags = kSampleNonFinite;
    if (largest == -kInfinity) record.flags = kSampleAllMasked;
    if (usable) {
      if (largest != kInfinity) {
        log_sum = double{largest} + ExactLog(Lanes<isa>().sum_exp(z, problem.vocab, largest));
      }
      record.argmax = static_cast<int32_t>(std::find(z, z + problem.vocab, largest) - z);
      record.argmax_logprob = LogProb(largest, log_sum);
      record.token = params.temperature < 1e-5f
                         ? record.argmax
                         : Draw(z, problem.vocab, record.argmax, params, ids);
      record.logprob = LogProb(z[record.token], log_sum);
    }
    args.record.as<SampleRecord>()[r] = record;
    StoreTop(problem, args, r, usable ? params.num_top : 0, log_sum, ids);
  }

  static float LogProb(float z, double log_sum) {
    return z == kInfinity ? 0.0f : static_cast<float>(double{z} - log_sum);
  }

  // The largest logits of the row, as far as wanted and present.
  static void StoreTop(const SampleTokens::Problem& problem, const SampleTokens::Args& args,
                       int64_t r, int64_t wanted, double log_sum, int32_t* ids) {
    if (problem.max_top == 0) return;
    const float* z = reinterpret_cast<const float*>(args.logits.row(r));
    int64_t used = 0;
    if (wanted > 0) {
      int64_t size = 0;
      for (int32_t v = 0; v < problem.vocab; ++v) {
        if (z[v] != -kInfinity) ids[size++] = v;
      }
      used = std::min<int64_t>({wanted, problem.max_top, size});
      SortFront(ids, 0, used, size, Before{z});
    }
    for (int64_t i = 0; i < problem.max_top; ++i) {
      if (!args.top_id.absent()) {
        reinterpret_cast<int32_t*>(args.top_id.row(r))[i] = i < used ? ids[i] : -1;
      }
      if (!args.top_logprob.absent()) {
        reinterpret_cast<float*>(args.top_logprob.row(r))[i] =
            i < used ? LogProb(z[ids[i]], log_sum) : 0.0f;
      }
    }
  }
};

}  // namespace

absl::Status RegisterSampling(KernelRegistry& registry, CpuIsa isa) {
  return RegisterFor<SampleTokens, SampleTokensKernel>(registry, isa,
                                                       DeterminismClass::kBatchInvariant);
}

}  // namespace skein::kernels::cpu
