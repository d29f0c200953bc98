// The file of API keys: ids are unique, limits and priorities within their ranges, and every
// problem names the file. A new key of the input's first line is found by its file alone.
// Thread: one.
// Must never: depend on anything but the input.
#include <set>

#include "coordinator/api/api_keys.h"
#include "protocol/base/strings.h"
#include "tests/fuzz/fuzz_target.h"

namespace skein::tests {
namespace {

using coordinator::ApiKey;
using coordinator::ApiKeys;

void CheckKey(const ApiKey& key) {
  Require(!key.id.empty() && !key.tenant.empty() && key.weight >= 1, "a key has id and tenant");
  Require(key.rights != 0 && key.rights < 1 << coordinator::kNumKeyRights, "it has known rights");
  Require(key.priority_min <= key.priority_max, "its priorities are a range");
  Require(key.limits.requests_per_second >= 0 && key.limits.prompt_tokens_per_minute >= 0 &&
              key.limits.output_tokens_per_minute >= 0 && key.limits.concurrency >= 0,
          "its limits are none or positive");
  Require(!key.deadline_s || *key.deadline_s > 0, "its deadline is ahead");
  const auto hex = coordinator::ToHex(key.digest);
  Require(coordinator::FromHex(hex) == key.digest, "its digest is one");
}

// The keys of a file with this text, and one beside them.
std::unique_ptr<ApiKeys> KeysOf(std::string_view text) {
  const MemoryFile file(text);
  auto keys = ApiKeys::Load("literal", file.path());
  if (!keys.ok()) return nullptr;
  Require((*keys)->Find("literal", 0, {}) != nullptr, "the literal key is known");
  Require((*keys)->Find("literal.x", 0, {}) == nullptr, "and no other");
  return *std::move(keys);
}

void CheckNewKey(std::string_view id) {
  const auto made = coordinator::MakeApiKey(id);
  if (!made.ok()) return;
  const auto keys = KeysOf("keys:\n" + made->entry);
  Require(keys != nullptr && keys->size() == 1, "the entry of a new key is read", made->entry);
  const auto found = keys->Find(made->key, 0, {});
  Require(found != nullptr && found->id == id, "a new key is found", made->key);
  Require(keys->Find(made->key + "0", 0, {}) == nullptr, "its secret counts");
}

void Check(std::string_view text) {
  CheckNewKey(text.substr(0, text.find('\n')));
  const bool is_loaded = KeysOf(text) != nullptr;
  const auto keys = coordinator::ParseApiKeys(text, "keys.yaml");
  Require(keys.ok() == is_loaded, "a file is read as its text is");
  if (!keys.ok()) {
    std::string_view problems = protocol::StatusText(keys.status());
    Require(!problems.empty(), "a refusal has a reason");
    while (!problems.empty()) {
      const size_t end = std::min(problems.find('\n'), problems.size());
      Require(problems.starts_with("keys.yaml"), "a problem names the file", problems);
      problems.remove_prefix(std::min(problems.size(), end + 1));
    }
    return;
  }
  std::set<std::string> ids;
  for (const ApiKey& key : *keys) {
    CheckKey(key);
    Require(ids.insert(key.id).second, "an id stands once", key.id);
  }
}

}  // namespace
}  // namespace skein::tests

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  skein::tests::Check(skein::tests::TextOf(data, size));
  return 0;
}
