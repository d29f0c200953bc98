// Tests of the comparison: cases are matched by name, ratios are to the first file.
#include "worker/node/commands/bench_compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/base/strings.h"

namespace skein::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(BenchCompareTest, PutsNumbersOfTheSameCaseSideBySide) {
  const BenchFile a{"a.json",
                    "{\"bench\":\"b\",\"case\":\"one\",\"x\":2,\"name\":\"text\","
                    "\"in\":{\"p50\":4}}\n{\"bench\":\"b\",\"case\":\"two\",\"x\":5}\n"};
  const BenchFile b{"b.json",
                    "{\"bench\":\"b\",\"case\":\"two\",\"x\":10}\n"
                    "{\"bench\":\"b\",\"case\":\"one\",\"x\":3}\n"};
  const std::vector<BenchFile> files = {a, b};
  const auto table = CompareResults(files);
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(*table,
            "[0] a.json\n[1] b.json\n\nb one\n"
            "x                                            2.000         3.000   1.500x\n"
            "in.p50                                       4.000             -        -\n"
            "\nb two\n"
            "x                                            5.000        10.000   2.000x\n");
}

TEST(BenchCompareTest, NamesFileAndLine) {
  const std::vector<BenchFile> bad = {{"a", "{}\n[1]\n"}};
  EXPECT_EQ(protocol::StatusText(CompareResults(bad).status()), "a:2: no JSON object");
  const std::vector<BenchFile> empty = {{"a", "\n"}};
  EXPECT_EQ(protocol::StatusText(CompareResults(empty).status()), "a: the file is empty");
}

}  // namespace
}  // namespace skein::worker
