#include "worker/metrics_listener.h"

#include <utility>

#include "protocol/base/status_macros.h"
#include "protocol/metrics/metrics.h"

namespace skein::worker {
namespace {

// A few scrapers; the rest of the world gets 503.
constexpr size_t kConnectionsMax = 32;
constexpr size_t kConnectionsPerAddressMax = 8;
constexpr size_t kHeadBytesMax = 8 * 1024;
constexpr size_t kBodyBytesMax = 1024;
protocol::HttpLimits Limits(std::chrono::milliseconds slowest) {
  protocol::HttpLimits limits;
  limits.connections_max = kConnectionsMax;
  limits.connections_per_address_max = kConnectionsPerAddressMax;
  limits.head_bytes_max = kHeadBytesMax;
  limits.body_bytes_max = kBodyBytesMax;
  limits.pipelined_requests_max = 1;
  limits.head_timeout = slowest;
  limits.body_grace = slowest;
  limits.write_timeout = slowest;
  // Who takes a place and asks nothing gives it up; a scraper makes a new connection.
  limits.keep_alive_timeout = slowest;
  return limits;
}

protocol::HttpResponse Answer(const protocol::HttpRequest& request,
                              const std::function<std::string()>& text) {
  protocol::HttpResponse response;
  response.content_type = "text/plain";
  if (request.path != "/metrics") {
    response.status = 404;
    response.body = "there is /metrics here, and nothing else\n";
  } else if (request.method != "GET" && request.method != "HEAD") {
    response.status = 405;
    response.headers.emplace_back("Allow", "GET, HEAD");
    response.body = "metrics are read with GET\n";
  } else {
    response.content_type = std::string(protocol::kMetricsContentType);
    response.body = text();
  }
  return response;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsListener>> MetricsListener::Create(Options options) {
  protocol::HttpServer::Options http;
  http.host = options.host;
  http.port = options.port;
  http.listen_fd = options.listen_fd;
  http.limits = Limits(options.slowest);
  http.on_request = [text = std::move(options.text)](
                        const protocol::HttpRequest& request,
                        const std::shared_ptr<protocol::HttpExchange>& exchange) {
    exchange->Respond(Answer(request, text));
  };
  SKEIN_ASSIGN_OR_RETURN(std::unique_ptr<protocol::HttpServer> server,
                         protocol::HttpServer::Create(std::move(http)));
  server->Start();
  return std::unique_ptr<MetricsListener>(new MetricsListener(std::move(server)));
}

}  // namespace skein::worker
