// Tests of the splitter: events in any pieces, comments, the end on request.
#include "protocol/http/event_splitter.h"

#include <vector>

#include <gtest/gtest.h>

namespace skein::protocol {
namespace {

constexpr std::string_view kStream =
    "data: one\n\n: keep-alive\n\ndata: {\"a\":2}\n\ndata: [DONE]\n\n";
const std::vector<std::string> kEvents = {"one", "{\"a\":2}", "[DONE]"};

std::vector<std::string> Split(std::string_view text, size_t piece) {
  EventSplitter splitter;
  std::vector<std::string> events;
  for (; !text.empty(); text.remove_prefix(std::min(piece, text.size()))) {
    EXPECT_TRUE(splitter.Feed(text.substr(0, piece), [&](std::string_view event) {
      events.emplace_back(event);
      return true;
    }));
  }
  EXPECT_EQ(splitter.waiting_bytes(), 0u);
  return events;
}

TEST(EventSplitterTest, GivesTheSameEventsForEveryCut) {
  for (size_t piece = 1; piece <= kStream.size(); ++piece) {
    EXPECT_EQ(Split(kStream, piece), kEvents) << piece;
  }
}

TEST(EventSplitterTest, KeepsWhatIsNotWhole) {
  EventSplitter splitter;
  const auto fail = [](std::string_view) {
    ADD_FAILURE();
    return true;
  };
  EXPECT_TRUE(splitter.Feed("data: half", fail));
  EXPECT_EQ(splitter.waiting_bytes(), 10u);
  splitter.Clear();
  EXPECT_EQ(splitter.waiting_bytes(), 0u);
}

TEST(EventSplitterTest, EndsWhenTheReceiverSaysSo) {
  for (const size_t piece : {size_t{4}, kStream.size()}) {
    EventSplitter splitter;
    int seen = 0;
    bool goes_on = true;
    for (std::string_view rest = kStream; goes_on && !rest.empty();
         rest.remove_prefix(std::min(piece, rest.size()))) {
      goes_on = splitter.Feed(rest.substr(0, piece), [&](std::string_view) {
        ++seen;
        return seen < 2;
      });
    }
    EXPECT_FALSE(goes_on) << piece;
    EXPECT_EQ(seen, 2) << piece;
  }
}

}  // namespace
}  // namespace skein::protocol
