// skein bench against a real server: what it counts is what was asked for, and how it ends.
#include <array>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include "protocol/base/strings.h"
#include "protocol/json/json.h"
#include "tests/process/live_server.h"
#include "tests/protocol/tls_client.h"

namespace skein::tests {
namespace {

using protocol::Concat;
using ::testing::HasSubstr;

// Runs the command with these flags; exit code and both streams.
std::pair<int, std::string> RunBench(const std::string& flags) {
  const std::string command = Concat(SKEIN_PROGRAM_DIRECTORY, "/skein bench ", flags, " 2>&1");
  FILE* const pipe = ::popen(command.c_str(), "r");
  std::string output;
  std::array<char, 4096> piece{};
  while (const size_t size = std::fread(piece.data(), 1, piece.size(), pipe)) {
    output.append(piece.data(), size);
  }
  const int status = ::pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}

protocol::JsonValue ReadResult(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return protocol::ParseJson(text.str()).value_or(protocol::JsonValue());
}

class BenchTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(server_.StartReady()) << server_.output(); }
  std::string Server() const { return Concat("--port ", server_.port(), " "); }
  // The result of a run that must succeed.
  protocol::JsonValue Measure(const std::string& flags) const {
    const auto [code, output] =
        RunBench(Concat(Server(), "--save-result --result-dir ", server_.directory(),
                        " --result-filename r.json ", flags));
    EXPECT_EQ(code, 0) << output;
    EXPECT_THAT(output, HasSubstr("Serving Benchmark Result"));
    return ReadResult(server_.directory() + "/r.json");
  }
  static int64_t Number(const protocol::JsonValue& result, std::string_view key) {
    const protocol::JsonValue* value = result.Find(key);
    return value == nullptr ? -1 : value->AsInt64(key).value_or(-1);
  }

  LiveServer server_;
};

TEST_F(BenchTest, CountsExactlyWhatWasServed) {
  const auto closed = Measure(
      "--num-prompts 12 --random-input-len 9 --random-output-len 5 --ignore-eos "
      "--max-concurrency 3");
  EXPECT_EQ(Number(closed, "completed"), 12);
  EXPECT_EQ(Number(closed, "failed"), 0);
  EXPECT_EQ(Number(closed, "total_input_tokens"), 12 * 9);
  EXPECT_EQ(Number(closed, "total_output_tokens"), 12 * 5);
  EXPECT_EQ(server_.Metric("skein_generation_tokens_total"), 12 * 5);
  EXPECT_EQ(server_.Metric("skein_prompt_tokens_total"), 12 * 9);

  const auto open = Measure(
      "--num-prompts 6 --random-input-len 4 --random-output-len 3 --ignore-eos "
      "--request-rate 100 --endpoint /v1/chat/completions --goodput e2el:1e9");
  EXPECT_EQ(Number(open, "completed"), 6);
  EXPECT_EQ(Number(open, "total_output_tokens"), 6 * 3);
  EXPECT_EQ(open.Find("request_goodput")->AsDouble("").value_or(-1),
            open.Find("request_throughput")->AsDouble("").value_or(-2));
}

TEST_F(BenchTest, TakesLengthsOfAnswersFromTheServersTokenizer) {
  const std::string path = server_.directory() + "/sharegpt.json";
  std::ofstream(path) << R"([{"conversations":[{"value":"Hello"},{"value":"one two three"}]}])";
  protocol::HttpCall call;
  call.port = server_.port();
  call.method = "POST";
  call.target = "/tokenize";
  call.body = R"({"prompt":"one two three","add_special_tokens":false})";
  const auto counted = protocol::CallHttp(call);
  ASSERT_TRUE(counted.ok()) << counted.status();
  const int64_t tokens = Number(protocol::ParseJson(counted->body).value(), "count");
  const auto result =
      Measure("--num-prompts 2 --ignore-eos --dataset-name sharegpt --dataset-path " + path);
  EXPECT_EQ(Number(result, "total_output_tokens"), 2 * tokens);
}

TEST_F(BenchTest, FailsWhenNothingSucceeded) {
  const auto [code, output] = RunBench(Server() + "--num-prompts 2 --model nobody");
  EXPECT_EQ(code, 70) << output;
  EXPECT_THAT(output, HasSubstr("http_404 model_not_found:"));
}

// Stopped in the middle, it prints and saves the requests that had ended.
TEST_F(BenchTest, AStopSavesWhatWasMeasured) {
  const std::string command =
      Concat(SKEIN_PROGRAM_DIRECTORY, "/skein bench ", Server(), "--save-result --result-dir ",
             server_.directory(), " --result-filename s.json --num-prompts 100000 --ignore-eos ",
             "--random-input-len 4 --random-output-len 3 --max-concurrency 2 2>&1 & ",
             "echo $!; wait $!; echo code $?");
  FILE* const pipe = ::popen(command.c_str(), "r");
  std::array<char, 4096> piece{};
  ASSERT_NE(std::fgets(piece.data(), piece.size(), pipe), nullptr);
  const auto pid = static_cast<pid_t>(std::stol(piece.data()));
  EXPECT_TRUE(WaitUntil([&] { return server_.Metric("skein_generation_tokens_total") >= 60; }));
  EXPECT_EQ(::kill(pid, SIGTERM), 0);
  std::string output;
  while (const size_t size = std::fread(piece.data(), 1, piece.size(), pipe)) {
    output.append(piece.data(), size);
  }
  ::pclose(pipe);
  EXPECT_THAT(output, HasSubstr("Serving Benchmark Result"));
  EXPECT_THAT(output, HasSubstr("skein bench: interrupted; the figures are of the "));
  EXPECT_THAT(output, HasSubstr(" of 100000 requests that had ended\n"));
  EXPECT_THAT(output, HasSubstr("code 130\n"));
  const auto result = ReadResult(server_.directory() + "/s.json");
  EXPECT_GE(Number(result, "completed"), 10);
  EXPECT_EQ(Number(result, "total_output_tokens"), 3 * Number(result, "completed"));
  EXPECT_EQ(Number(result, "failed"), 0);
}

TEST(BenchCommand, LoadsAServerThatSpeaksTls) {
  const TestCertificate certificate("bench");
  LiveServer server;
  server.Start({"--ssl-certfile", certificate.certificate(), "--ssl-keyfile", certificate.key()});
  ASSERT_TRUE(server.WaitForOutput("worker.0: ready")) << server.output();
  const std::string mark = "coordinator: ready ";
  const size_t at = server.output().find(mark + "https://127.0.0.1:");
  ASSERT_NE(at, std::string::npos) << server.output();
  const size_t begin = at + mark.size();
  const std::string url =
      server.output().substr(begin, server.output().find_first_of(" \n", begin) - begin);
  const std::string flags =
      Concat("--base-url ", url, " --num-prompts 8 --random-input-len 9 --random-output-len 5 ",
             "--ignore-eos --max-concurrency 3 ");
  const auto [code, output] = RunBench(Concat(flags, "--ca-file ", certificate.certificate()));
  EXPECT_EQ(code, 0) << output;
  EXPECT_THAT(output, ::testing::ContainsRegex("Successful requests: +8"));
  const auto [stranger_code, stranger] = RunBench(flags);
  EXPECT_EQ(stranger_code, 70);
  EXPECT_THAT(stranger, HasSubstr("failed: self-signed certificate"));
  const auto [file_code, file] = RunBench(Concat(flags, "--ca-file /nowhere.pem"));
  EXPECT_EQ(file_code, 65);
  EXPECT_THAT(file, HasSubstr("skein bench: --ca-file: /nowhere.pem: "));
}

TEST(BenchCommand, SaysWhatIsWrongBeforeItLoadsAnything) {
  const auto [closed_code, closed] = RunBench(Concat("--port ", FreePort()));
  EXPECT_EQ(closed_code, 70);
  EXPECT_THAT(closed, HasSubstr("skein bench: cannot connect to 127.0.0.1:"));
  const auto [flag_code, flag] = RunBench("--rate 3");
  EXPECT_EQ(flag_code, 64);
  EXPECT_THAT(flag, HasSubstr("--rate is no flag of skein bench"));
  const auto [file_code, file] = RunBench("--compare /nowhere/a /nowhere/b");
  EXPECT_EQ(file_code, 65);
  EXPECT_THAT(file, HasSubstr("cannot read /nowhere/a: No such file or directory"));
  const auto [folder_code, folder] = RunBench("--compare /tmp /tmp");
  EXPECT_EQ(folder_code, 65);
  EXPECT_THAT(folder, HasSubstr("skein bench: /tmp is a directory; give a file\n"));
  const auto [result_code, result] = RunBench("--save-result --result-dir /nowhere/results");
  EXPECT_EQ(result_code, 65);
  EXPECT_THAT(result, HasSubstr("--result-dir /nowhere/results is no directory; create it first"));
}

}  // namespace
}  // namespace skein::tests
