// The keys of clients: who may call what, for whom it counts and how much of it there may be.
// Owns: the keys of the configuration, by id.
// Thread: one object is used by one thread, the listener's; ParseApiKeys by any.
// Must never: hold or print a secret; what is kept is its HMAC.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/key_digest.h"
#include "protocol/base/file_mark.h"

namespace skein::coordinator {

// Groups of routes that a key may be good for.
enum class KeyRight : uint8_t { kChat, kCompletions, kMessages, kTokenize, kModels, kMetrics };
inline constexpr size_t kNumKeyRights = 6;
// Their names in the file of keys.
std::string_view KeyRightName(KeyRight right);

// What a key may use; 0: as much as there is.
struct KeyLimits {
  double requests_per_second = 0;
  int64_t prompt_tokens_per_minute = 0;
  int64_t output_tokens_per_minute = 0;
  int64_t concurrency = 0;  // sequences: each choice of a request is one
  friend bool operator==(const KeyLimits&, const KeyLimits&) = default;
};

struct ApiKey {
  std::string id;  // as in the file; the key of --api-key has none
  KeyDigest digest{};
  std::string tenant;   // whose cached prefixes it shares
  uint32_t weight = 1;  // its share of the service under contention, relative to other keys
  KeyLimits limits;
  uint8_t rights = (1 << kNumKeyRights) - 1;  // a bit for each KeyRight
  bool special_ids = false;                   // prompts of ids may hold special ones
  int32_t priority_min = -100, priority_max = 100;
  std::optional<double> deadline_s;  // of every request, from its arrival
  std::optional<int64_t> expires;    // unix seconds

  bool May(KeyRight right) const { return (rights >> static_cast<int>(right) & 1) != 0; }
};

// What the file keeps of a secret: its HMAC, bound to the id.
KeyDigest ApiKeyDigest(std::string_view id, std::string_view secret);

// A new key of this id: "id.secret", and its entry in the file of keys. InvalidArgument: no id.
struct NewApiKey {
  std::string key, entry;
};
absl::StatusOr<NewApiKey> MakeApiKey(std::string_view id);

// The keys of a file (YAML, see coordinator/README.md). InvalidArgument: every problem, each with
// `file_name`, line, field and remedy.
absl::StatusOr<std::vector<ApiKey>> ParseApiKeys(std::string_view text, std::string_view file_name);

class ApiKeys {
 public:
  using Clock = std::chrono::steady_clock;

  // `literal`: the key of --api-key; `file`: of --api-key-file; empty ones are not there.
  // InvalidArgument names what is wrong with them.
  static absl::StatusOr<std::unique_ptr<ApiKeys>> Load(std::string_view literal, std::string file);

  // The key that a client sent, or null: unknown, wrong or expired. Takes the same time whether or
  // not its id is known. Looks at most once a second whether the file changed, and reads it then; a
  // new file with a problem leaves the old keys in force.
  std::shared_ptr<const ApiKey> Find(std::string_view sent, int64_t unix_seconds,
                                     Clock::time_point now);

  size_t size() const { return by_id_.size(); }

 private:
  ApiKeys(std::string_view literal, std::string file);
  absl::Status Read();
  void ReadIfChanged(Clock::time_point now);

  const std::string file_;
  const KeyDigest blinding_ = RandomDigest();  // under which the key of --api-key is kept
  std::shared_ptr<const ApiKey> literal_;      // or null
  std::map<std::string, std::shared_ptr<const ApiKey>, std::less<>> by_id_;
  protocol::FileMark read_;
  Clock::time_point looked_;
};

}  // namespace skein::coordinator
