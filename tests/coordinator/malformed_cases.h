// Malformed requests to a server of the demo model, and what each refusal must say. Shared by the
// tests of the API and those of real processes.
// Thread: any.
// Must never: depend on a server.
#pragma once

#include <string>
#include <vector>

namespace skein::tests {

struct MalformedCase {
  std::string path;
  std::string body;
  int status = 0;
  std::string code;
  std::string param;   // empty: null
  std::string detail;  // in the message, with the refused value
};

// Prompts in the bodies contain "secret words", which no message may repeat.
std::vector<MalformedCase> MalformedCases();

}  // namespace skein::tests
