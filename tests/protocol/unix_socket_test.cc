// HTTP over a Unix socket: an exchange, who the peer is, who may open it, and stale files.
#include "protocol/http/unix_socket.h"

#include <fstream>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "protocol/http/http_client.h"
#include "protocol/http/http_server.h"

namespace skein::protocol {
namespace {

using ::testing::HasSubstr;

std::string SocketPath(const char* name) {
  return ::testing::TempDir() + "/" + name + "." + std::to_string(::getpid());
}

std::unique_ptr<HttpServer> Serve(const std::string& path) {
  HttpServer::Options options;
  options.unix_path = path;
  options.on_request = [](HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
    exchange->Respond({200, "text/plain", {}, request.peer_address + " " + request.path});
  };
  auto server = HttpServer::Create(std::move(options));
  EXPECT_TRUE(server.ok()) << server.status();
  if (!server.ok()) return nullptr;
  (*server)->Start();
  return *std::move(server);
}

absl::StatusOr<HttpResult> Get(const std::string& path) {
  HttpCall call;
  call.unix_path = path;
  call.target = "/where";
  return CallHttp(call);
}

TEST(UnixSocketTest, ServesItsUserAndSaysWhoAsked) {
  const std::string path = SocketPath("served");
  auto server = Serve(path);
  ASSERT_NE(server, nullptr);
  const auto answer = Get(path);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->body, "uid:" + std::to_string(::getuid()) + " /where");
  struct stat file {};
  ASSERT_EQ(::stat(path.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777u, 0600u);
  server->Stop();
  EXPECT_NE(::stat(path.c_str(), &file), 0) << "the file is removed";
  EXPECT_THAT(std::string(Get(path).status().message()),
              HasSubstr("cannot connect to " + path + ": No such file or directory"));
}

TEST(UnixSocketTest, ALiveSocketIsNotTakenAndADeadOneIs) {
  const std::string path = SocketPath("taken");
  auto server = Serve(path);
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(ListenUnix(path, 1).status(),
            absl::AlreadyExistsError("somebody listens on " + path +
                                     " already; stop that server or choose another path"));
  server->Stop();
  const auto dead = ListenUnix(path, 1);
  ASSERT_TRUE(dead.ok());
  ::close(*dead);
  const auto again = Serve(path);
  ASSERT_NE(again, nullptr);
  EXPECT_TRUE(Get(path).ok());
}

TEST(UnixSocketTest, ASocketWithAFullBacklogLives) {
  const std::string path = SocketPath("full");
  const auto listening = ListenUnix(path, 0);
  ASSERT_TRUE(listening.ok());
  std::vector<int> waiting;
  for (auto fd = ConnectUnix(path); fd.ok() && waiting.size() < 100; fd = ConnectUnix(path)) {
    waiting.push_back(*fd);
  }
  ASSERT_LT(waiting.size(), 100u) << "the backlog is full";
  EXPECT_EQ(ListenUnix(path, 1).status().code(), absl::StatusCode::kAlreadyExists);
  struct stat file {};
  EXPECT_EQ(::stat(path.c_str(), &file), 0) << "it is not taken away";
  for (const int fd : waiting) ::close(fd);
  ::close(*listening);
  RemoveUnix(path);
}

TEST(UnixSocketTest, AMissingDirectoryIsNamed) {
  EXPECT_EQ(ListenUnix("/no/such/s", 1).status().message(),
            "cannot listen on /no/such/s: No such file or directory; make its directory or choose "
            "another path");
}

TEST(UnixSocketTest, AFileThatIsNoSocketStays) {
  const std::string path = SocketPath("file");
  std::ofstream(path) << "kept";
  EXPECT_THAT(std::string(ListenUnix(path, 1).status().message()),
              HasSubstr("cannot listen on " + path +
                        ": Address already in use; a file that is no socket is there: remove it or "
                        "choose another path"));
  RemoveUnix(path);
  std::string text;
  std::ifstream(path) >> text;
  EXPECT_EQ(text, "kept");
  ::unlink(path.c_str());
}

}  // namespace
}  // namespace skein::protocol
