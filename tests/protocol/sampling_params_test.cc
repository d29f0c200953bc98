// What a request may ask of sampling: each bound, one step beyond it, and numbers that are none.
#include "protocol/messages/sampling_params.h"

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace skein::protocol {
namespace {

struct Case {
  const char* name;
  std::function<void(SamplingParams&)> change;
  std::string error;  // empty: valid
};

TEST(SamplingParams, BoundsAreExactAndNamed) {
  const std::vector<Case> cases = {
      {"defaults", [](SamplingParams&) {}, ""},
      {"temperature 0", [](SamplingParams& p) { p.temperature = 0; }, ""},
      {"temperature 2", [](SamplingParams& p) { p.temperature = 2; }, ""},
      {"temperature above", [](SamplingParams& p) { p.temperature = 2.5F; },
       "temperature is 2.5, must be between 0 and 2"},
      {"temperature below", [](SamplingParams& p) { p.temperature = -0.5F; },
       "temperature is -0.5, must be between 0 and 2"},
      {"temperature NaN", [](SamplingParams& p) { p.temperature = NAN; },
       "temperature is nan, must be between 0 and 2"},
      {"top_p 1", [](SamplingParams& p) { p.top_p = 1; }, ""},
      {"top_p 0", [](SamplingParams& p) { p.top_p = 0; },
       "top_p is 0, must be above 0 and at most 1"},
      {"top_p above", [](SamplingParams& p) { p.top_p = 1.5F; },
       "top_p is 1.5, must be above 0 and at most 1"},
      {"min_p 1", [](SamplingParams& p) { p.min_p = 1; }, ""},
      {"min_p above", [](SamplingParams& p) { p.min_p = 2; },
       "min_p is 2, must be between 0 and 1"},
      {"top_k 1", [](SamplingParams& p) { p.top_k = 1; }, ""},
      {"top_k below", [](SamplingParams& p) { p.top_k = -1; },
       "top_k is -1, must be 0 (off) or at least 1"},
      {"top_logprobs 20", [](SamplingParams& p) { p.num_top_logprobs = 20; }, ""},
      {"top_logprobs 21", [](SamplingParams& p) { p.num_top_logprobs = 21; },
       "top_logprobs is 21, must be between 0 and 20"},
  };
  for (const Case& c : cases) {
    SamplingParams params;
    c.change(params);
    const absl::Status status = ValidateSamplingParams(params);
    EXPECT_EQ(status.ok(), c.error.empty()) << c.name;
    EXPECT_EQ(std::string(status.message()), c.error) << c.name;
  }
}

}  // namespace
}  // namespace skein::protocol
