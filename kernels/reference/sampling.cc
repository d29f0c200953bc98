// Reference choice of tokens: full sort, integer weights, Gumbel race in f64 over every kept token.
// Plain code in the calling thread; a random number depends on (seed, position, token) alone.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "kernels/exact_math.h"
#include "kernels/philox.h"
#include "kernels/reference/element.h"
#include "kernels/reference/register.h"

namespace skein::kernels::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool HasNan(const std::vector<double>& z) {
  return std::any_of(z.begin(), z.end(), [](double v) { return std::isnan(v); });
}

// Row r of the logits before any edit, of which raw logprobs are; `z` where nothing was edited.
std::vector<double> RawRow(const TensorView& raw, const std::vector<double>& z, int64_t r) {
  return raw.absent() ? z : LoadRow<double>(raw, r);
}

double LogSum(const std::vector<double>& z) {
  const double largest = *std::max_element(z.begin(), z.end());
  if (largest == kInfinity) return kInfinity;
  double sum = 0;
  for (const double value : z) sum += std::exp(value - largest);
  return largest + std::log(sum);
}

// Token ids by descending logit, the lower id first on equal logits; -inf is not allowed.
std::vector<int32_t> AllowedDescending(const std::vector<double>& z) {
  std::vector<int32_t> ids;
  for (size_t v = 0; v < z.size(); ++v) {
    if (z[v] != -kInfinity) ids.push_back(static_cast<int32_t>(v));
  }
  std::stable_sort(ids.begin(), ids.end(), [&z](int32_t a, int32_t b) {
    return z[static_cast<size_t>(a)] > z[static_cast<size_t>(b)];
  });
  return ids;
}

// Drops from `ids` (descending) what top_k, top_p and min_p cut off.
void Truncate(const std::vector<double>& z, const SampleParams& params, std::vector<int32_t>& ids) {
  if (params.top_k > 0 && ids.size() > static_cast<size_t>(params.top_k)) {
    ids.resize(static_cast<size_t>(params.top_k));
  }
  const double temperature = params.temperature;
  const double largest = z[static_cast<size_t>(ids[0])];
  std::vector<uint64_t> weight;
  uint64_t total = 0;
  for (const int32_t id : ids) {
    weight.push_back(static_cast<uint64_t>(
        ExactExp((z[static_cast<size_t>(id)] - largest) / temperature) * 0x1p40));
    total += weight.back();
  }
  size_t keep = ids.size();
  if (params.top_p < 1) {
    const uint64_t mass =
        static_cast<uint64_t>(std::ceil(double{params.top_p} * static_cast<double>(total)));
    uint64_t sum = 0;
    keep = 0;
    while (keep < ids.size() && (keep == 0 || sum < mass)) sum += weight[keep++];
  }
  if (params.min_p > 0) {
    const double least = double{params.min_p} * static_cast<double>(weight[0]);
    size_t strong = 1;
    while (strong < keep && static_cast<double>(weight[strong]) >= least) ++strong;
    keep = std::min(keep, strong);
  }
  ids.resize(keep);
}

// Gumbel noise of token v: 64 random bits of its own.
double Noise(const SampleParams& params, RandomPurpose purpose, int32_t v) {
  const uint32_t block = static_cast<uint32_t>(v) / 4;
  const size_t word = static_cast<size_t>(v) % 4;
  const uint32_t high = RandomBlock(params.seed, params.position, purpose, block, 0)[word];
  const uint32_t low = RandomBlock(params.seed, params.position, purpose, block, 1)[word];
  return GumbelNoise(high, low);
}

// Key of token v in the race: z/temperature plus its noise.
double RaceKey(double z, const SampleParams& params, int32_t v) {
  return z / double{params.temperature} + Noise(params, params.purpose, v);
}

int32_t Draw(const std::vector<double>& z, const SampleParams& params, std::vector<int32_t> ids) {
  if (z[static_cast<size_t>(ids[0])] == kInfinity) return ids[0];
  Truncate(z, params, ids);
  std::sort(ids.begin(), ids.end());
  int32_t best = -1;
  double best_key = -kInfinity;
  for (const int32_t id : ids) {
    const double key = RaceKey(z[static_cast<size_t>(id)], params, id);
    if (best < 0 || key > best_key) {
      best = id;
      best_key = key;
    }
  }
  return best;
}

// Tokens that may be drawn, in descending order; `ids` are the allowed ones, at least one.
std::vector<int32_t> Kept(const std::vector<double>& z, const SampleParams& params,
                          std::vector<int32_t> ids) {
  if (z[static_cast<size_t>(ids[0])] == kInfinity) {
    ids.resize(1);
  } else {
    Truncate(z, params, ids);
  }
  return ids;
}

// Logprobs of a row in the form that its parameters ask for.
class Logprobs {
 public:
  // At least one token of `z` is allowed; `raw` are the logits before the edits.
  Logprobs(const std::vector<double>& z, const std::vector<double>& raw,
           const SampleParams& params) {
    if (params.logprobs == LogprobForm::kRaw) {
      listed_ = AllowedDescending(raw);
      const double log_sum = LogSum(raw);
      for (const double value : raw) values_.push_back(value == kInfinity ? 0 : value - log_sum);
      return;
    }
    const SampleParams drawn = LogprobParams(params);
    listed_ = Kept(z, drawn, AllowedDescending(z));
    const double largest = z[static_cast<size_t>(listed_[0])];
    values_.assign(z.size(), -kInfinity);
    if (largest == kInfinity) {
      values_[static_cast<size_t>(listed_[0])] = 0;
      return;
    }
    double sum = 0;
    for (const int32_t id : listed_) {
      double& value = values_[static_cast<size_t>(id)];
      value = (z[static_cast<size_t>(id)] - largest) / double{drawn.temperature};
      sum += std::exp(value);
    }
    for (double& value : values_) value -= std::log(sum);
  }

  float Of(int32_t token) const { return static_cast<float>(values_[static_cast<size_t>(token)]); }
  // The tokens of which there is more to say than that they are impossible, the likeliest first.
  const std::vector<int32_t>& listed() const { return listed_; }

 private:
  std::vector<double> values_;
  std::vector<int32_t> listed_;
};

struct SampleTokensKernel {
  static absl::Status Run(const SampleTokens::Problem& problem, const SampleTokens::Args& args,
                          Workspace, DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    for (int64_t r = 0; r < args.logits.dim(0); ++r) Row(problem, args, r);
    return absl::OkStatus();
  }
  static void Row(const SampleTokens::Problem& problem, const SampleTokens::Args& args, int64_t r) {
    const std::vector<double> z = LoadRow<double>(args.logits, r);
    const std::vector<double> raw = RawRow(args.raw, z, r);
    const SampleParams& params = args.params.as<SampleParams>()[r];
    SampleRecord record;
    std::vector<int32_t> ids;
    if (HasNan(z) || HasNan(raw)) {
      record.flags = kSampleNonFinite;
    } else {
      ids = AllowedDescending(z);
      if (ids.empty()) record.flags = kSampleAllMasked;
    }
    std::optional<Logprobs> logprobs;
    if (!ids.empty()) {
      logprobs.emplace(z, raw, params);
      record.argmax = ids[0];
      record.argmax_logprob = logprobs->Of(ids[0]);
      record.token = params.temperature < 1e-5f ? ids[0] : Draw(z, params, ids);
      record.logprob = logprobs->Of(record.token);
      ids = logprobs->listed();
    }
    *reinterpret_cast<SampleRecord*>(args.record.row(r)) = record;
    if (!args.chosen.absent()) args.chosen.as<int32_t>()[r] = record.token;
    for (int64_t i = 0; i < problem.max_top; ++i) {
      const bool used = i < params.num_top && i < static_cast<int64_t>(ids.size());
      const int32_t id = used ? ids[static_cast<size_t>(i)] : -1;
      if (!args.top_id.absent()) args.top_id.as<int32_t>()[r * args.top_id.step(0) + i] = id;
      if (!args.top_logprob.absent()) {
        args.top_logprob.as<float>()[r * args.top_logprob.step(0) + i] =
            used ? logprobs->Of(id) : 0;
      }
    }
  }
};

absl::Status SampleTokensSupports(const SampleTokens::Problem& problem) {
  return Requirements().Wide(problem.wide).Positive("vocab", problem.vocab).Take();
}

// Probability of each token of a row under temperature and truncation; empty when the row has a NaN
// or allows nothing.
std::vector<double> Distribution(const std::vector<double>& z, const SampleParams& params) {
  if (HasNan(z)) return {};
  std::vector<int32_t> ids = AllowedDescending(z);
  if (ids.empty()) return {};
  std::vector<double> p(z.size(), 0);
  const double largest = z[static_cast<size_t>(ids[0])];
  if (largest == kInfinity) {
    p[static_cast<size_t>(ids[0])] = 1;
    return p;
  }
  Truncate(z, params, ids);
  std::sort(ids.begin(), ids.end());
  double sum = 0;
  for (const int32_t id : ids) {
    const auto v = static_cast<size_t>(id);
    p[v] = ExactExp((z[v] - largest) / double{params.temperature});
    sum += p[v];
  }
  for (double& value : p) value /= sum;
  return p;
}

// The winner of the race over `weight` (not normalised) with the RESIDUAL stream; -1 if all are 0.
int32_t DrawResidual(const std::vector<double>& weight, const SampleParams& params) {
  int32_t best = -1;
  double best_key = -kInfinity;
  for (size_t v = 0; v < weight.size(); ++v) {
    if (!(weight[v] > 0)) continue;
    const auto token = static_cast<int32_t>(v);
    const double key = ExactLog(weight[v]) + Noise(params, RandomPurpose::kResidual, token);
    if (best < 0 || key > best_key) {
      best = token;
      best_key = key;
    }
  }
  return best;
}

struct VerifyDraftsKernel {
  struct Result {
    double target = 0, draft = 0, mass = 0;
    float draft_logprob = 0, recovered_logprob = 0;
    int32_t recovered = -1;
    int32_t flags = 0;
  };
  static absl::Status Run(const VerifyDrafts::Problem& problem, const VerifyDrafts::Args& args,
                          Workspace, DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    for (int64_t r = 0; r < args.logits.dim(0); ++r) {
      const Result result = Row(problem, args, r);
      args.target_probability.as<float>()[r] = static_cast<float>(result.target);
      args.draft_probability.as<float>()[r] = static_cast<float>(result.draft);
      args.residual_mass.as<float>()[r] = static_cast<float>(result.mass);
      args.recovered.as<int32_t>()[r] = result.recovered;
      args.draft_logprob.as<float>()[r] = result.draft_logprob;
      args.recovered_logprob.as<float>()[r] = result.recovered_logprob;
      args.flags.as<int32_t>()[r] = result.flags;
    }
    return absl::OkStatus();
  }
  static Result Row(const VerifyDrafts::Problem& problem, const VerifyDrafts::Args& args,
                    int64_t r) {
    Result result;
    const VerifyParams& params = args.params.as<VerifyParams>()[r];
    const int64_t draft_rows = args.draft_logits.absent() ? 0 : args.draft_logits.dim(0);
    if (!HasDraft(params, problem.vocab, draft_rows)) return result;
    const std::vector<double> z = LoadRow<double>(args.logits, r);
    const std::vector<double> raw = RawRow(args.raw, z, r);
    const std::vector<double> p = Distribution(z, params.sampling);
    if (p.empty() || HasNan(raw)) {
      result.flags = HasNan(z) || HasNan(raw) ? kVerifyNonFinite : kVerifyAllMasked;
      return result;
    }
    const auto draft = static_cast<size_t>(params.draft_token);
    std::vector<double> q(z.size(), 0);
    if (params.form == DraftForm::kPoint) {
      q[draft] = 1;
    } else {
      const std::vector<double> drawn =
          Distribution(LoadRow<double>(args.draft_logits, params.draft_row), params.sampling);
      if (!drawn.empty()) q = drawn;
    }
    if (q[draft] == 0) result.flags |= kVerifyDraftMissing;
    std::vector<double> residual(z.size());
    for (size_t v = 0; v < z.size(); ++v) {
      residual[v] = std::max(p[v] - q[v], 0.0);
      result.mass += residual[v];
    }
    result.target = p[draft];
    result.draft = q[draft];
    result.recovered = DrawResidual(result.mass > kResidualMassMin ? residual : p, params.sampling);
    const Logprobs logprobs(z, raw, params.sampling);
    result.draft_logprob = logprobs.Of(params.draft_token);
    result.recovered_logprob = logprobs.Of(result.recovered);
    return result;
  }
};

struct PlaceDraftsKernel {
  static absl::Status Run(const PlaceDrafts::Problem& problem, const PlaceDrafts::Args& args,
                          Workspace, DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    for (int64_t r = 0; r < args.ids.dim(0); ++r) Row(problem, args, r);
    return absl::OkStatus();
  }
  static void Row(const PlaceDrafts::Problem& problem, const PlaceDrafts::Args& args, int64_t r) {
    const auto* record = reinterpret_cast<const SampleRecord*>(args.record.row(r));
    auto* ids = reinterpret_cast<int32_t*>(args.ids.row(r));
    auto* verify = reinterpret_cast<VerifyParams*>(args.verify_params.row(r));
    const int count = args.count.as<int32_t>()[r];
    for (int j = 1; j <= count; ++j) {
      const int32_t token = record[j - 1].token;
      ids[j] = token >= 0 && token < problem.vocab ? token : -1;
      verify[j - 1].draft_token = ids[j];
    }
    if (problem.ngram == 0) return;
    auto* ngram = reinterpret_cast<int32_t*>(args.ngram.row(r));
    for (int j = 1; j <= count; ++j) {
      for (int s = 0; s < problem.ngram; ++s) {
        const int32_t draft = s < j ? ids[j - s] : 0;
        ngram[j * problem.ngram + s] = s >= j      ? ngram[s - j]
                                       : draft < 0 ? 0
                                                   : args.token_map.as<int32_t>()[draft];
      }
    }
  }
};

absl::Status PlaceDraftsSupports(const PlaceDrafts::Problem& problem) {
  return Requirements().Positive("depth", problem.depth).Positive("vocab", problem.vocab).Take();
}

absl::Status VerifyDraftsSupports(const VerifyDrafts::Problem& problem) {
  return Requirements().Wide(problem.wide).Positive("vocab", problem.vocab).Take();
}

}  // namespace

absl::Status RegisterSampling(KernelRegistry& registry) {
  if (absl::Status status = RegisterBoth<VerifyDrafts, VerifyDraftsKernel, VerifyDraftsKernel>(
          registry, DeterminismClass::kBatchInvariant, &VerifyDraftsSupports);
      !status.ok()) {
    return status;
  }
  if (absl::Status status = RegisterBoth<PlaceDrafts, PlaceDraftsKernel, PlaceDraftsKernel>(
          registry, DeterminismClass::kBitwise, &PlaceDraftsSupports);
      !status.ok()) {
    return status;
  }
  return RegisterBoth<SampleTokens, SampleTokensKernel, SampleTokensKernel>(
      registry, DeterminismClass::kBatchInvariant, &SampleTokensSupports);
}

}  // namespace skein::kernels::reference
