// Splits text into pre-tokens with the patterns of tokenizer.json.
// Owns: the compiled PCRE2 patterns.
// Thread: const after Create; Split may run on many threads.
// Must never: be given a pattern from a user, or match without limits.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace skein::coordinator {

class Pretokenizer {
 public:
  // Patterns are applied in order; each splits the pieces of the one before and keeps its matches
  // as pieces of their own. InvalidArgument names the pattern, the offset and the reason.
  static absl::StatusOr<std::unique_ptr<Pretokenizer>> Create(
      std::span<const std::string> patterns);
  ~Pretokenizer();

  // Cuts valid UTF-8 into consecutive non-empty pieces. ResourceExhausted when a pattern needs
  // more steps than its limit.
  absl::StatusOr<std::vector<std::string_view>> Split(std::string_view text) const;

 private:
  struct Pattern;
  explicit Pretokenizer(std::vector<std::unique_ptr<Pattern>> patterns);

  std::vector<std::unique_ptr<Pattern>> patterns_;
};

}  // namespace skein::coordinator
