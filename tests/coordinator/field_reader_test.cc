// Tests of typed fields.
// Thread: single.
// Must never: open a socket.
#include "coordinator/api/field_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

using protocol::ParseJson;
using ::testing::ElementsAre;

TEST(FieldReaderTest, KeepsTheFirstErrorAndTheUnknownNames) {
  const auto object = ParseJson(R"({"a":1,"b":"x","c":null,"d":true})");
  FieldReader reader(*object, "outer.");
  EXPECT_EQ(reader.Int("a", 0, 5), 1);
  EXPECT_EQ(reader.Int("c", 0, 5), std::nullopt);
  EXPECT_EQ(reader.Int("b", 0, 5), std::nullopt);
  EXPECT_EQ(reader.Double("d", 0, 5), std::nullopt);
  EXPECT_EQ(reader.error()->param, "outer.b");
  EXPECT_EQ(reader.error()->message, "outer.b is \"x\"; expected an integer");
  EXPECT_TRUE(reader.UnknownNames().empty());
  FieldReader other(*object);
  EXPECT_EQ(other.Bool("d"), true);
  EXPECT_EQ(other.Choice("b", {"y", "x"}), 1u);
  EXPECT_EQ(other.String("b"), "x");
  EXPECT_THAT(other.UnknownNames(), ElementsAre("a", "c"));
}

}  // namespace
}  // namespace skein::coordinator
