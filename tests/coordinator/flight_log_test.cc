// Tests of flight records: which are kept, how many, and what is said of them.
#include "coordinator/api/flight_log.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/json/json.h"

namespace skein::coordinator {
namespace {

FlightRecord Record(std::string id, absl::Duration total) {
  return {.request_id = std::move(id), .route = "/v1/completions", .end = "stop", .total = total};
}

std::vector<std::string> IdsIn(const FlightLog& log) {
  std::vector<std::string> ids;
  const auto json = protocol::ParseJson(log.Json());
  EXPECT_TRUE(json.ok()) << json.status();
  if (!json.ok()) return ids;
  for (const protocol::JsonValue& request : json->Find("requests")->elements()) {
    ids.emplace_back(request.Find("request_id")->string());
  }
  return ids;
}

TEST(FlightLogTest, KeepsWhatTookAtLeastTheThreshold) {
  FlightLog log(absl::Seconds(2));
  log.Add(Record("short", absl::Milliseconds(1999)));
  log.Add(Record("long", absl::Seconds(2)));
  log.Add(Record("longer", absl::Seconds(9)));
  EXPECT_THAT(IdsIn(log), testing::ElementsAre("longer", "long"));
}

TEST(FlightLogTest, TheOldestMakesRoom) {
  FlightLog log(absl::ZeroDuration());
  const size_t added = FlightLog::kRecordsMax + 5;
  for (size_t i = 0; i < added; ++i) log.Add(Record(std::to_string(i), absl::ZeroDuration()));
  const std::vector<std::string> ids = IdsIn(log);
  ASSERT_EQ(ids.size(), FlightLog::kRecordsMax);
  EXPECT_EQ(ids.front(), std::to_string(added - 1));
  EXPECT_EQ(ids.back(), "5");
}

TEST(FlightLogTest, SaysWhereTheTimeWent) {
  FlightLog log(absl::ZeroDuration());
  log.Add({.request_id = "a\"b",
           .route = "/v1/chat/completions",
           .end = "timeout",
           .status = 408,
           .created = 1'700'000'000,
           .total = absl::Milliseconds(10'500),
           .queued = absl::Milliseconds(9'000),
           .prefill = absl::Milliseconds(1'000),
           .decode = absl::Milliseconds(500),
           .choices = 2,
           .prompt_tokens = 7,
           .cached_tokens = 4,
           .completion_tokens = 3,
           .steps = 5,
           .draft_tokens = 6,
           .accepted_tokens = 1});
  EXPECT_EQ(log.Json(),
            R"({"threshold_s":0.0,"requests":[{"request_id":"a\"b","route":"/v1/chat/completions",)"
            R"("end":"timeout","status":408,"created":1700000000,"total_s":10.5,"queued_s":9.0,)"
            R"("prefill_s":1.0,"decode_s":0.5,"engine":null,"choices":2,"prompt_tokens":7,)"
            R"("cached_tokens":4,"completion_tokens":3,"steps":5,"draft_tokens":6,)"
            R"("accepted_tokens":1}]})");
}

}  // namespace
}  // namespace skein::coordinator
