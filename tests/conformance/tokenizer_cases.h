// The tokenizer mode of skein-conformance: recorded encodings against a tokenizer.json.
// Thread: main.
// Must never: pass when a file has no cases.
#pragma once

#include <ostream>
#include <string>

#include "absl/status/statusor.h"

namespace skein::tests {

struct TokenizerCaseCounts {
  int num_cases = 0;
  int num_encoded = 0;   // ids equal
  int num_restored = 0;  // decoding the recorded ids gives the text back
  bool AllPass() const {
    return num_cases > 0 && num_encoded == num_cases && num_restored == num_cases;
  }
};

// Runs every line of `encodings` (JSON objects `id, kind, text, ids`) under `tokenizer` and prints
// one line per failed case and one for the total.
absl::StatusOr<TokenizerCaseCounts> RunTokenizerCases(const std::string& tokenizer,
                                                      const std::string& encodings,
                                                      std::ostream& out);

}  // namespace skein::tests
