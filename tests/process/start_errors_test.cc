// What cannot be served is refused before serving starts: the exit status and a text on standard
// error that names the file, tensor or key.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "protocol/base/strings.h"
#include "tests/process/live_server.h"
#include "tests/protocol/tls_client.h"

namespace skein::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

constexpr int kUsage = 64;
constexpr int kModel = 65;
constexpr int kConfiguration = 78;
constexpr char kShard[] = "model-00002-of-00002.safetensors";

// Starts with these flags and expects this end.
void ExpectRefused(LiveServer& server, const std::vector<std::string>& flags, int code,
                   std::vector<std::string> texts) {
  server.Start(flags);
  EXPECT_EQ(server.WaitForExit(), code) << server.output();
  for (const std::string& text : texts) EXPECT_THAT(server.errors(), HasSubstr(text));
  EXPECT_THAT(server.output(), Not(HasSubstr("worker.0: ready"))) << "it never served";
  EXPECT_THAT(server.Alive(), IsEmpty());
}

// A copy of the demo model that a test may damage.
std::string CopyModel(const LiveServer& server) {
  const std::string model = server.directory() + "/model";
  std::filesystem::copy("deploy/models/tiny-v41", model);
  return model;
}

TEST(StartErrorsTest, ATruncatedShard) {
  LiveServer server;
  const std::string model = CopyModel(server);
  const std::string shard = model + "/" + kShard;
  std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 1000);
  ExpectRefused(server, {model}, kModel, {kShard, "child refused to start"});
}

TEST(StartErrorsTest, AMissingShard) {
  LiveServer server;
  const std::string model = CopyModel(server);
  std::filesystem::remove(model + "/" + kShard);
  ExpectRefused(server, {model}, kModel, {kShard});
}

TEST(StartErrorsTest, AConfigThatIsNoJson) {
  LiveServer server;
  const std::string model = CopyModel(server);
  std::ofstream(model + "/config.json") << "{\"model_type\": ";
  ExpectRefused(server, {model}, kModel, {"config.json", "the text ends inside a value"});
}

TEST(StartErrorsTest, AMissingTokenizer) {
  LiveServer server;
  const std::string model = CopyModel(server);
  std::filesystem::remove(model + "/tokenizer.json");
  ExpectRefused(server, {model}, kModel, {"tokenizer.json"});
}

TEST(StartErrorsTest, AContextLongerThanTheModels) {
  LiveServer server;
  const std::string model = CopyModel(server);
  std::stringstream text;
  text << std::ifstream(model + "/config.json").rdbuf();
  std::string config = text.str();
  const std::string key = "\"max_position_embeddings\": ";
  const size_t at = config.find(key) + key.size();
  config.replace(at, config.find(',', at) - at, "4096");
  std::ofstream(model + "/config.json") << config;
  ExpectRefused(server, {model, "--max-model-len", "4097"}, kConfiguration,
                {"model.max_model_len is 4097, the model's config.json allows 4096"});
}

TEST(StartErrorsTest, NoModelThere) {
  LiveServer server;
  ExpectRefused(server, {"/no/such/model"}, kModel,
                {"model /no/such/model: no readable config.json there"});
}

TEST(StartErrorsTest, Flags) {
  const struct {
    std::vector<std::string> flags;
    int code;
    std::vector<std::string> texts;
  } cases[] = {
      {{"--max-model-length", "8"},
       kUsage,
       {"--max-model-length: unknown flag; did you mean --max-model-len?"}},
      {{"--max-num-seqs", "many"}, kUsage, {"--max-num-seqs: \"many\""}},
      {{"--max-num-seqs", "0"}, kUsage, {"--max-num-seqs"}},
      {{"-dp", "65"}, kUsage, {"--data-parallel-size: 65 is out of range; give an integer from 1"}},
      {{"--backend", "gpu9"}, kConfiguration, {"worker.backend (--backend): \"gpu9\""}},
      {{"--kernels", "linear=gpu9"},
       kConfiguration,
       {"worker.kernels: linear: no backend \"gpu9\" for this device; it has"}},
      {{"--kernels", "frobnicate=cpu"}, kConfiguration, {"worker.kernels", "frobnicate"}},
      {{"--kernels", "linear"},
       kConfiguration,
       {"worker.kernels: \"linear\" must be operator=backend"}},
      {{"--max-model-len", "2000000"}, kUsage, {"--max-model-len: 2000000"}},
      {{"--block-size", "63"},
       kConfiguration,
       {"scheduler.block_size is 63, must be a multiple of"}},
      {{"--num-blocks", "1"}, kConfiguration, {"worker.num_blocks is 1, one sequence of"}},
  };
  for (const auto& test : cases) {
    SCOPED_TRACE(test.flags[0] + " " + test.flags[1]);
    LiveServer server;
    ExpectRefused(server, test.flags, test.code, test.texts);
  }
}

TEST(StartErrorsTest, ConfigurationFiles) {
  const struct {
    const char* text;
    const char* error;
  } cases[] = {
      {"server:\n  prot: 8000\n", ":2: server.prot: unknown key; did you mean server.port?"},
      {"sever:\n  port: 8000\n", ":1: sever: unknown key"},
      {"server:\n  port: eight\n", ":2: server.port: \"eight\""},
      {"server:\n  port: 1\n  port: 2\n", ":3: server.port: "},
      {"scheduler:\n  lanes: 3\n", ":2: scheduler.lanes: "},
      {"\xFF\xFE", ": byte 1 is no UTF-8 text; save the file as UTF-8"},
  };
  for (const auto& test : cases) {
    SCOPED_TRACE(test.text);
    LiveServer server;
    const std::string file = server.directory() + "/skein.yaml";
    std::ofstream(file) << test.text;
    ExpectRefused(server, {"--config", file}, kConfiguration, {file + test.error});
  }
}

// Exit status and output of skein with these arguments, and at most so many descriptors.
std::pair<int, std::string> RunSkein(const LiveServer& place, const std::string& arguments,
                                     int descriptors = 1024) {
  const std::string output = place.directory() + "/output";
  const std::string line =
      protocol::Concat("ulimit -n ", descriptors, "; exec timeout 60 ", SKEIN_PROGRAM_DIRECTORY,
                       "/skein ", arguments, " >", output, " 2>&1");
  const int status = std::system(line.c_str());
  EXPECT_TRUE(WIFEXITED(status)) << line;
  std::stringstream text;
  text << std::ifstream(output).rdbuf();
  return {WEXITSTATUS(status), text.str()};
}

TEST(StartErrorsTest, CommandsWithoutArgumentsTakeNone) {
  const LiveServer place;
  EXPECT_THAT(RunSkein(place, "version"), Pair(0, HasSubstr("skein 0.1.0, backends reference")));
  EXPECT_THAT(RunSkein(place, "version extra"),
              Pair(kUsage, HasSubstr("version takes no arguments, \"extra\" was given")));
  EXPECT_THAT(RunSkein(place, "help me"), Pair(kUsage, HasSubstr("help takes no arguments")));
}

// A pair that does not fit, and one file alone.
TEST(StartErrorsTest, CertificatesThatCannotBeUsed) {
  const TestCertificate one("start_one");
  const TestCertificate other("start_other");
  LiveServer mismatch;
  ExpectRefused(
      mismatch, {"--ssl-certfile", one.certificate(), "--ssl-keyfile", other.key()}, kConfiguration,
      {"server.ssl_keyfile (--ssl-keyfile): " + other.key() + ": key values mismatch; give",
       "that belongs to the certificate in " + one.certificate()});
  LiveServer alone;
  ExpectRefused(alone, {"--ssl-certfile", one.certificate()}, kConfiguration,
                {"server.ssl_keyfile (--ssl-keyfile): TLS needs both, and"});
}

TEST(StartErrorsTest, KeysThatCannotBeUsed) {
  LiveServer missing;
  ExpectRefused(missing, {"--api-key-file", "/nonexistent/keys.yaml"}, kConfiguration,
                {"server.api_key_file (--api-key-file): /nonexistent/keys.yaml cannot be read"});
  LiveServer broken;
  const std::string file = broken.directory() + "/keys.yaml";
  std::ofstream(file) << "keys:\n  alice:\n    hmac: none\n";
  ExpectRefused(broken, {"--api-key-file", file}, kConfiguration,
                {file + ":3: keys.alice.hmac: give the 64 hexadecimal digits that"});
}

TEST(StartErrorsTest, RunDirectoriesThatCannotHoldSockets) {
  const LiveServer place;
  const std::string deep = place.directory() + "/" + std::string(120, 'a');
  for (const char* command : {"doctor", "serve"}) {
    const std::string start =
        protocol::Concat(command, " deploy/models/tiny-v41 --port 0 --state-directory ",
                         place.directory(), "/state --run-directory ");
    EXPECT_THAT(RunSkein(place, start + deep),
                Pair(kConfiguration,
                     HasSubstr("node.run_directory (--run-directory): " + deep + ": has ")));
    EXPECT_THAT(RunSkein(place, start + "/proc"),
                Pair(kConfiguration,
                     HasSubstr("node.run_directory (--run-directory): /proc: nothing can be "
                               "written there: No such file or directory; make room there or give "
                               "a directory that can be written")));
  }
}

// Each names key, value, reason and remedy.
TEST(StartErrorsTest, PlacesThatCannotBeUsed) {
  LiveServer place;
  const std::string file = place.directory() + "/file";
  std::ofstream(file) << "kept";
  const struct {
    std::vector<std::string> flags;
    int code;
    std::string text;
  } cases[] = {
      {{"--state-directory", "/no/such/state"},
       kConfiguration,
       "node.state_directory (--state-directory): /no/such/state: cannot be made: No such file or "
       "directory; make room there or choose another"},
      {{"--admin-listen", "unix:/no/such/admin.sock"},
       kConfiguration,
       "admin.listen (--admin-listen): cannot listen on /no/such/admin.sock: No such file or "
       "directory; make its directory or choose another path"},
      {{"--admin-listen", "unix:" + file},
       kConfiguration,
       "a file that is no socket is there: remove it or choose another path"},
      {{"--admin-listen", "127.0.0.1:0", "--admin-token-file", "/no/token"},
       kConfiguration,
       "admin.token_file (--admin-token-file): /no/token cannot be read: No such file or "
       "directory"},
      {{"--control-endpoint", "ipc://foo"},
       kConfiguration,
       "transport.control_endpoint (--control-endpoint): \"ipc://foo\" is neither ipc:///path, "
       "with "
       "an absolute path"},
      {{"--control-endpoint", "ipc:///no/such/control"},
       kConfiguration,
       "transport.control_endpoint (--control-endpoint): ipc:///no/such/control: directory "
       "/no/such: No such file or directory; make it, with mode 0700, or choose another"},
  };
  for (const auto& test : cases) {
    SCOPED_TRACE(test.flags[0] + " " + test.flags[1]);
    LiveServer server;
    ExpectRefused(server, test.flags, test.code, {test.text});
  }
  std::string kept;
  std::ifstream(file) >> kept;
  EXPECT_EQ(kept, "kept");
}

// Fewer descriptors than the control sockets and some clients need: accepted connections would
// starve the rest.
TEST(StartErrorsTest, TooFewDescriptors) {
  LiveServer place;
  const auto start = [&place](int descriptors) {
    return RunSkein(place, "doctor deploy/models/tiny-v41 --port 0", descriptors);
  };
  const auto [refused, why] = start(127);
  EXPECT_EQ(refused, kConfiguration);
  EXPECT_THAT(why, HasSubstr("descriptors: at most 127, 128 needed; LimitNOFILE in the unit or "
                             "ulimit -n"));
  const auto [started, table] = start(128);
  EXPECT_EQ(started, 0) << table;
  EXPECT_THAT(table, HasSubstr("descriptors     degraded  at most 128, "));
}

// Flags that only the supervisor gives are no less strict.
TEST(StartErrorsTest, InternalFlagsThatAreNoNumbers) {
  const struct {
    std::string command;
    std::string flag;
  } cases[] = {{"coordinator", "term"},
               {"coordinator", "supervisor-fd"},
               {"worker", "incarnation"},
               {"worker", "worker-index"}};
  for (const auto& test : cases) {
    SCOPED_TRACE(test.command + " " + test.flag);
    const LiveServer place;
    const std::string errors = place.directory() + "/errors";
    const std::string line = std::string(SKEIN_PROGRAM_DIRECTORY "/skein ") + test.command + " --" +
                             test.flag + "=abc --model deploy/models/tiny-v41 2>" + errors;
    const int status = std::system(line.c_str());
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), kUsage);
    std::stringstream text;
    text << std::ifstream(errors).rdbuf();
    EXPECT_THAT(text.str(), HasSubstr("--" + test.flag + ": \"abc\" is not an integer"));
  }
}

// Runs skein-coordinator alone with this state, which ends at once, if only for want of a control
// socket; what it said.
std::string RunCoordinatorAlone(const std::string& state,
                                const std::string& more = "ipc:///no/such/directory/control") {
  const std::string errors = state + ".errors";
  const std::string line = std::string(SKEIN_PROGRAM_DIRECTORY "/skein-coordinator") +
                           " --model deploy/models/tiny-v41 --backend cpu --port 0 "
                           "--state-directory " +
                           state + " --control-endpoint " + more + " 2>" + errors;
  const int status = std::system(line.c_str());
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), kConfiguration);
  std::stringstream text;
  text << std::ifstream(errors).rdbuf();
  return text.str();
}

TEST(StartErrorsTest, ACoordinatorWithoutASupervisorTakesTheNextTerm) {
  const LiveServer place;
  const std::string state = place.directory() + "/state";
  const auto term_of = [](const std::string& said) {
    const size_t at = said.find("msg=\"term taken\" term=");
    EXPECT_NE(at, std::string::npos) << said;
    return at == std::string::npos ? 0 : std::strtoull(said.c_str() + at + 22, nullptr, 10);
  };
  const uint64_t first = term_of(RunCoordinatorAlone(state));
  EXPECT_GT(first, 0u);
  EXPECT_GT(term_of(RunCoordinatorAlone(state)), first);
  std::ofstream(state + "/term") << "skein term 12";
  EXPECT_THAT(RunCoordinatorAlone(state), HasSubstr("/term is torn"));
}

// Only a supervisor examines its host.
TEST(StartErrorsTest, ACoordinatorWithoutASupervisorNamesNoDegradedFeatures) {
  const LiveServer place;
  const std::string said = RunCoordinatorAlone(
      place.directory() + "/state", "ipc://" + place.directory() + "/control --degraded-header 1");
  EXPECT_THAT(said, HasSubstr("server.degraded_header (--degraded-header): 1, but nobody examined "
                              "this host; start the coordinator by skein serve, or give 0"));
}

// A flag is no file name: `keygen --help` once wrote keys into a file of that name.
TEST(StartErrorsTest, KeygenTakesNoFlagForAFile) {
  const std::string keygen = SKEIN_PROGRAM_DIRECTORY "/skein keygen ";
  const auto code = [&](const char* arguments) {
    return WEXITSTATUS(std::system((keygen + arguments + " >/dev/null 2>&1").c_str()));
  };
  EXPECT_EQ(code("--help"), 0);
  EXPECT_EQ(code("--apj"), kUsage);
  EXPECT_EQ(code(""), kUsage);
  EXPECT_FALSE(std::filesystem::exists("--help"));
  EXPECT_FALSE(std::filesystem::exists("--apj"));
}

TEST(StartErrorsTest, APortInUse) {
  const worker::Descriptor holder(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(::bind(holder.get(), raw, size), 0);
  ASSERT_EQ(::listen(holder.get(), 1), 0);
  ASSERT_EQ(::getsockname(holder.get(), raw, &size), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  LiveServer server;
  ExpectRefused(server, {"--port", port}, kConfiguration,
                {"port: 127.0.0.1:" + port + ": Address already in use; end what listens there"});
}

}  // namespace
}  // namespace skein::tests
