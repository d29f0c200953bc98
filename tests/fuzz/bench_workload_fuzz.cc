// Datasets of skein bench: a trace, and turns of conversations. What is accepted gives requests in
// order of their arrival, each with a body that is JSON; a refusal names the file.
// Thread: one.
// Must never: make a prompt of a million tokens because a number says so.
#include "protocol/base/strings.h"
#include "protocol/json/json.h"
#include "tests/fuzz/fuzz_target.h"
#include "worker/node/commands/bench_workload.h"

namespace skein::tests {
namespace {

using worker::BenchOptions;
using worker::BenchRequest;

bool HasLongNumber(std::string_view text) {
  size_t digits = 0;
  for (const char c : text) {
    digits = c >= '0' && c <= '9' ? digits + 1 : 0;
    if (digits > 5) return true;
  }
  return false;
}

void CheckDataset(const BenchOptions& options, std::string_view text) {
  const auto workload =
      worker::MakeWorkload(options, text, [](std::string_view answer) -> absl::StatusOr<int64_t> {
        return static_cast<int64_t>(answer.size());
      });
  if (!workload.ok()) {
    return Require(protocol::StatusText(workload.status()).starts_with(options.dataset_path),
                   "a refusal names the file", protocol::StatusText(workload.status()));
  }
  double before_s = 0;
  Require(!workload->requests.empty(), "there are requests");
  for (const BenchRequest& request : workload->requests) {
    Require(request.output_len > 0, "an answer has a length");
    Require(request.arrival_s >= before_s, "requests come in order");
    before_s = request.arrival_s;
    const auto body = protocol::ParseJson(request.body);
    Require(body.ok() && body->IsObject(), "a request is JSON", request.body);
  }
}

void Check(std::string_view text) {
  if (HasLongNumber(text)) return;
  BenchOptions options;
  options.dataset_path = "data.jsonl";
  options.num_prompts = 4;
  for (const char* const name : {"trace", "sharegpt"}) {
    options.dataset_name = name;
    for (const char* const endpoint : {"/v1/completions", "/v1/chat/completions"}) {
      options.endpoint = endpoint;
      CheckDataset(options, text);
    }
    options.model = "m";
    options.ignore_eos = true;
    options.output_len = 7;
    options.request_rate = 2;
    CheckDataset(options, text);
    options = {};
    options.dataset_path = "data.jsonl";
    options.num_prompts = 4;
  }
}

}  // namespace
}  // namespace skein::tests

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  skein::tests::Check(skein::tests::TextOf(data, size));
  return 0;
}
