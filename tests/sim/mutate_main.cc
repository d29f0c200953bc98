// mutate MUTANTS SOURCE_ROOT OUTPUT_DIRECTORY: writes a copy of every product source that the list
// of planted bugs names, with all of them in it, each behind its number. Fails when the text that a
// bug replaces is not there exactly once: the list follows the sources.

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

struct Edit {
  std::string mutant, file, before, after;
};

std::string ReadAll(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Spaces and line ends are one space: the list need not follow the formatting.
std::string Squeeze(const std::string& text, std::vector<size_t>& at) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool space = text[i] == ' ' || text[i] == '\n';
    if (space && (out.empty() || out.back() == ' ')) continue;
    out.push_back(space ? ' ' : text[i]);
    at.push_back(i);
  }
  return out;
}

std::string Numbered(std::string text, const std::string& mutant) {
  const std::string word = "MUTANT";
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 20)) {
    text.replace(at, word.size(), "SKEIN_MUTANT(" + mutant + ")");
  }
  return text;
}

// Empty when the text is not there exactly once.
bool Apply(const Edit& edit, std::string& source) {
  std::vector<size_t> at, unused;
  const std::string squeezed = Squeeze(source, at);
  std::string before = Squeeze(edit.before, unused);
  if (!before.empty() && before.back() == ' ') before.pop_back();
  const size_t found = squeezed.find(before);
  if (before.empty() || found == std::string::npos ||
      squeezed.find(before, found + 1) != std::string::npos) {
    return false;
  }
  const size_t begin = at[found];
  const size_t end = at[found + before.size() - 1] + 1;
  source.replace(begin, end - begin, Numbered(edit.after, edit.mutant));
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 64;
  std::ifstream list(argv[1]);
  std::map<std::string, std::string> sources;
  Edit edit;
  const auto apply = [&]() -> bool {
    if (edit.before.empty()) return true;
    std::string& source = sources[edit.file];
    if (source.empty()) source = ReadAll(fs::path(argv[2]) / edit.file);
    const bool applied = Apply(edit, source);
    if (!applied) {
      std::fprintf(stderr, "mutant %s: %s does not have exactly once:\n%s", edit.mutant.c_str(),
                   edit.file.c_str(), edit.before.c_str());
    }
    edit.before.clear();
    edit.after.clear();
    return applied;
  };
  for (std::string line; std::getline(list, line);) {
    const std::string rest = line.size() > 2 ? line.substr(2) : "";
    if (line.starts_with("+ ")) {
      edit.after += rest + "\n";
      continue;
    }
    if (line.starts_with("- ")) {
      if (!edit.after.empty() && !apply()) return 1;
      edit.before += rest + "\n";
      continue;
    }
    if (!apply()) return 1;
    if (line.starts_with("mutant ")) edit.mutant = line.substr(7, line.find(' ', 7) - 7);
    if (line.starts_with("file ")) edit.file = line.substr(5);
  }
  if (!apply()) return 1;
  for (const auto& [file, text] : sources) {
    const fs::path path = fs::path(argv[3]) / file;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  return 0;
}
