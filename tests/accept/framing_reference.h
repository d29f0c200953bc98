// A second reading of the framing rules of requests, written from the rules alone and on whole
// byte strings, to judge the listener by. Pure functions, any thread.
// Must never share code with the listener.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace skein::tests {

struct ReferenceRequest {
  std::string method, target, body;
  friend bool operator==(const ReferenceRequest&, const ReferenceRequest&) = default;
};

struct ReferenceReading {
  std::vector<ReferenceRequest> requests;  // whole and good, in order
  bool refused = false;                    // what follows them breaks a rule
};

// Everything that a connection sent, from its first byte.
ReferenceReading ReadByTheRules(std::string_view bytes);

}  // namespace skein::tests
