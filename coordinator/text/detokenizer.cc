// Code points from bytes, and stop strings by one Knuth-Morris-Pratt matcher each.
// Thread: one object is used by one thread.
// Must never: emit part of a code point.
#include "coordinator/text/detokenizer.h"

#include <algorithm>
#include <utility>

#include "protocol/json/utf8.h"

namespace skein::coordinator {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// True when `bytes`, which is no whole sequence, may become one with more bytes.
bool MayBecomeSequence(std::string_view bytes) {
  static constexpr std::string_view kEndings[] = {"\x80", "\xA0", "\x90"};
  for (std::string_view middle : kEndings) {
    std::string candidate(bytes);
    if (candidate.size() == 1) candidate += middle;
    while (candidate.size() <= 4) {
      const size_t length = protocol::Utf8SequenceLength(candidate);
      if (length == candidate.size() && length > bytes.size()) return true;
      candidate += "\x80";
    }
  }
  return false;
}

// Bytes at the start of `bytes` that one replacement character stands for: the longest start of
// a sequence, at least one byte.
size_t BrokenLength(std::string_view bytes) {
  size_t length = std::min<size_t>(bytes.size(), 3);
  while (length > 1 && !MayBecomeSequence(bytes.substr(0, length))) --length;
  return length;
}

std::vector<size_t> MakeFallback(std::string_view text) {
  std::vector<size_t> fallback(text.size() + 1, 0);
  size_t length = 0;
  for (size_t i = 1; i < text.size(); ++i) {
    while (length > 0 && text[i] != text[length]) length = fallback[length];
    if (text[i] == text[length]) ++length;
    fallback[i + 1] = length;
  }
  return fallback;
}

}  // namespace

Detokenizer::Detokenizer(StopStrings stop) : stop_(std::move(stop)) {
  for (const std::string& text : stop_.strings) matchers_.push_back({MakeFallback(text), 0});
}

std::string Detokenizer::Append(std::string_view token_bytes, Honour honour) {
  std::string out;
  if (matched_.has_value()) return out;
  bytes_ += token_bytes;
  std::string text;
  std::string_view rest = bytes_;
  while (!rest.empty()) {
    const size_t length = protocol::Utf8SequenceLength(rest);
    if (length > 0) {
      text += rest.substr(0, length);
      rest.remove_prefix(length);
      continue;
    }
    if (rest.size() < 4 && MayBecomeSequence(rest)) break;
    text += kReplacement;
    rest.remove_prefix(BrokenLength(rest));
  }
  bytes_ = std::string(rest);
  AppendText(text, honour, &out);
  return out;
}

void Detokenizer::AppendText(std::string_view text, Honour honour, std::string* out) {
  if (matchers_.empty()) {  // nothing can be held back
    *out += text;
    return;
  }
  for (char c : text) {
    held_.push_back(c);
    size_t longest = 0;  // of the stop strings that end here
    for (size_t i = 0; i < matchers_.size(); ++i) {
      const std::string& wanted = stop_.strings[i];
      Matcher& matcher = matchers_[i];
      if (matcher.length == wanted.size()) matcher.length = matcher.fallback[matcher.length];
      while (matcher.length > 0 && wanted[matcher.length] != c) {
        matcher.length = matcher.fallback[matcher.length];
      }
      if (wanted[matcher.length] == c) ++matcher.length;
      if (matcher.length == wanted.size() && wanted.size() > longest && honour == Honour::kStops) {
        longest = wanted.size();
        matched_ = wanted;
      }
    }
    if (longest > 0) {
      out->append(held_, 0, stop_.include_in_output ? held_.size() : held_.size() - longest);
      held_.clear();
      bytes_.clear();
      return;
    }
    const size_t certain = held_.size() - LongestPrefix();
    out->append(held_, 0, certain);
    held_.erase(0, certain);
  }
}

size_t Detokenizer::LongestPrefix() const {
  size_t longest = 0;
  for (size_t i = 0; i < matchers_.size(); ++i) {
    const size_t length = matchers_[i].length;
    // A whole stop string here was not honoured: only a shorter start of it still matters.
    longest = std::max(longest,
                       length == stop_.strings[i].size() ? matchers_[i].fallback[length] : length);
  }
  return longest;
}

std::string Detokenizer::Finish() {
  std::string out;
  if (matched_.has_value()) return out;
  if (!std::exchange(bytes_, {}).empty()) AppendText(kReplacement, Honour::kNoStops, &out);
  out += std::exchange(held_, {});
  return out;
}

}  // namespace skein::coordinator
