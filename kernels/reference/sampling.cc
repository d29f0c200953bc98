// Reference choice of tokens: full sort, integer weights, Gumbel race in f64 over every kept token.
// Plain code in the calling thread; a random number depends on (seed, position, token) alone.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/exact_math.h"
#include "kernels/philox.h"
#include "kernels/reference/element.h"
#include "kernels/reference/register.h"

namespace skein::kernels::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

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

// Key of token v in the race: z/temperature plus Gumbel noise of its own 64 random bits.
double RaceKey(double z, const SampleParams& params, int32_t v) {
  const uint32_t block = static_cast<uint32_t>(v) / 4;
  const size_t word = static_cast<size_t>(v) % 4;
  const uint32_t high =
      RandomBlock(params.seed, params.position, RandomPurpose::kPlain, block, 0)[word];
  const uint32_t low =
      RandomBlock(params.seed, params.position, RandomPurpose::kPlain, block, 1)[word];
  return z / double{params.temperature} + GumbelNoise(high, low);
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

struct SampleTokensKernel {
  static absl::Status Run(const SampleTokens::Problem& problem, const SampleTokens::Args& args,
                          Workspace, DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    for (int64_t r = 0; r < args.logits.dim(0); ++r) Row(problem, args, r);
    return absl::OkStatus();
  }
  static void Row(const SampleTokens::Problem& problem, const SampleTokens::Args& args, int64_t r) {
    const std::vector<double> z = LoadRow<double>(args.logits, r);
    const SampleParams& params = args.params.as<SampleParams>()[r];
    SampleRecord record;
    std::vector<int32_t> ids;
    double log_sum = 0;
    if (std::any_of(z.begin(), z.end(), [](double v) { return std::isnan(v); })) {
      record.flags = kSampleNonFinite;
    } else {
      ids = AllowedDescending(z);
      if (ids.empty()) record.flags = kSampleAllMasked;
    }
    const auto logprob = [&z, &log_sum](int32_t id) {
      const double value = z[static_cast<size_t>(id)];
      return value == kInfinity ? 0.0f : static_cast<float>(value - log_sum);
    };
    if (!ids.empty()) {
      const double largest = z[static_cast<size_t>(ids[0])];
      double sum = 0;
      for (const double value : z) sum += std::exp(value - largest);
      log_sum = largest == kInfinity ? kInfinity : largest + std::log(sum);
      record.argmax = ids[0];
      record.argmax_logprob = logprob(ids[0]);
      record.token = params.temperature < 1e-5f ? ids[0] : Draw(z, params, ids);
      record.logprob = logprob(record.token);
    }
    args.record.as<SampleRecord>()[r] = record;
    for (int64_t i = 0; i < problem.max_top; ++i) {
      const bool used = i < params.num_top && i < static_cast<int64_t>(ids.size());
      const int32_t id = used ? ids[static_cast<size_t>(i)] : -1;
      if (!args.top_id.absent()) args.top_id.as<int32_t>()[r * args.top_id.step(0) + i] = id;
      if (!args.top_logprob.absent()) {
        args.top_logprob.as<float>()[r * args.top_logprob.step(0) + i] = used ? logprob(id) : 0;
      }
    }
  }
};

absl::Status SampleTokensSupports(const SampleTokens::Problem& problem) {
  return Requirements().Wide(problem.wide).Positive("vocab", problem.vocab).Take();
}

}  // namespace

absl::Status RegisterSampling(KernelRegistry& registry) {
  return RegisterBoth<SampleTokens, SampleTokensKernel, SampleTokensKernel>(
      registry, DeterminismClass::kBatchInvariant, &SampleTokensSupports);
}

}  // namespace skein::kernels::reference
