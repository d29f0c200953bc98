// Runs the program, cuts its output into key and entry.
#include "tests/process/key_file.h"

#include <cstdio>
#include <fstream>

namespace skein::tests {
namespace {

constexpr char kKeyMark[] = "# key: ";
constexpr char kEntryMark[] = "keys:\n";

std::string OutputOf(const std::string& command) {
  FILE* const program = ::popen(command.c_str(), "r");
  if (program == nullptr) return "";
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), program));
  return ::pclose(program) == 0 ? text : "";
}

}  // namespace

std::map<std::string, std::string> WriteKeyFile(
    const std::string& path,
    const std::vector<std::pair<std::string, std::string>>& fields_of_ids) {
  std::map<std::string, std::string> keys;
  std::string text = kEntryMark;
  for (const auto& [id, fields] : fields_of_ids) {
    const std::string made = OutputOf(SKEIN_PROGRAM_DIRECTORY "/skein keygen --api " + id);
    const size_t key = made.find(kKeyMark);
    const size_t entry = made.find(kEntryMark);
    if (key == std::string::npos || entry == std::string::npos) return {};
    const size_t begin = key + sizeof kKeyMark - 1;
    keys[id] = made.substr(begin, made.find('\n', begin) - begin);
    text += made.substr(entry + sizeof kEntryMark - 1) + fields;
  }
  // By rename: the server never reads half a file.
  std::ofstream(path + ".new") << text;
  return std::rename((path + ".new").c_str(), path.c_str()) == 0
             ? keys
             : std::map<std::string, std::string>();
}

}  // namespace skein::tests
