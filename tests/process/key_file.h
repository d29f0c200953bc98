// A file of API keys as an operator makes it: with `skein keygen --api`.
// Owns: nothing; the file lies in a directory of the test's. Thread: the test's. Must never: show a
// key.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace skein::tests {

// Writes `path` with a key for each id, in this order, each with further fields: lines that begin
// with four spaces. Returns the keys by id; an empty map when a program failed.
std::map<std::string, std::string> WriteKeyFile(
    const std::string& path, const std::vector<std::pair<std::string, std::string>>& fields_of_ids);

}  // namespace skein::tests
