#include "protocol/messages/sampling_params.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace skein::protocol {
namespace {

absl::Status OutOfRange(const char* field, double value, const char* range) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", must be ", range));
}

// NaN is in no range.
bool Within(double value, double low, double high) { return value >= low && value <= high; }

}  // namespace

absl::Status ValidateSamplingParams(const SamplingParams& params) {
  if (!Within(params.temperature, 0, 2)) {
    return OutOfRange("temperature", params.temperature, "between 0 and 2");
  }
  if (!Within(params.top_p, 0, 1) || params.top_p == 0) {
    return OutOfRange("top_p", params.top_p, "above 0 and at most 1");
  }
  if (!Within(params.min_p, 0, 1)) return OutOfRange("min_p", params.min_p, "between 0 and 1");
  if (params.top_k < 0) return OutOfRange("top_k", params.top_k, "0 (off) or at least 1");
  if (params.num_top_logprobs < 0 || params.num_top_logprobs > 20) {
    return OutOfRange("top_logprobs", params.num_top_logprobs, "between 0 and 20");
  }
  return absl::OkStatus();
}

}  // namespace skein::protocol
