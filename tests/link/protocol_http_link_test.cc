// Links protocol_http alone.
// Thread: main.
// Must never: use another library of the tree.
#include "protocol/http/http_server.h"

int main() {
  skein::protocol::HttpServer::Options options;
  options.host = "not-an-address";
  return skein::protocol::HttpServer::Create(std::move(options)).ok() ? 1 : 0;
}
