// Calls as the model wrote them, by id, so that their replay is the same to the byte.
// Owns: the texts, the least recently used go first.
// Thread: one object is used by one thread.
// Must never: give a text to another tenant, or for other arguments than its own.
#pragma once

#include <cstddef>
#include <list>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "coordinator/text/chat_template.h"

namespace skein::coordinator {

class CallTexts {
 public:
  static constexpr size_t kBytesMax = 64 * 1024 * 1024;  // of each tenant

  explicit CallTexts(size_t bytes_max = kBytesMax) : bytes_max_(bytes_max) {}

  // Keeps a call, whose `original` is set.
  void Keep(std::string_view tenant, ChatToolCall call);
  // Sets `original` of a call that a client sent back, if it is one that was kept: same id, name
  // and arguments, however these are written.
  void Restore(std::string_view tenant, ChatToolCall* call);

  size_t size() const { return calls_.size(); }

 private:
  struct Entry {
    std::string key;
    std::string tenant;
    ChatToolCall call;
    size_t bytes = 0;
  };
  static std::string Key(std::string_view tenant, std::string_view id);

  const size_t bytes_max_;
  std::list<Entry> calls_;  // last used first
  absl::flat_hash_map<std::string, std::list<Entry>::iterator> by_key_;
  absl::flat_hash_map<std::string, size_t> bytes_;  // by tenant
};

}  // namespace skein::coordinator
