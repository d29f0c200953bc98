// Tests of the guard against circles: what is one, from when on, and what is none.
#include "coordinator/api/repetition_guard.h"

#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

// How many tokens of `circle`, again and again behind 1, 2, 3, are added until it is noticed.
size_t NoticedAfter(uint32_t ngram, const std::vector<int32_t>& circle) {
  RepetitionGuard guard(ngram);
  for (const int32_t token : {1, 2, 3}) EXPECT_FALSE(guard.Append(token));
  for (size_t i = 0; i < 1000; ++i) {
    if (guard.Append(circle[i % circle.size()])) return i + 1;
  }
  return 0;
}

TEST(RepetitionGuardTest, NoticesCirclesUpToTheirLongest) {
  EXPECT_EQ(NoticedAfter(4, {7}), 16u);
  EXPECT_EQ(NoticedAfter(4, {7, 8}), 16u);
  EXPECT_EQ(NoticedAfter(4, {7, 8, 9}), 16u) << "a length that does not divide the longest";
  EXPECT_EQ(NoticedAfter(4, {7, 8, 9, 7}), 16u);
  EXPECT_EQ(NoticedAfter(4, {7, 8, 9, 10, 11}), 0u) << "longer than asked for";
  EXPECT_EQ(NoticedAfter(1, {7}), 4u);
  EXPECT_EQ(NoticedAfter(kRepetitionNgramMax, {7, 8}), 4u * kRepetitionNgramMax);
}

TEST(RepetitionGuardTest, AnotherTokenBeginsAnew) {
  RepetitionGuard guard(2);
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 7; ++i) EXPECT_FALSE(guard.Append(5)) << round << " " << i;
    EXPECT_FALSE(guard.Append(6 + round));
  }
  for (int i = 0; i < 7; ++i) EXPECT_FALSE(guard.Append(5));
  EXPECT_TRUE(guard.Append(5));
}

TEST(RepetitionGuardTest, WithoutALengthNothingIsNoticed) { EXPECT_EQ(NoticedAfter(0, {7}), 0u); }

}  // namespace
}  // namespace skein::coordinator
