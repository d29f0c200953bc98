// Tests of protocol/config/config: precedence, origins, the round trip through YAML, and every way
// of being wrong with its place and its remedy.
#include "protocol/config/config.h"

#include <fstream>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A file of the test's own directory, removed at the end.
class ScratchFile {
 public:
  explicit ScratchFile(std::string_view text)
      : path_(Concat(::testing::TempDir(), "config_",
                     ::testing::UnitTest::GetInstance()->random_seed(), "_",
                     reinterpret_cast<uintptr_t>(this), ".yaml")) {
    std::ofstream(path_, std::ios::binary) << text;
  }
  ~ScratchFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

LoadOptions ServeOptions() {
  LoadOptions options;
  options.allow_auto_backend = true;
  options.positional_max = 1;
  return options;
}

absl::StatusOr<LoadedConfig> Load(const std::vector<std::string>& arguments,
                                  const LoadOptions& options = ServeOptions()) {
  return LoadConfig(arguments, options);
}

// The error of a file, with its path replaced by FILE.
std::string FileError(std::string_view text) {
  const ScratchFile file(text);
  const auto loaded = Load({"--config", file.path()});
  if (loaded.ok()) return "accepted";
  std::string message(StatusText(loaded.status()));
  for (size_t at = message.find(file.path()); at != std::string::npos;
       at = message.find(file.path())) {
    message.replace(at, file.path().size(), "FILE");
  }
  return message;
}

std::string FlagError(const std::vector<std::string>& arguments) {
  const auto loaded = Load(arguments);
  return loaded.ok() ? "accepted" : std::string(StatusText(loaded.status()));
}

TEST(ConfigTest, DefaultsNeedNothing) {
  const auto loaded = Load({});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.server.port, 8000);
  EXPECT_EQ(loaded->config.server.host, "127.0.0.1");
  EXPECT_EQ(loaded->config.model.max_model_len, 4096);
  EXPECT_EQ(loaded->config.server.shutdown_timeout, absl::Seconds(30));
  EXPECT_EQ(loaded->config.worker.backend, "auto");
  EXPECT_EQ(loaded->file, "");
}

TEST(ConfigTest, FlagWinsOverFileWinsOverDefault) {
  const ScratchFile file(
      "server:\n  port: 9000\n  host: \"0.0.0.0\"\n  head_timeout: 2.5\nlog: {level: warn}\n");
  const auto loaded = Load({"--port=9100", "--config", file.path(), "--max-num-seqs", "8", "dir"});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.server.port, 9100);
  EXPECT_EQ(loaded->config.server.host, "0.0.0.0");
  EXPECT_EQ(loaded->config.server.head_timeout, absl::Milliseconds(2500));
  EXPECT_EQ(loaded->config.log.level, "warn");
  EXPECT_EQ(loaded->config.scheduler.max_num_seqs, 8);
  EXPECT_EQ(loaded->positional, std::vector<std::string>{"dir"});
  EXPECT_EQ(loaded->file, file.path());
  const std::string dump = ConfigDump(*loaded);
  EXPECT_THAT(dump, HasSubstr("  port: 9100  # flag\n"));
  EXPECT_THAT(dump, HasSubstr("  host: \"0.0.0.0\"  # file\n"));
  EXPECT_THAT(dump, HasSubstr("  lanes: 1  # default\n"));
  EXPECT_THAT(dump, HasSubstr(Concat("# hash: ", ConfigHash(loaded->config))));
}

TEST(ConfigTest, YamlReadsBackToTheSameValues) {
  auto loaded = Load({"--model", "we \"ird\\\tname", "--threads", "3", "--stop-timeout", "0.125"});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const ScratchFile file(ConfigYaml(loaded->config));
  const auto again = Load({Concat("--config=", file.path())});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->file, file.path());
  EXPECT_EQ(ConfigYaml(again->config), ConfigYaml(loaded->config));
  EXPECT_EQ(ConfigHash(again->config), ConfigHash(loaded->config));
  EXPECT_EQ(again->config.model.path, "we \"ird\\\tname");
  EXPECT_EQ(again->config.node.stop_timeout, absl::Milliseconds(125));
  EXPECT_NE(ConfigHash(Config{}), ConfigHash(loaded->config));
  // What could not be read back is refused.
  EXPECT_THAT(FlagError({"--model", "a\xFF"}), HasSubstr("--model: is no UTF-8 text"));
  EXPECT_THAT(FileError("model:\n  path: \"a\\0\"\n"), HasSubstr("is no UTF-8 text"));
}

TEST(ConfigTest, EveryKeyIsAFlagOfItsOwnWithHelp) {
  std::set<std::string_view> flags;
  std::set<std::string_view> paths;
  const std::string help = ConfigHelp();
  for (const ConfigKey& key : ConfigKeys()) {
    EXPECT_TRUE(flags.insert(key.flag).second) << key.flag;
    EXPECT_TRUE(paths.insert(key.path).second) << key.path;
    EXPECT_GT(key.help.size(), 10u) << key.path;
    EXPECT_THAT(help, HasSubstr(Concat("--", key.flag, " VALUE")));
  }
  for (const std::string_view flag : {"model",
                                      "served-model-name",
                                      "host",
                                      "port",
                                      "max-model-len",
                                      "max-num-seqs",
                                      "max-num-batched-tokens",
                                      "block-size",
                                      "backend",
                                      "lanes",
                                      "threads",
                                      "max-num-queued-reqs",
                                      "max-num-queued-tokens",
                                      "shutdown-timeout",
                                      "seed",
                                      "max-logprobs",
                                      "logprobs-mode",
                                      "root-path",
                                      "tensor-parallel-size",
                                      "max-queue-delay"}) {
    EXPECT_TRUE(flags.contains(flag)) << flag;
  }
}

TEST(ConfigTest, ASwitchStandsAloneOrAfterNo) {
  EXPECT_EQ(Load({"model"})->config.scheduler.enable_prefix_caching, 1);
  EXPECT_EQ(Load({"--enable-prefix-caching", "model"})->config.scheduler.enable_prefix_caching, 1);
  EXPECT_EQ(Load({"--no-enable-prefix-caching", "model"})->config.scheduler.enable_prefix_caching,
            0);
  EXPECT_FALSE(Load({"--enable-prefix-caching", "--no-enable-prefix-caching", "model"}).ok());
  EXPECT_FALSE(Load({"--no-lanes", "model"}).ok());
}

TEST(ConfigTest, FlagsWithoutEffectAreAcceptedWithANotice) {
  const auto loaded = Load({"--trust-remote-code", "--tool-call-parser", "deepseek_v4", "model"});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->notices,
            (std::vector<std::string>{
                "--trust-remote-code has no effect: no code of a model is ever loaded",
                "--tool-call-parser has no effect: the model's own tool syntax is always used"}));
  EXPECT_EQ(loaded->positional, std::vector<std::string>{"model"});
}

TEST(ConfigTest, ProgramFlagsAreHandedOn) {
  LoadOptions options = ServeOptions();
  options.program_flags = {"supervisor-fd"};
  const auto loaded = Load({"--supervisor-fd", "7"}, options);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->FlagOr("supervisor-fd", -1), 7);
  EXPECT_EQ(loaded->FlagOr("term", 5), 5);
  EXPECT_FALSE(Load({"--supervisor-fd", "7"}).ok());
}

TEST(ConfigTest, ProgramFlagsAreIntegers) {
  LoadOptions options = ServeOptions();
  options.program_flags = {"term"};
  for (const std::string value : {"abc", "-1", "", "1.5", "9999999999999999999"}) {
    const auto loaded = Load({"--term=" + value}, options);
    ASSERT_FALSE(loaded.ok()) << value;
    EXPECT_EQ(ConfigExitCode(loaded.status()), 64);
    EXPECT_THAT(std::string(StatusText(loaded.status())),
                HasSubstr("--term: \"" + value + "\" is not an integer from 0 on"));
  }
}

TEST(ConfigTest, ExpertParallelGroupsAreWhole) {
  const auto two = Load({"-dp", "4", "--expert-parallel-size", "2"});
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(ExpertParallelSize(two->config.scheduler), 2);
  const auto all = Load({"-dp", "4", "--enable-expert-parallel"});
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(ExpertParallelSize(all->config.scheduler), 4);
  EXPECT_EQ(ExpertParallelSize(Load({"-dp", "4"})->config.scheduler), 1);
  const auto split = Load({"-dp", "3", "--expert-parallel-size", "2"});
  EXPECT_THAT(
      std::string(StatusText(split.status())),
      HasSubstr("scheduler.data_parallel_size (--data-parallel-size): 3 is no multiple of "
                "scheduler.expert_parallel_size (--expert-parallel-size) = 2; a group needs all "
                "its workers: give 4"));
  const auto both = Load({"-dp", "4", "--expert-parallel-size", "2", "--enable-expert-parallel"});
  EXPECT_THAT(std::string(StatusText(both.status())),
              HasSubstr("scheduler.expert_parallel_size (--expert-parallel-size): 2 contradicts "
                        "scheduler.enable_expert_parallel (--enable-expert-parallel)"));
  const auto gpu = Load({"-dp", "2", "--expert-parallel-size", "2", "--backend", "sm90"});
  EXPECT_THAT(std::string(StatusText(gpu.status())),
              HasSubstr("scheduler.expert_parallel_size (--expert-parallel-size): 2 is refused "
                        "while worker.backend (--backend) is sm90"));
}

TEST(ConfigTest, DataParallelSizeHasItsShortForm) {
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {"-dp", "3"}, {"-dp=3"}, {"--data-parallel-size", "3"}, {"--data-parallel-size=3"}}) {
    const auto loaded = Load(arguments);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->config.scheduler.data_parallel_size, 3);
  }
  const auto zero = Load({"-dp", "0"});
  EXPECT_THAT(std::string(StatusText(zero.status())),
              HasSubstr("--data-parallel-size: 0 is out of range; give an integer from 1 to 64"));
  EXPECT_FALSE(Load({"-d", "2"}).ok());
}

TEST(ConfigTest, WorkersTakeNoAutoAndNeedAModel) {
  LoadOptions options;
  options.required = {"model.path"};
  const auto loaded = Load({}, options);
  ASSERT_FALSE(loaded.ok());
  EXPECT_THAT(std::string(StatusText(loaded.status())),
              HasSubstr("worker.backend (--backend): auto is resolved by skein serve only"));
  EXPECT_THAT(std::string(StatusText(loaded.status())),
              HasSubstr("model.path (--model): required and missing"));
  EXPECT_TRUE(Load({"--backend", "cpu", "--model", "m"}, options).ok());
}

TEST(ConfigTest, ServedNameIsTheLastPartOfThePath) {
  ModelConfig model;
  model.path = "/a/b/tiny-v41/";
  EXPECT_EQ(ServedModelName(model), "tiny-v41");
  model.path = "tiny";
  EXPECT_EQ(ServedModelName(model), "tiny");
  model.served_model_name = "x";
  EXPECT_EQ(ServedModelName(model), "x");
}

struct BadFile {
  std::string_view text;
  std::string_view error;  // part of the message, with place and key
};

TEST(ConfigTest, BadFilesAreRefusedWithPlaceKeyAndRemedy) {
  const BadFile cases[] = {
      {"server:\n  prot: 1\n", "FILE:2: server.prot: unknown key; did you mean server.port?"},
      {"port: 1\n", "FILE:1: port: unknown key; did you mean server.port?"},
      {"sever:\n  port: 1\n", "FILE:1: sever: unknown key; did you mean server?"},
      {"zzzzzzzzzzzz: 1\n", "FILE:1: zzzzzzzzzzzz: unknown key"},
      {"server:\n  port: eighty\n",
       "FILE:2: server.port: \"eighty\" is not an integer; give an integer from 0 to 65535"},
      {"server:\n  port: \"8000\"\n", "FILE:2: server.port: \"8000\" is quoted text; give an int"},
      {"server:\n  port: 8000.0\n", "FILE:2: server.port: \"8000.0\" is not an integer"},
      {"server:\n  port: 0x50\n", "FILE:2: server.port: \"0x50\" is not an integer"},
      {"server:\n  port: 99999999999999999999\n", "server.port: \"99999999999999999999\" is not"},
      {"server:\n  port: 65536\n",
       "FILE:2: server.port: 65536 is out of range; give an integer from 0 to 65535"},
      {"server:\n  port: -1\n", "FILE:2: server.port: -1 is out of range"},
      {"server:\n  port:\n", "FILE:2: server.port: has no value; give an integer"},
      {"server:\n  port: ~\n", "FILE:2: server.port: has no value"},
      {"server:\n  port: [1]\n", "FILE:2: server.port: is a single value, not a list"},
      {"server:\n  port: {a: 1}\n", "FILE:2: server.port: is a single value, not a section"},
      {"server: 8000\n", "FILE:1: server: is a section; write its keys indented below it"},
      {"server:\nlog:\n  level: info\n", "FILE:1: server: has no value; give its keys or remove"},
      {"server:\n  port: 1\n  host: \"a\"\n  port: 2\n",
       "FILE:4: server.port: duplicate key; first given on line 2"},
      {"log:\n  level: info\nserver:\n  port: 1\nlog:\n  form: json\n",
       "FILE:5: log: duplicate key; first given on line 1"},
      {"log:\n  level: loud\n",
       "FILE:2: log.level: \"loud\" is not a choice; give one of debug, info, warn, error"},
      {"log:\n  level: true\n", "FILE:2: log.level: \"true\" is not a choice"},
      {"model:\n  path: 123\n", "FILE:2: model.path: 123 is not text; write \"123\""},
      {"model:\n  path: true\n", "FILE:2: model.path: true is not text"},
      {"server:\n  head_timeout: soon\n",
       "FILE:2: server.head_timeout: \"soon\" is not a number; give a number of seconds from 0.05"},
      {"server:\n  head_timeout: nan\n", "server.head_timeout: \"nan\" is not a number"},
      {"server:\n  head_timeout: 5s\n", "server.head_timeout: \"5s\" is not a number"},
      {"worker:\n  gpu_memory_utilization: 1.5\n",
       "worker.gpu_memory_utilization: 1.5 is out of range; give a number from 0.01 to 1"},
      {"scheduler:\n  lanes: 3\n", "scheduler.lanes: 3 is out of range; give an integer from 1 to"},
      {"server: &s\n  port: 1\n", "FILE:1: an anchor (&name) is not allowed"},
      {"server:\n  port: *x\n", "FILE:2: "},
      {"server:\n  port: !!int 1\n", "FILE:2: a tag (tag:yaml.org,2002:int) is not allowed"},
      {"server:\n  <<: {port: 1}\n", "FILE:2: a merge key (<<) is not allowed"},
      {"- server\n", "FILE:1: the file must be a map of sections, not a list"},
      {"just text\n", "FILE:1: the file must be a map of sections, not a single value"},
      {"server:\n\tport: 1\n", "FILE:2: not valid YAML"},
      {"server: {port: 1\n", "FILE:"},
      {"log: {level: info}\n---\nlog: {level: warn}\n", "FILE: more than one YAML document"},
      {"a: {b: {c: {d: {e: {f: {g: {h: {i: 1}}}}}}}}\n", "FILE:1: nested deeper than 8 levels"},
      {"scheduler:\n  max_num_seqs: 100\n  max_num_batched_tokens: 50\n",
       "scheduler.max_num_batched_tokens (--max-num-batched-tokens): 50 is less than"},
      {"transport:\n  control_endpoint: \"udp://x\"\n",
       "\"udp://x\" is neither ipc:///path, with an absolute path, nor tcp://address:port"},
      {"transport:\n  control_endpoint: \"ipc://x\"\n", "\"ipc://x\" is neither ipc:///path, with"},
      {"worker:\n  backend: \"\"\n", "worker.backend (--backend): is empty"},
      {"node:\n  backoff_min: 5\n  backoff_max: 1\n", "node.backoff_max (--restart-backoff-max):"},
  };
  for (const BadFile& bad : cases) {
    EXPECT_THAT(FileError(bad.text), HasSubstr(std::string(bad.error))) << bad.text;
  }
}

TEST(ConfigTest, AllProblemsAreListedAtOnce) {
  EXPECT_EQ(FileError("server:\n  port: x\n  prot: 1\nlog:\n  form: xml\n"),
            "FILE:2: server.port: \"x\" is not an integer; give an integer from 0 to 65535\n"
            "FILE:3: server.prot: unknown key; did you mean server.port?\n"
            "FILE:5: log.form: \"xml\" is not a choice; give one of text, json");
}

TEST(ConfigTest, UnknownFlagsNameTheNearest) {
  EXPECT_EQ(FlagError({"--prot=1"}), "--prot: unknown flag; did you mean --port?");
  EXPECT_EQ(FlagError({"--qqqqqqqqqq"}), "--qqqqqqqqqq: unknown flag");
}

TEST(ConfigTest, BadFlagValues) {
  EXPECT_THAT(FlagError({"--port", "x"}), HasSubstr("--port: \"x\" is not an integer; give an"));
  EXPECT_THAT(FlagError({"--port"}), HasSubstr("--port: has no value; give an integer from 0"));
  EXPECT_THAT(FlagError({"--port", "--host", "a"}), HasSubstr("--port: has no value"));
  EXPECT_THAT(FlagError({"--port=1", "--port=2"}), HasSubstr("--port: server.port is given twice"));
  EXPECT_THAT(FlagError({"--port=70000"}), HasSubstr("--port: 70000 is out of range"));
  EXPECT_THAT(FlagError({"-p", "1"}), HasSubstr("-p: unknown flag; flags begin with two dashes"));
  EXPECT_THAT(FlagError({"--tensor-parallel"}), HasSubstr("--tensor-parallel: unknown flag"));
  EXPECT_THAT(FlagError({"--log-level=chatty"}), HasSubstr("--log-level: \"chatty\" is not a ch"));
  EXPECT_THAT(FlagError({"--config"}), HasSubstr("--config: has no value"));
  EXPECT_THAT(FlagError({"a", "b"}), HasSubstr("\"b\": unexpected argument"));
  EXPECT_THAT(FlagError({"--config", "/nonexistent/skein.yaml"}),
              HasSubstr("/nonexistent/skein.yaml: cannot be opened"));
}

TEST(ConfigTest, SpeculativeConfigSetsTheKeysOfSpeculation) {
  const auto loaded =
      Load({"--speculative-config", R"({"method": "dspark", "num_speculative_tokens": 3})"});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.speculation.method, "dspark");
  EXPECT_EQ(loaded->config.speculation.num_speculative_tokens, 3);
  EXPECT_THAT(ConfigDump(*loaded),
              HasSubstr("  method: \"dspark\"  # flag\n  num_speculative_tokens: 3  # flag\n"
                        "  depth: \"adaptive\"  # default\n"));
  EXPECT_EQ(Load({R"(--speculative-config={"method":"none"})"})->config.speculation.method, "none");
  EXPECT_THAT(ConfigHelp(), HasSubstr("--speculative-config JSON"));
}

TEST(ConfigTest, BadSpeculativeConfigsAreUsageErrors) {
  const auto error = [](const std::string& json) {
    return FlagError({"--speculative-config", json});
  };
  EXPECT_EQ(error(R"({"num_speculative_tokens": 64})"),
            "--speculative-config: num_speculative_tokens: 64 is out of range; give an integer "
            "from 0 to 63");
  EXPECT_THAT(error(R"({"method": "eagle"})"),
              HasSubstr("--speculative-config: method is \"eagle\"; this server drafts with"));
  EXPECT_EQ(FlagError({"--speculation-method=none", R"(--speculative-config={"method":"none"})"}),
            "--speculative-config: method: speculation.method is given twice; give it once");
  EXPECT_THAT(FlagError({"--speculative-config"}), HasSubstr("--speculative-config: has no value"));
  EXPECT_THAT(FlagError({"--speculative-confg={}"}),
              HasSubstr("did you mean --speculative-config?"));
  EXPECT_EQ(ConfigExitCode(Load({"--speculative-config", "5"}).status()), 64);
}

TEST(ConfigTest, SecretsAreReadAndShownNowhere) {
  const auto loaded = Load({"--api-key", "sk-hidden"});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.server.api_key, "sk-hidden");
  EXPECT_THAT(ConfigDump(*loaded), HasSubstr("  api_key: \"(secret)\"  # flag\n"));
  EXPECT_THAT(ConfigDump(*loaded), Not(HasSubstr("sk-hidden")));
  EXPECT_EQ(ConfigHash(loaded->config), ConfigHash(Load({"--api-key", "sk-other"})->config))
      << "a hash that is shown must not help to guess";
  EXPECT_NE(ConfigHash(loaded->config), ConfigHash(Load({})->config));
  EXPECT_THAT(ConfigDump(*Load({})), HasSubstr("  api_key: \"\"  # default\n"));
  const ScratchFile file(ConfigYaml(loaded->config));
  EXPECT_EQ(Load({"--config", file.path()})->config.server.api_key, "sk-hidden");
  EXPECT_THAT(FileError("server:\n  api_key: 12345\n"),
              HasSubstr("server.api_key: is not text; write it in quotes"));
}

TEST(ConfigTest, SecretArgumentsAreBlanked) {
  std::vector<std::string> texts = {"skein",          "serve",    "--api-key",
                                    "sk-a b",         "--port=1", "--api-key=x",
                                    "--api-key-file", "path",     "--api-key"};
  std::vector<char*> argv;
  for (std::string& text : texts) argv.push_back(text.data());
  const std::vector<std::string> taken = TakeArguments(static_cast<int>(argv.size()), argv.data());
  EXPECT_THAT(taken, ElementsAre("serve", "--api-key", "sk-a b", "--port=1", "--api-key=x",
                                 "--api-key-file", "path", "--api-key"));
  EXPECT_THAT(texts, ElementsAre("skein", "serve", "--api-key", "******", "--port=1", "--api-key=*",
                                 "--api-key-file", "path", "--api-key"));
}

TEST(ConfigTest, LogOptionsFollowTheConfiguration) {
  LogConfig log;
  EXPECT_EQ(ToLogOptions(log, "p").level, LogLevel::kInfo);
  EXPECT_EQ(ToLogOptions(log, "p").form, LogForm::kKeyValue);
  log.level = "error";
  log.form = "json";
  EXPECT_EQ(ToLogOptions(log, "p").level, LogLevel::kError);
  EXPECT_EQ(ToLogOptions(log, "p").form, LogForm::kJson);
  EXPECT_EQ(ToLogOptions(log, "p").process, "p");
}

// The examples give every key, so that a new one is added to them as well.
TEST(ConfigTest, ExampleFilesParseAndNameEveryKey) {
  for (const char* name : {"deploy/config/one_node.yaml", "deploy/config/multi_node.yaml"}) {
    const auto loaded = Load({"--config", name});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    for (const ConfigKey& key : ConfigKeys()) {
      EXPECT_TRUE(loaded->origins.contains(key.path)) << name << " lacks " << key.path;
    }
  }
}

TEST(ConfigTest, UsageAndConfigurationHaveTheirExitCodes) {
  EXPECT_EQ(ConfigExitCode(Load({"--prot=1"}).status()), 64);
  EXPECT_EQ(ConfigExitCode(Load({"--config", "/nonexistent/skein.yaml"}).status()), 78);
  EXPECT_EQ(ConfigExitCode(Load({"--restart-backoff-max=0.1"}).status()), 78);
  const ScratchFile unknown("server: {prot: 1}\n");
  EXPECT_EQ(ConfigExitCode(Load({"--config", unknown.path()}).status()), 78);
  const ScratchFile broken("server: {\n");
  EXPECT_EQ(ConfigExitCode(Load({"--config", broken.path()}).status()), 78);
}

TEST(ConfigTest, WhatWasRefusedControlsNoTerminal) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(FailProgram("program", Load({"--host=\x1b[2J", "--prot=1"}).status(), 64), 64);
  EXPECT_EQ(FailProgram("program", absl::InvalidArgumentError("\x1b[2J\nnext"), 64), 64);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, Not(HasSubstr("\x1b")));
  EXPECT_THAT(said, HasSubstr("program: \\x1b[2J\nnext\n"));
}

TEST(ConfigTest, ValidateFindsWhatCodeSetOutOfRange) {
  Config config;
  config.server.port = -5;
  const absl::Status status = ValidateConfig(config, ServeOptions());
  EXPECT_THAT(std::string(StatusText(status)),
              HasSubstr("server.port (--port): -5 is out of range; give an integer from 0 to"));
}

}  // namespace
}  // namespace skein::protocol
