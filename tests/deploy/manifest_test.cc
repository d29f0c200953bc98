// deploy/kubernetes against the fields that the API servers know: required ones, types, names that
// do not exist, and references between the manifests. Ten broken ones are refused.

#include <cctype>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

namespace skein::tests {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kDirectory = "deploy/kubernetes";

std::string ReadFile(const std::string& path) {
  std::ifstream stream(path);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

bool IsInteger(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

// "500m", "64Gi", "8".
bool IsQuantity(const std::string& text) {
  size_t at = 0;
  while (at < text.size() &&
         (std::isdigit(static_cast<unsigned char>(text[at])) != 0 || (text[at] == '.' && at > 0))) {
    ++at;
  }
  static const std::set<std::string> kSuffixes = {"",  "m",  "k",  "M",  "G",
                                                  "T", "Ki", "Mi", "Gi", "Ti"};
  return at > 0 && kSuffixes.contains(text.substr(at));
}

class Schema {
 public:
  Schema() : root_(YAML::LoadFile("tests/deploy/kubernetes_schema.yaml")) {}

  // The problems of one manifest, each "path: what".
  std::vector<std::string> Check(const YAML::Node& manifest) {
    problems_.clear();
    if (!manifest.IsMap() || !manifest["apiVersion"] || !manifest["kind"]) {
      return {"$: no apiVersion or kind"};
    }
    const std::string kind =
        manifest["apiVersion"].as<std::string>() + "/" + manifest["kind"].as<std::string>();
    if (!root_["kinds"][kind]) return {"$: unknown kind " + kind};
    CheckObject(manifest, root_["kinds"][kind], "$", {"apiVersion", "kind"});
    return problems_;
  }

 private:
  void Add(const std::string& path, const std::string& what) {
    problems_.push_back(path + ": " + what);
  }

  void CheckObject(const YAML::Node& node, const YAML::Node& fields, const std::string& path,
                   const std::set<std::string>& further = {}) {
    if (!node.IsMap()) return Add(path, "is no object");
    std::set<std::string> seen;
    for (const auto& member : node) {
      const auto name = member.first.as<std::string>();
      if (!seen.insert(name).second) Add(path + "." + name, "given twice");
      if (further.contains(name)) continue;
      const YAML::Node type = fields[name] ? fields[name] : fields[name + "!"];
      if (!type) {
        Add(path + "." + name, "there is no such field");
      } else {
        CheckType(member.second, type.as<std::string>(), path + "." + name);
      }
    }
    for (const auto& field : fields) {
      auto name = field.first.as<std::string>();
      if (name.back() != '!') continue;
      name.pop_back();
      if (!seen.contains(name)) Add(path + "." + name, "required and missing");
    }
  }

  void CheckType(const YAML::Node& node, const std::string& type, const std::string& path) {
    const std::string inner = type.substr(1, type.size() - 2);
    if (type.front() == '[') {
      if (!node.IsSequence()) return Add(path, "is no list");
      for (size_t i = 0; i < node.size(); ++i) {
        CheckType(node[i], inner, path + "[" + std::to_string(i) + "]");
      }
    } else if (type.front() == '{') {
      if (!node.IsMap()) return Add(path, "is no map");
      for (const auto& member : node) {
        CheckType(member.second, inner, path + "." + member.first.as<std::string>());
      }
    } else if (root_["types"][type]) {
      CheckObject(node, root_["types"][type], path);
    } else if (!node.IsScalar()) {
      Add(path, "is no " + type);
    } else {
      CheckScalar(node, type, path);
    }
  }

  void CheckScalar(const YAML::Node& node, const std::string& type, const std::string& path) {
    const std::string text = node.Scalar();
    // A quoted number is a string to the API server, and a bare one is not.
    const bool quoted = node.Tag() == "!";
    if (type == "integer" && (quoted || !IsInteger(text))) {
      Add(path, "\"" + text + "\" is no integer");
    } else if (type == "boolean" && (quoted || (text != "true" && text != "false"))) {
      Add(path, "\"" + text + "\" is neither true nor false");
    } else if (type == "string" && !quoted &&
               (IsInteger(text) || text == "true" || text == "false")) {
      Add(path, text + " is no string; quote it");
    } else if (type == "quantity" && !IsQuantity(text)) {
      Add(path, "\"" + text + "\" is no quantity");
    } else if (type.find('|') != std::string::npos && !InEnumeration(type, text)) {
      Add(path, "\"" + text + "\" is none of " + type);
    }
  }

  static bool InEnumeration(const std::string& type, const std::string& text) {
    return ("|" + type + "|").find("|" + text + "|") != std::string::npos;
  }

  YAML::Node root_;
  std::vector<std::string> problems_;
};

std::vector<std::string> Manifests() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(kDirectory)) {
    paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

TEST(Manifests, HoldOnlyWhatTheApiKnows) {
  Schema schema;
  EXPECT_EQ(Manifests().size(), 5u);
  for (const std::string& path : Manifests()) {
    EXPECT_THAT(schema.Check(YAML::LoadFile(path)), IsEmpty()) << path;
  }
}

TEST(Manifests, TenBrokenOnesAreRefused) {
  const std::string set = std::string(kDirectory) + "/leader_worker_set.yaml";
  const struct {
    std::string file, from, to, problem;
  } cases[] = {
      {"leader_worker_set.yaml", "restartPolicy: None", "restartPolicy: Never",
       "$.spec.leaderWorkerTemplate.restartPolicy: \"Never\" is none of"},
      {"leader_worker_set.yaml", "failureThreshold: 180", "failureTreshold: 180",
       "startupProbe.failureTreshold: there is no such field"},
      {"leader_worker_set.yaml", "containerPort: 8000", "containerPort: \"8000\"",
       "ports[0].containerPort: \"8000\" is no integer"},
      {"leader_worker_set.yaml", "image: skein:0.1.0", "", "containers[0].image: required"},
      {"leader_worker_set.yaml", "memory: 64Gi", "memory: 64GB",
       "resources.requests.memory: \"64GB\" is no quantity"},
      {"leader_worker_set.yaml", "readOnlyRootFilesystem: true",
       "readOnlyRootFilesystem: yes please", "is neither true nor false"},
      {"leader_worker_set.yaml", "drop: [ALL]", "drop: ALL", "capabilities.drop: is no list"},
      {"service.yaml", "port: 80\n", "port: http\n",
       "$.spec.ports[0].port: \"http\" is no integer"},
      {"pod_disruption_budget.yaml", "apiVersion: policy/v1", "apiVersion: policy/v1beta1",
       "unknown kind policy/v1beta1/PodDisruptionBudget"},
      {"config_map.yaml", "app.kubernetes.io/name: skein", "app.kubernetes.io/name: 7",
       "$.metadata.labels.app.kubernetes.io/name: 7 is no string; quote it"},
      {"network_policy.yaml",
       "podSelector:\n    matchLabels:\n      app.kubernetes.io/name: skein\n  p", "p",
       "$.spec.podSelector: required and missing"},
  };
  Schema schema;
  size_t refused = 0;
  for (const auto& c : cases) {
    std::string text = ReadFile(std::string(kDirectory) + "/" + c.file);
    const size_t at = text.find(c.from);
    ASSERT_NE(at, std::string::npos) << c.from;
    text.replace(at, c.from.size(), c.to);
    const std::string problems = ::testing::PrintToString(schema.Check(YAML::Load(text)));
    // The printed form escapes quotes.
    std::string expected = c.problem;
    for (size_t i = 0; (i = expected.find('"', i)) != std::string::npos; i += 2) {
      expected.insert(i, "\\");
    }
    EXPECT_THAT(problems, HasSubstr(expected));
    ++refused;
  }
  EXPECT_GE(refused, 10u);
}

// The set, the service, the budget and the policy mean the same pods; mounts have their volumes.
TEST(Manifests, ReferToEachOther) {
  const auto load = [](const char* name) {
    return YAML::LoadFile(std::string(kDirectory) + "/" + name);
  };
  const YAML::Node pod =
      load("leader_worker_set.yaml")["spec"]["leaderWorkerTemplate"]["workerTemplate"];
  const auto label = pod["metadata"]["labels"]["app.kubernetes.io/name"].as<std::string>();
  EXPECT_EQ(load("service.yaml")["spec"]["selector"]["app.kubernetes.io/name"].as<std::string>(),
            label);
  for (const auto& [file, selector] : {std::pair("pod_disruption_budget.yaml", "selector"),
                                       std::pair("network_policy.yaml", "podSelector")}) {
    const YAML::Node found = load(file)["spec"][selector]["matchLabels"];
    EXPECT_EQ(found["app.kubernetes.io/name"].as<std::string>(), label) << file;
  }
  std::set<std::string> volumes;
  for (const auto& volume : pod["spec"]["volumes"])
    volumes.insert(volume["name"].as<std::string>());
  const YAML::Node container = pod["spec"]["containers"][0];
  for (const auto& mount : container["volumeMounts"]) {
    EXPECT_TRUE(volumes.contains(mount["name"].as<std::string>())) << mount["name"];
  }
  EXPECT_EQ(load("config_map.yaml")["metadata"]["name"].as<std::string>(),
            pod["spec"]["volumes"][0]["configMap"]["name"].as<std::string>());
  // A stop must have the time that it may take.
  const YAML::Node config =
      YAML::Load(load("config_map.yaml")["data"]["skein.yaml"].as<std::string>());
  EXPECT_GE(pod["spec"]["terminationGracePeriodSeconds"].as<int>(),
            config["server"]["shutdown_timeout"].as<int>() + 15);
}

}  // namespace
}  // namespace skein::tests
