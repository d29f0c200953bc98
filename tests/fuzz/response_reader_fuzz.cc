// Answers of a connection and their events: however the bytes arrive the same answers come out; a
// body that the listener frames reads back; events are what stands between empty lines.
// Thread: one.
// Must never: depend on anything but the input.
#include "protocol/http/event_splitter.h"
#include "protocol/http/response_framing.h"
#include "protocol/http/response_reader.h"
#include "tests/fuzz/fuzz_target.h"

namespace skein::tests {
namespace {

struct Answer {
  int status = 0;
  bool is_event_stream = false, keeps_alive = false;
  std::string body;
  friend bool operator==(const Answer&, const Answer&) = default;
};

struct Reading {
  std::vector<Answer> answers;  // whole ones
  std::string rest;             // of the body that is not whole
  absl::StatusCode end = absl::StatusCode::kOk;
  friend bool operator==(const Reading&, const Reading&) = default;
};

Reading Read(std::string_view text, Cut cut) {
  protocol::ResponseReader reader;
  Reading reading;
  const auto on_body = [&](std::string_view bytes) { reading.rest += bytes; };
  const auto take = [&] {
    reading.answers.push_back({reader.status(), reader.is_event_stream(), reader.keeps_alive(),
                               std::exchange(reading.rest, {})});
    reader.Reset();
  };
  for (std::string_view piece : Pieces(text, cut)) {
    while (!piece.empty()) {
      size_t used = 0;
      const absl::Status read = reader.Feed(piece, on_body, &used);
      if (!read.ok()) {
        reading.end = read.code();
        return reading;
      }
      Require(reader.is_whole() || used == piece.size(), "all bytes are used");
      piece.remove_prefix(used);
      if (reader.is_whole()) take();
    }
  }
  const bool began = reader.has_head();
  if (reader.Close().ok()) {
    Require(began, "no answer is no whole answer");
    take();
  } else {
    reading.end = absl::StatusCode::kDataLoss;
  }
  return reading;
}

void CheckFraming(std::string_view body) {
  protocol::HttpResponse response;
  response.headers = {{"x-request-id", "1"}};
  response.content_type = "text/event-stream";
  using protocol::BodyFraming;
  using protocol::KeepAlive;
  std::string chunked =
      protocol::MakeResponseHead(response, BodyFraming::kChunked, KeepAlive::kYes);
  for (const std::string_view piece : Pieces(body, Cut::kSome)) {
    protocol::AppendChunk(piece, &chunked);
  }
  chunked += "0\r\n\r\n";
  response.body = std::string(body);
  const std::string whole =
      protocol::MakeResponseHead(response, BodyFraming::kLength, KeepAlive::kYes) + response.body;
  const Reading expected = {
      {{200, true, true, std::string(body)}, {200, true, true, std::string(body)}},
      {},
      absl::StatusCode::kDataLoss};
  for (const Cut cut : kCuts) Require(Read(chunked + whole, cut) == expected, "a body reads back");
}

std::vector<std::string> Events(std::string_view text, Cut cut) {
  std::vector<std::string> events;
  protocol::EventSplitter splitter;
  for (const std::string_view piece : Pieces(text, cut)) {
    splitter.Feed(piece, [&](std::string_view event) {
      events.emplace_back(event);
      return true;
    });
  }
  return events;
}

void CheckEvents(std::string_view text) {
  std::vector<std::string> expected;
  for (size_t at = 0, end = 0; (end = text.find("\n\n", at)) != std::string_view::npos;
       at = end + 2) {
    const std::string_view event = text.substr(at, end - at);
    if (event.starts_with("data: ")) expected.emplace_back(event.substr(6));
  }
  for (const Cut cut : kCuts) {
    Require(Events(text, cut) == expected, "events are what stands between empty lines");
  }
}

void Check(std::string_view text) {
  const Reading whole = Read(text, Cut::kWhole);
  for (const Cut cut : {Cut::kBytes, Cut::kSome}) {
    Require(Read(text, cut) == whole, "cuts do not matter");
  }
  CheckFraming(text);
  CheckEvents(text);
}

}  // namespace
}  // namespace skein::tests

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  skein::tests::Check(skein::tests::TextOf(data, size));
  return 0;
}
