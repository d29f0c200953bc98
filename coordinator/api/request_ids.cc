// Numbers from (seed of the process, number of the request, purpose).
// Thread: any.
// Must never: repeat an id within a process.
#include "coordinator/api/request_ids.h"

#include <algorithm>
#include <array>

namespace skein::coordinator {
namespace {

constexpr size_t kHeaderIdBytesMax = 128;

// The finaliser of splitmix64: a bijection that looks random.
uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

std::string Hex(uint64_t value) {
  std::array<char, 16> digits;
  for (size_t i = 0; i < digits.size(); ++i) {
    digits[i] = "0123456789abcdef"[(value >> (60 - 4 * i)) & 15];
  }
  return std::string(digits.data(), digits.size());
}

enum Purpose : uint64_t { kAnswer = 1, kHeader = 2, kSampling = 3, kSpread = 4, kCall = 5 };

uint64_t Draw(uint64_t seed, uint64_t number, Purpose purpose) {
  return Mix(Mix(seed ^ (static_cast<uint64_t>(purpose) << 56)) ^ number);
}

}  // namespace

std::string RequestIds::AnswerId(RequestForm form, uint64_t number) const {
  const uint64_t first = Draw(seed_, number, kAnswer);
  const char* kind = form == RequestForm::kChat         ? "chatcmpl-"
                     : form == RequestForm::kCompletion ? "cmpl-"
                                                        : "msg_";
  return kind + Hex(first) + Hex(Mix(first));
}

std::string RequestIds::HeaderId(std::string_view given, uint64_t number) const {
  const bool visible =
      std::all_of(given.begin(), given.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (visible && !given.empty() && given.size() <= kHeaderIdBytesMax) return std::string(given);
  return "req-" + Hex(Draw(seed_, number, kHeader));
}

std::string RequestIds::CallId(uint64_t number, size_t index) const {
  constexpr std::string_view kDigits =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  constexpr int kPerDraw = 8;
  std::string id = "call_";
  uint64_t draw = Mix(Draw(seed_, number, kCall) ^ index);
  for (int i = 0; i < 24; ++i) {
    if (i % kPerDraw == 0) draw = Mix(draw);
    id += kDigits[(draw >> (8 * (i % kPerDraw))) % kDigits.size()];
  }
  return id;
}

uint64_t RequestIds::SamplingSeed(uint64_t number) const { return Draw(seed_, number, kSampling); }

double RequestIds::Spread(uint64_t number) const {
  return static_cast<double>(Draw(seed_, number, kSpread) >> 11) * 0x1p-53;
}

}  // namespace skein::coordinator
