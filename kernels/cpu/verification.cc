// What rejection sampling needs of a row, in f64. Rows are shared over the threads.
#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/cpu/family.h"
#include "kernels/cpu/sampling_row.h"
#include "kernels/exact_math.h"
#include "kernels/philox.h"

namespace skein::kernels::cpu {
namespace {

// The race over weights with the RESIDUAL stream; tokens enter by ascending id.
class ResidualRace {
 public:
  explicit ResidualRace(const SampleParams& params) : params_(params) {}

  void Enter(int32_t token, double weight) {
    const uint32_t block = static_cast<uint32_t>(token) / 4;
    const size_t word = static_cast<size_t>(token) % 4;
    if (!have_block_ || block != block_) {
      high_ = RandomBlock(params_.seed, params_.position, RandomPurpose::kResidual, block, 0);
      block_ = block;
      have_block_ = true;
    }
    // log2 of the weight and of the noise from above; see Race in sampling.cc.
    const uint32_t rest = ~high_[word];
    const double bound =
        (std::ilogb(weight) + 1 + (rest == 0 ? 64 : std::countl_zero(rest) + 1)) * kLn2;
    if (token_ >= 0 && bound + kSlack < key_) return;
    const uint32_t low =
        RandomBlock(params_.seed, params_.position, RandomPurpose::kResidual, block, 1)[word];
    const double key = ExactLog(weight) + GumbelNoise(high_[word], low);
    if (token_ < 0 || key > key_) {
      token_ = token;
      key_ = key;
    }
  }
  int32_t token() const { return token_; }

 private:
  const SampleParams& params_;
  PhiloxBlock high_ = {};
  uint32_t block_ = 0;
  bool have_block_ = false;
  int32_t token_ = -1;
  double key_ = 0;
};

template <CpuIsa isa>
struct VerifyDraftsKernel {
  static absl::Status Supports(const VerifyDrafts::Problem& problem) {
    return Support().Is("wide", problem.wide, DType::kF32).Positive("vocab", problem.vocab).Take();
  }
  static size_t WorkspaceBytes(const VerifyDrafts::Problem& problem) {
    return Scratch::Bytes<int32_t>(int64_t{problem.vocab} * kMaxThreads);
  }
  static absl::Status Run(const VerifyDrafts::Problem& problem, const VerifyDrafts::Args& args,
                          Workspace workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    if (absl::Status status = CheckThreads(stream); !status.ok()) return status;
    Scratch scratch(workspace);
    int32_t* ids = scratch.Take<int32_t>(int64_t{problem.vocab} * NumThreads(stream));
    if (absl::Status status = scratch.Check(VerifyDrafts::kId); !status.ok()) return status;
    ForEachTask(stream, args.logits.dim(0), args.logits.size() * 64, [&](int64_t r, int thread) {
      Store(args, r, Row(problem, args, r, ids + int64_t{problem.vocab} * thread));
    });
    return absl::OkStatus();
  }

  struct Result {
    double target = 0, draft = 0, mass = 0;
    float draft_logprob = 0, recovered_logprob = 0;
    int32_t recovered = -1;
    int32_t flags = 0;
  };

  static Result Row(const VerifyDrafts::Problem& problem, const VerifyDrafts::Args& args, int64_t r,
                    int32_t* ids) {
    Result result;
    const VerifyParams& params = args.params.as<VerifyParams>()[r];
    const int64_t draft_rows = args.draft_logits.absent() ? 0 : args.draft_logits.dim(0);
    if (!HasDraft(params, problem.vocab, draft_rows)) return result;
    const int64_t vocab = problem.vocab;
    const float* z = reinterpret_cast<const float*>(args.logits.row(r));
    const float largest = Lanes<isa>().largest(z, vocab);
    const float* raw = RawRow(args.raw, z, r);
    const float raw_largest = raw == z ? largest : Lanes<isa>().largest(raw, vocab);
    if (largest == -kInfinity) result.flags = kVerifyAllMasked;
    if (std::isnan(largest) || std::isnan(raw_largest)) result.flags = kVerifyNonFinite;
    if (result.flags != 0) return result;
    const Distribution p(z, vocab, largest, params.sampling, ids);
    const int32_t draft = params.draft_token;
    if (params.form == DraftForm::kLogits) {
      const float* y = reinterpret_cast<const float*>(args.draft_logits.row(params.draft_row));
      const float most = Lanes<isa>().largest(y, vocab);
      if (!std::isnan(most) && most != -kInfinity) {
        const Distribution q(y, vocab, most, params.sampling, ids);
        Compare(p, q, vocab, params, result);
      } else {
        Compare(
            p, [](int32_t) { return 0.0; }, vocab, params, result);
      }
    } else {
      Compare(
          p, [draft](int32_t v) { return v == draft ? 1.0 : 0.0; }, vocab, params, result);
    }
    if (params.sampling.logprobs == LogprobForm::kProcessed) {
      result.draft_logprob = p.LogOf(draft);
      result.recovered_logprob = p.LogOf(result.recovered);
      return result;
    }
    const double log_sum = LogSum<isa>(raw, vocab, raw_largest);
    result.draft_logprob = LogProb(raw[draft], log_sum);
    result.recovered_logprob = LogProb(raw[result.recovered], log_sum);
    return result;
  }

  // Everything that follows from the two distributions.
  template <typename Q>
  static void Compare(const Distribution& p, const Q& q, int64_t vocab, const VerifyParams& params,
                      Result& result) {
    result.target = p(params.draft_token);
    result.draft = q(params.draft_token);
    if (result.draft == 0) result.flags |= kVerifyDraftMissing;
    ResidualRace residual(params.sampling);
    for (int32_t v = 0; v < vocab; ++v) {
      const double weight = p(v) - q(v);
      if (!(weight > 0)) continue;
      result.mass += weight;
      residual.Enter(v, weight);
    }
    result.recovered = residual.token();
    if (result.mass > kResidualMassMin) return;
    ResidualRace whole(params.sampling);
    for (int32_t v = 0; v < vocab; ++v) {
      if (const double weight = p(v); weight > 0) whole.Enter(v, weight);
    }
    result.recovered = whole.token();
  }

  static void Store(const VerifyDrafts::Args& args, int64_t r, const Result& result) {
    args.target_probability.as<float>()[r] = static_cast<float>(result.target);
    args.draft_probability.as<float>()[r] = static_cast<float>(result.draft);
    args.residual_mass.as<float>()[r] = static_cast<float>(result.mass);
    args.recovered.as<int32_t>()[r] = result.recovered;
    args.draft_logprob.as<float>()[r] = result.draft_logprob;
    args.recovered_logprob.as<float>()[r] = result.recovered_logprob;
    args.flags.as<int32_t>()[r] = result.flags;
  }
};

}  // namespace

absl::Status RegisterVerification(KernelRegistry& registry, CpuIsa isa) {
  return RegisterFor<VerifyDrafts, VerifyDraftsKernel>(registry, isa,
                                                       DeterminismClass::kBatchInvariant);
}

}  // namespace skein::kernels::cpu
