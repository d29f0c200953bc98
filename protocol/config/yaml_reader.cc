// The event handler behind ReadYaml. yaml-cpp throws; nothing leaves this file but statuses.
// Any thread. Must never resolve what the strict reader refuses: aliases, merges, tags.
#include "protocol/config/yaml_reader.h"

#include <cstdio>
#include <exception>
#include <map>
#include <sstream>
#include <stdexcept>
#include <utility>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include "absl/status/status.h"
#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

// Ends the parse with a message that already names file and line.
class Refusal final : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class EntryCollector final : public YAML::EventHandler {
 public:
  explicit EntryCollector(std::string_view file_name) : file_name_(file_name) {}

  std::vector<YamlEntry> Take() { return std::move(entries_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    RefuseAnchor(mark, anchor);
    if (AtRoot()) return;  // an empty document
    if (InList()) return;
    RefuseAsKey(mark, "an empty key");
    Add(mark, YamlKind::kNull, "");
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    Refuse(mark, "an alias (*name) is not allowed; write the value out");
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    RefuseAnchor(mark, anchor);
    if (!tag.empty() && tag != "?" && tag != "!") RefuseTag(mark, tag);
    if (AtRoot()) Refuse(mark, "the file must be a map of sections, not a single value");
    if (InList()) return;
    if (levels_.back().key.empty()) {
      OnKey(mark, value);
    } else {
      Add(mark, tag == "!" ? YamlKind::kQuoted : YamlKind::kPlain, value);
    }
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    RefuseAnchor(mark, anchor);
    if (!tag.empty() && tag != "?") RefuseTag(mark, tag);
    if (AtRoot()) Refuse(mark, "the file must be a map of sections, not a list");
    if (list_depth_ == 0) {
      RefuseAsKey(mark, "a list as a key");
      Add(mark, YamlKind::kList, "");
    }
    ++list_depth_;
    RefuseDepth(mark);
  }

  void OnSequenceEnd() override { --list_depth_; }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    RefuseAnchor(mark, anchor);
    if (!tag.empty() && tag != "?") RefuseTag(mark, tag);
    std::string prefix;
    if (InList()) Refuse(mark, "a map inside a list is not allowed");
    if (!AtRoot()) {
      RefuseAsKey(mark, "a map as a key");
      prefix = Path();
      Add(mark, YamlKind::kSection, "");
    }
    levels_.push_back(Level{.prefix = std::move(prefix), .key = {}, .seen = {}});
    RefuseDepth(mark);
  }

  void OnMapEnd() override { levels_.pop_back(); }

 private:
  struct Level {
    std::string prefix;               // path of the map, empty at the root
    std::string key;                  // the key whose value comes next; empty: a key comes next
    std::map<std::string, int> seen;  // key -> line
  };

  [[noreturn]] void Refuse(const YAML::Mark& mark, std::string_view reason) const {
    throw Refusal(Concat(file_name_, ":", mark.line + 1, ": ", reason));
  }
  [[noreturn]] void RefuseTag(const YAML::Mark& mark, std::string_view tag) const {
    Refuse(mark, Concat("a tag (", tag, ") is not allowed; write the plain value"));
  }
  void RefuseAnchor(const YAML::Mark& mark, YAML::anchor_t anchor) const {
    if (anchor != 0) Refuse(mark, "an anchor (&name) is not allowed; write the value out");
  }
  void RefuseAsKey(const YAML::Mark& mark, std::string_view what) const {
    if (levels_.back().key.empty()) Refuse(mark, Concat(what, " is not allowed"));
  }
  void RefuseDepth(const YAML::Mark& mark) const {
    if (levels_.size() + list_depth_ > kYamlDepthMax) {
      Refuse(mark, Concat("nested deeper than ", kYamlDepthMax, " levels"));
    }
  }

  bool AtRoot() const { return levels_.empty(); }
  bool InList() const { return list_depth_ > 0; }

  std::string Path() const {
    const Level& level = levels_.back();
    return level.prefix.empty() ? level.key : Concat(level.prefix, ".", level.key);
  }

  void OnKey(const YAML::Mark& mark, const std::string& key) {
    if (key.empty()) Refuse(mark, "an empty key is not allowed");
    if (key == "<<") Refuse(mark, "a merge key (<<) is not allowed; write the values out");
    Level& level = levels_.back();
    level.key = key;
    const auto [first, inserted] = level.seen.emplace(key, mark.line + 1);
    if (!inserted) {
      Refuse(mark, Concat(Path(), ": duplicate key; first given on line ", first->second));
    }
  }

  void Add(const YAML::Mark& mark, YamlKind kind, std::string_view text) {
    if (entries_.size() >= kYamlEntriesMax) {
      Refuse(mark, Concat("more than ", kYamlEntriesMax, " keys"));
    }
    entries_.push_back(
        YamlEntry{.path = Path(), .kind = kind, .text = std::string(text), .line = mark.line + 1});
    // A null mark points at what follows the key: report the line of the key itself.
    if (kind == YamlKind::kNull || kind == YamlKind::kSection) {
      entries_.back().line = levels_.back().seen.at(levels_.back().key);
    }
    levels_.back().key.clear();
  }

  const std::string file_name_;
  std::vector<Level> levels_;
  size_t list_depth_ = 0;
  std::vector<YamlEntry> entries_;
};

}  // namespace

absl::StatusOr<std::vector<YamlEntry>> ReadYaml(std::string_view text, std::string_view file_name) {
  if (text.size() > kYamlBytesMax) {
    return absl::InvalidArgumentError(Concat(
        file_name, ": ", text.size(), " bytes; a configuration file has at most ", kYamlBytesMax));
  }
  // The parser would take the text for UTF-16 or UTF-32.
  if (const size_t at = text.find_first_of(kYamlBytesNever); at != std::string_view::npos) {
    return absl::InvalidArgumentError(
        Concat(file_name, ": byte ", at + 1, " is no UTF-8 text; save the file as UTF-8"));
  }
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    EntryCollector collector(file_name);
    if (!parser.HandleNextDocument(collector)) return std::vector<YamlEntry>{};
    std::vector<YamlEntry> entries = collector.Take();
    EntryCollector second(file_name);
    if (parser.HandleNextDocument(second)) {
      return absl::InvalidArgumentError(
          Concat(file_name, ": more than one YAML document; keep one"));
    }
    return entries;
  } catch (const Refusal& refusal) {
    return absl::InvalidArgumentError(refusal.what());
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        Concat(file_name, ":", error.mark.line + 1, ": not valid YAML: ", error.msg));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(Concat(file_name, ": cannot be read: ", error.what()));
  }
}

std::string QuoteYaml(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\x%02x", byte);
      out += escape;
    } else {
      out += c;
    }
  }
  out += '"';
  return out;
}

}  // namespace skein::protocol
