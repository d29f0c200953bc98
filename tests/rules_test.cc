// Which test stands for which rule of the serving interface. A test names its rules in a comment
// "// rule: S5, G6" right above it, or begins its name with one ("R42..." is R4.2). The list is
// printed; a rule without a test, and a name that is no rule, fail. Reads the source tree from the
// working directory.
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace skein::tests {
namespace {

namespace fs = std::filesystem;

// Families of rules of the serving interface and how many each has: request fields, streams,
// logprobs, chat encoding, output, speculation, admission, the prefix cache, grammars; and what
// users reported elsewhere: graphs, orphans, health, the fabric, logprobs, acceptance, structured
// output, tool calls, aborts, the prefix cache, metrics, starts, determinism, memory.
const std::map<std::string, int> kFamilies = {
    {"R2.", 4}, {"R3.", 6}, {"R4.", 5}, {"E", 7},   {"S", 11}, {"V", 6},  {"A", 6},  {"P", 5},
    {"G", 7},   {"GR", 7},  {"OR", 5},  {"HA", 12}, {"FA", 5}, {"LP", 4}, {"AC", 4}, {"SO", 3},
    {"TC", 4},  {"AB", 7},  {"PC", 4},  {"ME", 3},  {"ST", 1}, {"DT", 3}, {"MM", 3}};
// Of those, what may be without a test that names it: grammars of schemas, devices and their
// graphs, the fabric between hosts, lower tiers of the cache.
const std::set<std::string> kOptional = {
    "G2",  "G3",  "G4",  "G5",   "GR1",  "GR2",  "GR3", "GR4", "GR5", "GR6", "GR7", "OR3",
    "HA3", "HA6", "HA8", "HA10", "HA11", "HA12", "FA1", "FA2", "FA3", "FA4", "FA5", "AC1",
    "AC3", "SO1", "SO2",  "SO3",  "AB2",  "AB3", "PC2", "DT3", "MM1", "MM2"};

std::set<std::string> AllRules() {
  std::set<std::string> rules;
  for (const auto& [family, count] : kFamilies) {
    for (int i = 1; i <= count; ++i) rules.insert(family + std::to_string(i));
  }
  return rules;
}

struct NamedTest {
  std::string file;
  size_t line = 0;
  std::string name;
};

// The line that begins a test of either language.
bool BeginsTest(const std::string& line) {
  return line.starts_with("TEST") || line.starts_with("test(");
}

// "Suite.Name" of TEST lines, the words of the others.
std::string NameOf(const std::string& line) {
  const size_t open = line.find('(');
  if (line.starts_with("test(")) {
    const char quote = line[open + 1];
    return line.substr(open + 2, line.find(quote, open + 2) - open - 2);
  }
  const size_t comma = line.find(", ", open);
  const size_t close = line.find(')', open);
  if (comma == std::string::npos) return line.substr(open + 1);
  return line.substr(open + 1, comma - open - 1) + "." +
         line.substr(comma + 2, close == std::string::npos ? close : close - comma - 2);
}

std::vector<std::string> RulesOfComment(const std::string& line) {
  std::vector<std::string> rules;
  std::string rule;
  for (const char c : line.substr(line.find(':') + 1) + ",") {
    const bool part = std::isalnum(static_cast<unsigned char>(c)) || c == '.';
    if (part) rule += c;
    if (c == ',' && !rule.empty()) rules.push_back(std::exchange(rule, {}));
    // What follows the list is prose.
    if (!part && c != ',' && c != ' ') break;
    if (c == ' ' && !rule.empty()) {
      rules.push_back(std::exchange(rule, {}));
      break;
    }
  }
  return rules;
}

// The rule that a name begins with: "S5Demanded..." is S5, "R42Are..." R4.2.
std::optional<std::string> RuleOfName(const std::string& name) {
  const std::string own = name.substr(name.find('.') + 1);
  for (const std::string& rule : AllRules()) {
    std::string written = rule;
    std::erase(written, '.');
    const bool begins = own.starts_with(written) && own.size() > written.size() &&
                        !std::isdigit(static_cast<unsigned char>(own[written.size()]));
    if (begins) return rule;
  }
  return std::nullopt;
}

using RuleTable = std::map<std::string, std::vector<NamedTest>>;

void ReadTests(const fs::path& path, RuleTable& table) {
  std::ifstream stream(path);
  std::vector<std::string> waiting;
  size_t number = 0;
  for (std::string line; std::getline(stream, line);) {
    ++number;
    if (line.starts_with("// rule: ")) {
      waiting = RulesOfComment(line);
      EXPECT_FALSE(waiting.empty()) << path << ":" << number;
      continue;
    }
    if (line.starts_with("//")) continue;  // the rest of the comment
    if (!BeginsTest(line)) {
      EXPECT_TRUE(waiting.empty()) << path << ":" << number << ": a rule above no test";
      waiting.clear();
      continue;
    }
    const NamedTest test{path.string(), number, NameOf(line)};
    for (const std::string& rule : waiting) table[rule].push_back(test);
    const std::optional<std::string> named = RuleOfName(test.name);
    const bool twice = std::find(waiting.begin(), waiting.end(), named) != waiting.end();
    if (named.has_value() && !twice) table[*named].push_back(test);
    waiting.clear();
  }
}

RuleTable ReadTree() {
  RuleTable table;
  for (auto it = fs::recursive_directory_iterator("tests");
       it != fs::recursive_directory_iterator(); ++it) {
    const std::string name = it->path().filename().string();
    if (name == "node_modules" || name == "data") {
      it.disable_recursion_pending();
    } else if (name.ends_with("_test.cc") || name.ends_with(".test.mjs")) {
      ReadTests(it->path(), table);
    }
  }
  return table;
}

TEST(Rules, EachHasATest) {
  const RuleTable table = ReadTree();
  const std::set<std::string> all = AllRules();
  for (const auto& [rule, tests] : table) {
    EXPECT_TRUE(all.contains(rule))
        << rule << " is no rule; named at " << tests[0].file << ":" << tests[0].line;
    for (const NamedTest& test : tests) {
      std::printf("%-5s %s:%zu %s\n", rule.c_str(), test.file.c_str(), test.line,
                  test.name.c_str());
    }
  }
  for (const std::string& rule : all) {
    if (table.contains(rule)) continue;
    std::printf("%-5s no test names it\n", rule.c_str());
    EXPECT_TRUE(kOptional.contains(rule)) << rule;
  }
  for (const std::string& rule : kOptional) EXPECT_TRUE(all.contains(rule)) << rule;
}

TEST(Rules, NamesAndCommentsAreReadAsTheyAreWritten) {
  EXPECT_EQ(RulesOfComment("// rule: S5, R4.2 — of something, and more"),
            (std::vector<std::string>{"S5", "R4.2"}));
  EXPECT_EQ(RulesOfComment("// rule: G1"), std::vector<std::string>{"G1"});
  EXPECT_EQ(RuleOfName("Suite.R42Are"), "R4.2");
  EXPECT_EQ(RuleOfName("Suite.S10Stops"), "S10");
  EXPECT_EQ(RuleOfName("Suite.S5"), std::nullopt);
  EXPECT_EQ(RuleOfName("Suite.AChat"), std::nullopt);
  EXPECT_EQ(NameOf("TEST_F(Suite, Name) {"), "Suite.Name");
  EXPECT_EQ(NameOf("test('a chat is answered', async () => {"), "a chat is answered");
}

}  // namespace
}  // namespace skein::tests
