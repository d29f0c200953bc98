// Tests of the HTTP values.
// Thread: single.
// Must never: open a socket.
#include "protocol/http/http_message.h"

#include <gtest/gtest.h>

namespace skein::protocol {
namespace {

TEST(HttpMessageTest, HeaderNamesIgnoreAsciiCase) {
  EXPECT_TRUE(HeaderNameEquals("Content-Type", "content-TYPE"));
  EXPECT_FALSE(HeaderNameEquals("Content-Type", "Content-Typ"));
  HttpRequest request;
  request.headers = {{"A", "1"}, {"a", "2"}};
  EXPECT_EQ(request.Header("a"), "1");
}

TEST(HttpMessageTest, EveryStatusInUseHasAReason) {
  for (int status : {200, 400, 401, 403, 404, 405, 408, 413, 415, 429, 431, 500, 503}) {
    EXPECT_NE(HttpReason(status), "Status") << status;
  }
}

TEST(HttpMessageTest, DecodesEscapesAndKeepsBrokenOnes) {
  EXPECT_EQ(PercentDecoded("org%2Falias%20x"), "org/alias x");
  EXPECT_EQ(PercentDecoded("100%"), "100%");
  EXPECT_EQ(PercentDecoded("%zz%4"), "%zz%4");
}

}  // namespace
}  // namespace skein::protocol
