// Reads a YAML file into a flat list of (path, value, line) by walking yaml-cpp's event stream, so
// that duplicates, aliases, anchors, tags and merges are refused instead of resolved.
// Pure functions, any thread. Must never interpret a value: types belong to config.cc.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace skein::protocol {

// A file larger, deeper or fuller than this is refused.
inline constexpr size_t kYamlBytesMax = 1 << 20;
inline constexpr size_t kYamlDepthMax = 8;
inline constexpr size_t kYamlEntriesMax = 4096;

// Bytes that no UTF-8 text has: neither a file nor a value may hold one.
inline constexpr std::string_view kYamlBytesNever("\x00\xFE\xFF", 3);

enum class YamlKind { kPlain, kQuoted, kNull, kSection, kList };

// One key of the file, in file order. Sections come before their keys.
struct YamlEntry {
  std::string path;  // "server.port"
  YamlKind kind = YamlKind::kPlain;
  std::string text;  // the scalar as written, without quotes; empty for the other kinds
  int line = 0;      // from one
};

// Parses `text`; `file_name` is only for messages, which begin with "file:line: ".
// InvalidArgument with every reason found before the parse stopped.
absl::StatusOr<std::vector<YamlEntry>> ReadYaml(std::string_view text, std::string_view file_name);

// `text` as a double-quoted YAML scalar.
std::string QuoteYaml(std::string_view text);

}  // namespace skein::protocol
