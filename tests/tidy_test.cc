// The rules of the tree that a machine can check: include graph, sizes, banned calls and names,
// dead files, missing tests and contracts. Reads the source tree from the working directory.

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace skein::tests {
namespace {

namespace fs = std::filesystem;

struct SourceFile {
  std::string path;  // from the root
  std::vector<std::string> lines;
  bool IsCode() const {
    return path.ends_with(".h") || path.ends_with(".cc") || path.ends_with(".cu") ||
           path.ends_with(".cuh");
  }
  bool In(std::string_view folder) const { return path.starts_with(folder); }
};

const std::set<std::string> kSkipped = {".git",         "build", ".cache",
                                        "node_modules", "data",  "models"};

std::vector<SourceFile> ReadTree() {
  std::vector<SourceFile> files;
  for (auto it = fs::recursive_directory_iterator("."); it != fs::recursive_directory_iterator();
       ++it) {
    // .git is a file in a work tree of its own.
    if (kSkipped.contains(it->path().filename().string())) {
      it.disable_recursion_pending();
      continue;
    }
    if (!it->is_regular_file()) continue;
    SourceFile file;
    file.path = it->path().lexically_relative(".").string();
    std::ifstream stream(it->path());
    for (std::string line; std::getline(stream, line);) file.lines.push_back(line);
    files.push_back(std::move(file));
  }
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

const std::vector<SourceFile>& Tree() {
  static const std::vector<SourceFile>* tree = new std::vector<SourceFile>(ReadTree());
  return *tree;
}

std::string At(const SourceFile& file, size_t line) {
  return file.path + ":" + std::to_string(line + 1) + ": " + file.lines[line];
}

// The path of an #include line, with its quotes or brackets; empty for other lines.
std::string Included(const std::string& line) {
  if (!line.starts_with("#include ")) return "";
  return line.substr(9);
}

bool AnyPrefix(std::string_view text, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const std::string& prefix) { return text.starts_with(prefix); });
}

// ---- include graph

// Who may include what of ours. The first matching folder decides.
struct FolderRule {
  std::string folder;
  std::vector<std::string> allowed;
};

const std::vector<FolderRule>& FolderRules() {
  static const auto* rules = new std::vector<FolderRule>{
      {"kernels/reference/", {"kernels/reference/", "kernels/ops/", "kernels/"}},
      {"kernels/cpu/", {"kernels/cpu/", "kernels/ops/", "kernels/"}},
      {"kernels/", {"kernels/"}},
      {"protocol/base/", {"protocol/base/"}},
      {"protocol/messages/", {"protocol/messages/", "protocol/base/"}},
      {"protocol/codec/",
       {"protocol/codec/", "protocol/messages/", "protocol/base/", "protocol/schema/"}},
      {"protocol/config/", {"protocol/config/", "protocol/base/"}},
      {"protocol/metrics/", {"protocol/metrics/", "protocol/base/"}},
      {"protocol/json/", {"protocol/json/", "protocol/base/"}},
      {"protocol/tensor/", {"protocol/tensor/", "protocol/base/"}},
      {"protocol/http/", {"protocol/http/", "protocol/metrics/", "protocol/base/"}},
      {"protocol/actor/",
       {"protocol/actor/", "protocol/transport/", "protocol/codec/", "protocol/messages/",
        "protocol/base/"}},
      {"protocol/transport/frame_metrics",
       {"protocol/transport/", "protocol/metrics/", "protocol/actor/", "protocol/codec/",
        "protocol/messages/", "protocol/base/"}},
      {"protocol/transport/",
       {"protocol/transport/", "protocol/actor/", "protocol/codec/", "protocol/messages/",
        "protocol/base/"}},
      {"scheduler/", {"scheduler/", "protocol/messages/", "protocol/base/"}},
      {"worker/node/",
       {"worker/node/", "protocol/base/", "protocol/config/", "protocol/http/", "protocol/json/"}},
      {"worker/model/",
       {"worker/model/", "worker/cache/", "kernels/ops/", "kernels/", "protocol/base/",
        "protocol/json/", "protocol/messages/", "protocol/tensor/"}},
      {"worker/cache/",
       {"worker/cache/", "worker/model/", "kernels/ops/", "kernels/", "protocol/base/"}},
      {"worker/", {"worker/", "kernels/", "protocol/"}},
      {"coordinator/text/", {"coordinator/text/", "protocol/"}},
      {"coordinator/", {"coordinator/", "scheduler/", "protocol/"}},
  };
  return *rules;
}

// Backends know nothing of each other.
bool CrossesBackends(const SourceFile& file, const std::string& path) {
  static constexpr std::array<std::string_view, 3> kBackends = {"kernels/reference/",
                                                                "kernels/cpu/", "kernels/sm90/"};
  for (std::string_view own : kBackends) {
    if (!file.In(own)) continue;
    for (std::string_view other : kBackends) {
      if (other != own && path.starts_with(other)) return true;
    }
  }
  return false;
}

TEST(Tidy, FoldersIncludeOnlyWhatTheGraphAllows) {
  for (const SourceFile& file : Tree()) {
    if (!file.IsCode() || file.In("tests/")) continue;
    const auto rule = std::find_if(FolderRules().begin(), FolderRules().end(),
                                   [&](const FolderRule& r) { return file.In(r.folder); });
    ASSERT_NE(rule, FolderRules().end()) << file.path << " is in no known folder";
    for (size_t i = 0; i < file.lines.size(); ++i) {
      const std::string path = Included(file.lines[i]);
      if (!path.starts_with('"')) continue;
      const std::string_view ours = std::string_view(path).substr(1);
      if (ours.starts_with("absl/")) continue;
      EXPECT_TRUE(AnyPrefix(ours, rule->allowed)) << At(file, i);
      EXPECT_FALSE(CrossesBackends(file, std::string(ours))) << At(file, i);
      EXPECT_FALSE(ours.starts_with("tests/")) << At(file, i);
    }
  }
}

// Packages that may be included in few places.
struct PackageRule {
  std::string include;              // beginning of the include
  std::vector<std::string> places;  // beginnings of paths
};

const std::vector<PackageRule>& PackageRules() {
  static const auto* rules = new std::vector<PackageRule>{
      {"<cuda", {"kernels/cuda/", "kernels/sm90/"}},
      {"<nccl", {"protocol/tensor/"}},
      {"<ucp/", {"protocol/tensor/"}},
      {"<kj/", {"protocol/codec/"}},
      {"<capnp/", {"protocol/codec/"}},
      {"<boost/asio", {"protocol/http/"}},
      {"<boost/beast", {"protocol/http/"}},
      {"<boost/json", {"protocol/json/"}},
      {"<yaml-cpp/", {"protocol/config/"}},
      {"<spdlog/", {"protocol/base/log.cc"}},
      {"<prometheus/", {"protocol/metrics/"}},
      {"<pcre2.h", {"coordinator/text/"}},
      {"<openssl/", {"coordinator/key_digest.cc", "protocol/http/"}},
      {"<zmq",
       {"protocol/transport/curve_keys.cc", "protocol/transport/zap_handler.cc",
        "protocol/transport/zmq_transport.cc"}},
      {"<regex>", {}},
  };
  return *rules;
}

TEST(Tidy, PackagesStayInTheirFolders) {
  for (const SourceFile& file : Tree()) {
    if (!file.IsCode() || file.In("tests/")) continue;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      const std::string path = Included(file.lines[i]);
      for (const PackageRule& rule : PackageRules()) {
        if (!path.starts_with(rule.include)) continue;
        EXPECT_TRUE(AnyPrefix(file.path, rule.places)) << At(file, i);
        const bool heavy = rule.include.starts_with("<boost/") || rule.include.starts_with("<kj") ||
                           rule.include.starts_with("<capnp");
        EXPECT_FALSE(heavy && file.path.ends_with(".h")) << At(file, i) << ": not in a header";
      }
    }
  }
}

// ---- sizes

size_t LinesMax(const SourceFile& file) {
  return AnyPrefix(file.path, {"kernels/cpu/", "kernels/cuda/", "kernels/sm90/"}) ? 1000 : 600;
}

// Columns, not bytes: continuation bytes of UTF-8 do not count.
size_t Columns(const std::string& line) {
  return static_cast<size_t>(std::count_if(line.begin(), line.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

TEST(Tidy, FilesAndLinesAreShort) {
  for (const SourceFile& file : Tree()) {
    if (!file.IsCode()) continue;
    EXPECT_LE(file.lines.size(), LinesMax(file)) << file.path << " is a sign of a second noun";
    for (size_t i = 0; i < file.lines.size(); ++i) {
      EXPECT_LE(Columns(file.lines[i]), 100U) << At(file, i);
    }
  }
}

bool StartsFunction(const std::string& line) {
  if (line.empty() || !std::isalpha(static_cast<unsigned char>(line[0]))) return false;
  for (const char* word :
       {"namespace", "class ", "struct ", "enum ", "union ", "extern ", "using ", "template",
        "TEST", "INSTANTIATE_TEST", "static const", "const ", "constexpr "}) {
    if (line.starts_with(word)) return false;
  }
  return line.find('(') != std::string::npos && line.find(';') == std::string::npos;
}

// Lines of the definition that starts at `begin`, 0 if it is none. A body ends with "}" in the
// first column.
size_t FunctionLength(const SourceFile& file, size_t begin) {
  for (size_t i = begin; i < file.lines.size(); ++i) {
    const std::string& line = file.lines[i];
    if (line == "}" || line.ends_with(" {}")) return i - begin + 1;
    if (line.ends_with(";") && line.find('{') == std::string::npos && i < begin + 12 &&
        line.starts_with("    ")) {
      // A declaration whose parameters fill several lines.
      bool opened = false;
      for (size_t j = begin; j <= i; ++j) opened |= file.lines[j].ends_with("{");
      if (!opened) return 0;
    }
    if (i > begin && line.empty() && i < begin + 2) return 0;
  }
  return 0;
}

TEST(Tidy, FunctionsAreShort) {
  size_t seen = 0;
  for (const SourceFile& file : Tree()) {
    if (!file.IsCode()) continue;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      if (!StartsFunction(file.lines[i])) continue;
      const size_t length = FunctionLength(file, i);
      seen += length > 0 ? 1 : 0;
      EXPECT_LE(length, 60U) << At(file, i);
      if (length > 0) i += length - 1;
    }
  }
  EXPECT_GT(seen, 500U) << "the heuristic finds functions no more";
}

// ---- calls and words

struct BannedWord {
  std::string word;
  std::vector<std::string> exceptions;  // beginnings of paths that may use it
};

// Assembled from halves, so that this file does not contain what it looks for.
const std::vector<BannedWord>& BannedWords() {
  static const auto* words = new std::vector<BannedWord>{
      {std::string("get") + "env(", {}},
      {std::string("std::r") + "and(", {}},
      {std::string("system_clock::") + "now", {}},
      {std::string("absl::") + "Now(", {}},
      {std::string("sleep_") + "for", {}},
      {std::string("usl") + "eep(", {}},
      {std::string("std::reg") + "ex", {}},
      {std::string("ato") + "i(", {"worker/", "scheduler/", "coordinator/", "protocol/"}},
      {std::string(".det") + "ach()", {}},
      {std::string("TO") + "DO", {}},
      {std::string("FIX") + "ME", {}},
      {std::string("std::thr") + "ead",
       {"tests/", "kernels/device.cc", "kernels/cpu/thread_pool", "worker/block_mover",
        "worker/step_executor",
        "worker/watchdog", "protocol/tensor/nccl_group", "protocol/tensor/ucx_group_port",
        "protocol/base/parent_guard", "protocol/base/signal_watch",
        "protocol/http/http_server", "protocol/http/http_client"}},
      {std::string("std::mu") + "tex",
       {"tests/", "kernels/cpu/thread_pool", "protocol/actor/", "protocol/metrics/",
        "protocol/transport/frame_metrics", "coordinator/api/flight_log", "protocol/base/log.cc",
        "protocol/http/"}},
      {std::string("pki") + "ll", {}},
      {std::string("killa") + "ll", {}},
  };
  return *words;
}

// SimpleAtoi of Abseil reports errors; the C function of that name does not.
bool IsSimpleAtoi(const std::string& line, size_t at) {
  return at >= 6 && line.compare(at - 6, 6, "Simple") == 0;
}

TEST(Tidy, BannedCallsAreAbsent) {
  for (const SourceFile& file : Tree()) {
    const bool script = file.path.ends_with(".sh");
    if ((!file.IsCode() && !script) || file.path == "tests/tidy_test.cc") continue;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      for (const BannedWord& banned : BannedWords()) {
        const size_t at = file.lines[i].find(banned.word);
        if (at == std::string::npos || IsSimpleAtoi(file.lines[i], at)) continue;
        const bool c_number = banned.word.starts_with("ato");
        EXPECT_TRUE(!c_number && AnyPrefix(file.path, banned.exceptions)) << At(file, i);
      }
    }
  }
}

TEST(Tidy, NamesSayARole) {
  const std::set<std::string> banned = {"util", "utils", "common", "helper", "helpers", "misc"};
  for (const SourceFile& file : Tree()) {
    for (const fs::path& part : fs::path(file.path)) {
      EXPECT_FALSE(banned.contains(part.stem().string())) << file.path;
    }
  }
}

TEST(Tidy, AcceleratorConditionsStayInBackends) {
  for (const SourceFile& file : Tree()) {
    if (!file.IsCode() || AnyPrefix(file.path, {"kernels/", "tests/"})) continue;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      const std::string& line = file.lines[i];
      const bool condition = line.starts_with("#if") || line.starts_with("#elif");
      for (const char* word : {"CUDA", "NVCC", "AVX", "__x86_64__", "NCCL"}) {
        EXPECT_FALSE(condition && line.find(word) != std::string::npos) << At(file, i);
      }
    }
  }
}

TEST(Tidy, TheSchedulerIteratesOverNoHashContainer) {
  for (const SourceFile& file : Tree()) {
    if (!file.IsCode() || !file.In("scheduler/")) continue;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      for (const char* word : {"unordered_", "flat_hash_", "node_hash_"}) {
        EXPECT_EQ(file.lines[i].find(word), std::string::npos) << At(file, i);
      }
    }
  }
}

// A kernel may begin before the one ahead of it has ended, so each must wait
// (kernels/cuda/order.cuh).
TEST(Tidy, EveryKernelWaitsForTheOneBefore) {
  for (const SourceFile& file : Tree()) {
    if (!file.In("kernels/sm90/")) continue;
    int kernels = 0, waits = 0;
    for (const std::string& line : file.lines) {
      kernels += line.find("__global__") != std::string::npos ? 1 : 0;
      const bool wait = line.find("cuda::BeginAfterLast();") != std::string::npos ||
                        line.find("cuda::WaitForLast();") != std::string::npos;
      waits += wait ? 1 : 0;
    }
    EXPECT_EQ(kernels, waits) << file.path;
  }
}

// ---- completeness

std::string ReadAll(const SourceFile& file) {
  std::string out;
  for (const std::string& line : file.lines) out += line + "\n";
  return out;
}

// A file must be named in the CMakeLists.txt of its folder or of one above.
TEST(Tidy, EveryFileIsBuilt) {
  std::map<std::string, std::string> lists;
  for (const SourceFile& file : Tree()) {
    if (file.path.ends_with("CMakeLists.txt")) {
      lists[fs::path(file.path).parent_path().string()] = ReadAll(file);
    }
  }
  for (const SourceFile& file : Tree()) {
    const bool link_test = file.In("tests/link/");
    if (!file.IsCode() || link_test) continue;
    if (file.In("tests/") && file.path.ends_with(".h")) continue;
    bool listed = false;
    for (fs::path dir = fs::path(file.path).parent_path();; dir = dir.parent_path()) {
      auto list = lists.find(dir.string());
      const std::string name = fs::path(file.path).lexically_relative(dir).string();
      const std::string wanted = dir.empty() ? file.path : name;
      if (list != lists.end() && list->second.find(wanted) != std::string::npos) listed = true;
      if (dir.empty()) break;
    }
    EXPECT_TRUE(listed) << file.path << " is in no CMakeLists.txt";
  }
}

TEST(Tidy, EveryLibraryHasALinkTest) {
  for (const SourceFile& file : Tree()) {
    if (!file.path.ends_with("CMakeLists.txt") || file.In("tests/")) continue;
    for (const std::string& line : file.lines) {
      if (!line.starts_with("skein_library(")) continue;
      const std::string target = line.substr(14, line.find_first_of(" )", 14) - 14);
      EXPECT_TRUE(fs::exists("tests/link/" + target + "_link_test.cc")) << target;
    }
  }
}

TEST(Tidy, EveryFolderHasItsContract) {
  for (const char* folder : {"kernels", "protocol", "scheduler", "worker", "coordinator", "deploy",
                             "dashboards", "tests", "worker/node"}) {
    const std::string path = std::string(folder) + "/README.md";
    ASSERT_TRUE(fs::exists(path)) << path;
    std::ifstream stream(path);
    std::stringstream text;
    text << stream.rdbuf();
    size_t at = 0;
    for (const char* heading : {"## Purpose", "## Ownership", "## Invariants", "## Contracts",
                                "## Before you change this"}) {
      const size_t found = text.str().find(heading, at);
      EXPECT_NE(found, std::string::npos) << path << ": " << heading << " is missing or misplaced";
      if (found != std::string::npos) at = found;
    }
  }
}

// Sources whose test is not a file of their own name: what proves them instead.
const std::map<std::string, std::string>& ProvedBy() {
  static const auto* proofs = new std::map<std::string, std::string>{
      {"kernels/reference/", "tests/kernels/conformance_test.cc"},
      {"kernels/cpu/", "tests/kernels/conformance_test.cc"},
      {"worker/model/", "tests/conformance/conformance_main.cc"},
      {"worker/cache/", "tests/conformance/conformance_main.cc"},
      {"worker/loaded_model.cc", "tests/conformance/conformance_main.cc"},
      {"worker/gpu_backend_", "tests/worker/gpu_backend_test.cc"},
      {"kernels/arg_check.cc", "tests/kernels/conformance_test.cc"},
      {"kernels/device.cc", "tests/kernels/kernel_registry_test.cc"},
      {"kernels/op.cc", "tests/kernels/kernel_registry_test.cc"},
      {"protocol/actor/threaded_actor_system.cc", "tests/protocol/zmq_transport_test.cc"},
      {"protocol/codec/edits_codec.cc", "tests/protocol/codec_test.cc"},
      {"protocol/codec/groups_codec.cc", "tests/protocol/codec_test.cc"},
      {"protocol/codec/moves_codec.cc", "tests/protocol/codec_test.cc"},
      {"protocol/codec/scores_codec.cc", "tests/protocol/codec_test.cc"},
      {"protocol/tensor/group_memory.cc", "tests/protocol/host_group_test.cc"},
      {"protocol/tensor/group_span.cc", "tests/protocol/ucx_group_port_test.cc"},
      {"protocol/tensor/host_meeting.cc", "tests/protocol/host_group_test.cc"},
      {"protocol/tensor/ucx_port.cc", "tests/protocol/ucx_block_channel_test.cc"},
      {"worker/executor_groups.cc", "tests/worker/rank_executor_test.cc"},
      {"worker/step_agreement.cc", "tests/worker/rank_group_test.cc"},
      {"protocol/config/config_keys.cc", "tests/protocol/config_test.cc"},
      {"coordinator/metrics.cc", "tests/process/serving_test.cc"},
      {"worker/node/cli_main.cc", "tests/process/lifecycle_test.cc"},
      {"worker/node/node_main.cc", "tests/process/lifecycle_test.cc"},
      {"worker/node/commands/", "tests/process/lifecycle_test.cc"},
      {"worker/node/adopted_children.cc", "tests/process/lifecycle_test.cc"},
      {"worker/node/line_output.cc", "tests/worker/node/child_output_test.cc"},
      {"worker/node/notify_socket.cc", "tests/worker/node/life_signs_test.cc"},
      {"worker/node/ready_probe.cc", "tests/worker/node/life_signs_test.cc"},
      {"worker/node/gpu_inventory.cc", "tests/worker/node/who_holds_test.cc"},
  };
  return *proofs;
}

TEST(Tidy, EverySourceHasItsTest) {
  std::string tests;
  for (const SourceFile& file : Tree()) {
    if (file.In("tests/")) tests += file.path + "\n";
  }
  for (const SourceFile& file : Tree()) {
    if (!file.path.ends_with(".cc") || file.In("tests/") || file.path.ends_with("/main.cc")) {
      continue;
    }
    const std::string own = fs::path(file.path).stem().string() + "_test.cc";
    bool proved = tests.find("/" + own) != std::string::npos;
    for (const auto& [prefix, proof] : ProvedBy()) {
      if (file.In(prefix)) proved = proved || tests.find(proof) != std::string::npos;
    }
    EXPECT_TRUE(proved) << file.path << " has no " << own;
  }
}

TEST(Tidy, TheTreeNamesNoForeignPlace) {
  const std::vector<std::string> words = {std::string("/wo") + "rk/",
                                          std::string("registry.") + "npmjs",
                                          std::string("deb.") + "debian.org"};
  for (const SourceFile& file : Tree()) {
    for (size_t i = 0; i < file.lines.size(); ++i) {
      for (const std::string& word : words) {
        EXPECT_EQ(file.lines[i].find(word), std::string::npos) << At(file, i);
      }
    }
  }
}

}  // namespace
}  // namespace skein::tests
