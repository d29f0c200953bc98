// Tests of the error table.
// Thread: single.
// Must never: open a socket.
#include "coordinator/api/api_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

using ::testing::Contains;
using ::testing::Pair;

TEST(ApiErrorTest, WritesTheErrorObject) {
  EXPECT_EQ(ErrorBody(InvalidValue("n", "n is 0"), ErrorPlace::kResponse),
            "{\"error\":{\"message\":\"n is 0\",\"type\":\"invalid_request_error\",\"param\":\"n\","
            "\"code\":\"invalid_value\"}}");
  EXPECT_EQ(ErrorBody(FromStatus(absl::InternalError("x")), ErrorPlace::kInStream, "{\"a\":1}"),
            "{\"error\":{\"message\":\"x\",\"type\":\"server_error\",\"param\":null,\"code\":"
            "\"internal_error\",\"retryable\":true},\"usage\":{\"a\":1}}");
  const std::string overflow =
      ErrorBody(ContextLengthExceeded(5000, 1, 4096), ErrorPlace::kResponse);
  EXPECT_NE(overflow.find("maximum context length is 4096 tokens"), std::string::npos);
  EXPECT_NE(overflow.find("\"n_prompt_tokens\":5000,\"n_ctx\":4096"), std::string::npos);
}

TEST(ApiErrorTest, MapsStatusesToRows) {
  const auto row = [](const absl::Status& status) {
    const ApiError error = FromStatus(status);
    return std::to_string(error.status) + " " + error.type + " " + error.code;
  };
  EXPECT_EQ(row(absl::InvalidArgumentError("")), "400 invalid_request_error invalid_value");
  EXPECT_EQ(row(absl::UnimplementedError("")), "400 invalid_request_error unsupported_parameter");
  EXPECT_EQ(row(absl::ResourceExhaustedError("")), "503 server_error server_overloaded");
  EXPECT_EQ(row(absl::FailedPreconditionError("")), "503 server_error draining");
  EXPECT_EQ(row(absl::UnavailableError("")), "503 server_error not_ready");
  EXPECT_EQ(row(absl::DeadlineExceededError("")), "408 timeout_error request_timeout");
  EXPECT_EQ(row(absl::UnknownError("")), "500 server_error internal_error");
  EXPECT_FALSE(FromStatus(absl::UnknownError("")).message.empty());
}

TEST(ApiErrorTest, MapsRefusalsOfTheListener) {
  EXPECT_EQ(FromRefusal({408, "head", "slow"}).code, "request_timeout");
  EXPECT_EQ(FromRefusal({413, "body_bytes", "large"}).code, "request_too_large");
  EXPECT_EQ(FromRefusal({431, "head_bytes", "large"}).status, 431);
  EXPECT_EQ(FromRefusal({503, "connections", "full"}).code, "server_overloaded");
  EXPECT_EQ(FromRefusal({400, "host", "none"}).type, "invalid_request_error");
}

TEST(ApiErrorTest, AQuarantinedRequestMustNotComeBack) {
  const ApiError error = FromStatus(absl::AbortedError("it ended its workers"));
  EXPECT_EQ(error.status, 500);
  EXPECT_EQ(error.code, "request_quarantined");
  EXPECT_FALSE(IsRetryable(error));
  const protocol::HttpResponse response = ErrorResponse(error, 3);
  ASSERT_EQ(response.headers.size(), 1U);
  EXPECT_EQ(response.headers[0].first, "x-should-retry");
  EXPECT_EQ(response.headers[0].second, "false");
}

TEST(ApiErrorTest, AdvisesRetries) {
  EXPECT_THAT(ErrorResponse(FromStatus(absl::UnavailableError("")), 7).headers,
              Contains(Pair("Retry-After", "7")));
  ApiError limited = Draining();
  limited.status = 429;
  EXPECT_THAT(ErrorResponse(limited, 2).headers, Contains(Pair("retry-after-ms", "2000")));
  EXPECT_THAT(ErrorResponse(ModelNotFound("x"), 1).headers,
              Contains(Pair("x-should-retry", "false")));
  EXPECT_THAT(ErrorResponse(MethodNotAllowed("PUT", "GET"), 1).headers,
              Contains(Pair("Allow", "GET")));
  EXPECT_TRUE(IsRetryable(FromStatus(absl::DeadlineExceededError(""))));
  EXPECT_FALSE(IsRetryable(UnsupportedMediaType("x")));
  EXPECT_EQ(RouteNotFound("/x").message, "there is no route /x");
  EXPECT_EQ(RouteNotFound("/v1/embeddings").status, 400);
  EXPECT_EQ(RouteNotFound("/v1/embeddings").code, "unsupported_parameter");
  EXPECT_EQ(InvalidJson("m").code, "invalid_json");
  EXPECT_EQ(UnsupportedParameter("p", "m").code, "unsupported_parameter");
}

}  // namespace
}  // namespace skein::coordinator
