// Byte strings that break one framing rule each, good requests, and a seeded source of what lies
// between. Pure functions and one generator; one thread. Must never produce the same string for two
// names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace skein::tests {

struct FramingProbe {
  std::string name;
  std::string bytes;
};

// Every rule at least once.
std::vector<FramingProbe> BadProbes();
std::vector<FramingProbe> GoodProbes();

// One to three requests, good or with up to three changes, that depend on the seed alone.
class ProbeSource {
 public:
  explicit ProbeSource(uint64_t seed) : state_(seed) {}
  std::string Next();
  // A number below `bound`.
  size_t Below(size_t bound);

 private:
  void Change(std::string& bytes);

  const std::vector<FramingProbe> good_ = GoodProbes();
  const std::vector<FramingProbe> bad_ = BadProbes();
  uint64_t state_;
};

}  // namespace skein::tests
