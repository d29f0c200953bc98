// Choosing a token per row. The race is decided in f64 with the shared polynomials, but a token
// whose noise cannot win is skipped on a sound bound, so the result is the full race's. Rows are
// shared over the threads.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/cpu/family.h"
#include "kernels/cpu/sampling_row.h"
#include "kernels/exact_math.h"
#include "kernels/philox.h"

namespace skein::kernels::cpu {
namespace {

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
    const PhiloxBlock high = RandomBlock(params_.seed, params_.position, params_.purpose, block, 0);
    PhiloxBlock low = {};
    bool have_low = false;
    for (uint32_t i = 0; i < 4; ++i) {
      if ((mask >> i & 1) == 0) continue;
      const double scaled = z_[block * 4 + i] / temperature;
      // -ln(-ln u) < -ln(1 - u) and 1 - u > (2^32 - 1 - high) * 2^-32: a bound from leading zeros.
      const uint32_t rest = ~high[i];
      if (rest != 0 && scaled + (std::countl_zero(rest) + 1) * kLn2 + kSlack < key_) continue;
      if (!have_low) {
        low = RandomBlock(params_.seed, params_.position, params_.purpose, block, 1);
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

int32_t Draw(const float* z, int64_t vocab, int32_t argmax, const SampleParams& params,
             int32_t* ids) {
  if (z[argmax] == kInfinity) return argmax;
  Race race(z, params);
  if (!Truncates(params)) {
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
  const int64_t size = Truncate(z, z[argmax], params, ids, AllowedIds(z, vocab, ids));
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
    const float* raw = RawRow(args.raw, z, r);
    const SampleParams& params = args.params.as<SampleParams>()[r];
    SampleRecord record;
    const float largest = Lanes<isa>().largest(z, problem.vocab);
    const float raw_largest = raw == z ? largest : Lanes<isa>().largest(raw, problem.vocab);
    if (largest == -kInfinity) record.flags = kSampleAllMasked;
    if (std::isnan(largest) || std::isnan(raw_largest)) record.flags = kSampleNonFinite;
    if (record.flags == 0) {
      record.argmax = static_cast<int32_t>(std::find(z, z + problem.vocab, largest) - z);
      record.token = params.temperature < 1e-5f
                         ? record.argmax
                         : Draw(z, problem.vocab, record.argmax, params, ids);
    }
    const auto store = [&](const float* row, const auto& keeps, const auto& log_of) {
      if (record.flags == 0) {
        record.argmax_logprob = log_of(record.argmax);
        record.logprob = log_of(record.token);
      }
      *reinterpret_cast<SampleRecord*>(args.record.row(r)) = record;
      const int64_t wanted = record.flags == 0 ? params.num_top : 0;
      StoreTop(problem, args, r, row, wanted, keeps, log_of, ids);
    };
    if (!args.chosen.absent()) args.chosen.as<int32_t>()[r] = record.token;
    if (params.logprobs == LogprobForm::kProcessed && record.flags == 0) {
      const Distribution p(z, problem.vocab, largest, LogprobParams(params), ids);
      return store(
          z, [&p](int32_t v) { return p.Keeps(v); }, [&p](int32_t v) { return p.LogOf(v); });
    }
    const double log_sum = record.flags == 0 ? LogSum<isa>(raw, problem.vocab, raw_largest) : 0;
    store(
        raw, [raw](int32_t v) { return raw[v] != -kInfinity; },
        [raw, log_sum](int32_t v) { return LogProb(raw[v], log_sum); });
  }

  // The largest of the logits z of the row that count, as far as wanted and present.
  template <typename Keeps, typename LogOf>
  static void StoreTop(const SampleTokens::Problem& problem, const SampleTokens::Args& args,
                       int64_t r, const float* z, int64_t wanted, const Keeps& keeps,
                       const LogOf& log_of, int32_t* ids) {
    if (problem.max_top == 0) return;
    int64_t used = 0;
    if (wanted > 0) {
      int64_t size = 0;
      for (int32_t v = 0; v < problem.vocab; ++v) {
        if (keeps(v)) ids[size++] = v;
      }
      used = std::min<int64_t>({wanted, problem.max_top, size});
      SortFront(ids, 0, used, size, Before{z});
    }
    for (int64_t i = 0; i < problem.max_top; ++i) {
      if (!args.top_id.absent()) {
        reinterpret_cast<int32_t*>(args.top_id.row(r))[i] = i < used ? ids[i] : -1;
      }
      if (!args.top_logprob.absent()) {
        reinterpret_cast<float*>(args.top_logprob.row(r))[i] = i < used ? log_of(ids[i]) : 0.0f;
      }
    }
  }
};

// A few integers per row: the calling thread alone.
template <CpuIsa isa>
struct PlaceDraftsKernel : WithoutWorkspace<PlaceDrafts> {
  static absl::Status Supports(const PlaceDrafts::Problem& problem) {
    return Support().Positive("depth", problem.depth).Positive("vocab", problem.vocab).Take();
  }
  static absl::Status Run(const PlaceDrafts::Problem& problem, const PlaceDrafts::Args& args,
                          Workspace, DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    for (int64_t r = 0; r < args.ids.dim(0); ++r) {
      const int count = args.count.as<int32_t>()[r];
      Tokens(problem, args, r, count);
      if (problem.ngram > 0) Ngrams(problem, args, r, count);
    }
    return absl::OkStatus();
  }

  static void Tokens(const PlaceDrafts::Problem& problem, const PlaceDrafts::Args& args, int64_t r,
                     int count) {
    const auto* record = reinterpret_cast<const SampleRecord*>(args.record.row(r));
    auto* ids = reinterpret_cast<int32_t*>(args.ids.row(r));
    auto* verify = reinterpret_cast<VerifyParams*>(args.verify_params.row(r));
    for (int j = 0; j < count; ++j) {
      const int32_t token = record[j].token;
      ids[j + 1] = token >= 0 && token < problem.vocab ? token : -1;
      verify[j].draft_token = ids[j + 1];
    }
  }

  // Each row is the one before it, moved by one, with its own token in front.
  static void Ngrams(const PlaceDrafts::Problem& problem, const PlaceDrafts::Args& args, int64_t r,
                     int count) {
    const auto* ids = reinterpret_cast<const int32_t*>(args.ids.row(r));
    auto* ngram = reinterpret_cast<int32_t*>(args.ngram.row(r));
    for (int j = 1; j <= count; ++j) {
      int32_t* row = ngram + j * problem.ngram;
      std::copy_n(row - problem.ngram, problem.ngram - 1, row + 1);
      row[0] = ids[j] < 0 ? 0 : args.token_map.as<int32_t>()[ids[j]];
    }
  }
};

}  // namespace

absl::Status RegisterSampling(KernelRegistry& registry, CpuIsa isa) {
  if (absl::Status status =
          RegisterFor<PlaceDrafts, PlaceDraftsKernel>(registry, isa, DeterminismClass::kBitwise);
      !status.ok()) {
    return status;
  }
  return RegisterFor<SampleTokens, SampleTokensKernel>(registry, isa,
                                                       DeterminismClass::kBatchInvariant);
}

}  // namespace skein::kernels::cpu
