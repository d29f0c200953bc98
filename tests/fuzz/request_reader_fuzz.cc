// Requests of a connection: however the bytes arrive the same requests come out, they are those of
// a second reading of the rules, and both refuse the same bytes.
// Thread: one.
// Must never: depend on anything but the input.
#include "protocol/http/request_reader.h"
#include "tests/accept/framing_reference.h"
#include "tests/fuzz/fuzz_target.h"

namespace skein::tests {
namespace {

struct Reading {
  std::vector<ReferenceRequest> requests;
  std::string rule;  // of the refusal
};

Reading Read(std::string_view text, Cut cut) {
  protocol::HttpLimits limits;
  limits.pipelined_requests_max = size_t{1} << 20;  // requests are taken as they come
  protocol::RequestReader reader(limits);
  Reading reading;
  for (const std::string_view piece : Pieces(text, cut)) {
    reader.Feed(piece);
    while (reader.has_request()) {
      const protocol::HttpRequest request = reader.TakeRequest();
      Require(request.target.starts_with(request.path), "the path begins the target");
      reading.requests.push_back({request.method, request.target, request.body});
    }
    if (reader.refusal()) break;
    Require(reader.held_bytes() <= text.size(), "no more is held than came");
    (void)reader.TakeContinue();
    (void)reader.phase();
  }
  if (reader.refusal()) {
    reading.rule = reader.refusal()->rule;
    Require(!reading.rule.empty() && reader.refusal()->status >= 400, "a refusal names its rule");
    reader.Feed("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    Require(!reader.has_request(), "nothing follows a refusal");
  }
  return reading;
}

void Check(std::string_view text) {
  const Reading whole = Read(text, Cut::kWhole);
  for (const Cut cut : {Cut::kBytes, Cut::kSome}) {
    const Reading cut_up = Read(text, cut);
    Require(cut_up.requests == whole.requests, "cuts do not matter");
    Require(cut_up.rule.empty() == whole.rule.empty(), "nor for what is refused", whole.rule);
  }
  const ReferenceReading expected = ReadByTheRules(text);
  Require(expected.refused == !whole.rule.empty(), "the rules refuse the same", whole.rule);
  Require(expected.requests == whole.requests, "the rules read the same requests");
}

}  // namespace
}  // namespace skein::tests

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  skein::tests::Check(skein::tests::TextOf(data, size));
  return 0;
}
