// The model of the mock worker: the greedy token is a keyed hash of the whole prefix, so whoever
// knows the prompt knows the only right answer, and one lost, repeated or foreign token changes
// every token after it. Pure functions, any thread. Must never depend on anything but the prefix.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace skein::tests {

// The hash of a prefix of no tokens.
inline constexpr uint64_t kEmptyPrefix = 0x5EED0FA11C0FFEE5u;

// The hash of a prefix with one more token.
inline uint64_t Extend(uint64_t prefix, int32_t token) {
  uint64_t hash = (prefix ^ static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 29);
}

// The character chosen after a prefix: a letter or digit, 62 of them.
inline char CharacterAfter(uint64_t prefix) {
  constexpr std::string_view kCharacters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  return kCharacters[(prefix * 0xD6E8FEB86659FD93u >> 32) % kCharacters.size()];
}

// The id of a printable character in the vocabularies of this model family, where the characters
// from '!' on follow the three special tokens.
inline int32_t TokenOf(char character) { return character - '!' + 3; }

// What the model answers to the prompt: `length` characters, one token each.
template <typename Tokens>
std::string MockAnswer(const Tokens& prompt, size_t length) {
  uint64_t prefix = kEmptyPrefix;
  for (const int32_t token : prompt) prefix = Extend(prefix, token);
  std::string answer;
  answer.reserve(length);
  while (answer.size() < length) {
    answer.push_back(CharacterAfter(prefix));
    prefix = Extend(prefix, TokenOf(answer.back()));
  }
  return answer;
}

}  // namespace skein::tests
