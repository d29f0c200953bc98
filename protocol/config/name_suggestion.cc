// Nearest names by edit distance. Any thread.
// Must never suggest a name that is far from what was written.
#include "protocol/config/name_suggestion.h"

#include <algorithm>

#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t cost = a[i - 1] == b[j - 1] ? 0 : 1;
      const size_t next = std::min({row[j] + 1, row[j - 1] + 1, diagonal + cost});
      diagonal = row[j];
      row[j] = next;
    }
  }
  return row[b.size()];
}

}  // namespace

std::string NameSuggestion(std::string_view name, const std::vector<std::string>& known,
                           std::string_view prefix) {
  if (name.size() > 128) return "";
  size_t best = std::max<size_t>(2, name.size() / 3) + 1;
  std::string_view found;
  for (const std::string& candidate : known) {
    const size_t distance = EditDistance(name, candidate);
    if (distance < best) {
      best = distance;
      found = candidate;
    }
  }
  return found.empty() ? "" : Concat("; did you mean ", prefix, found, "?");
}

}  // namespace skein::protocol
