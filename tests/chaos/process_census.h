// What a tree of processes has open and has left behind, by /proc.
// Thread: any; functions.
// Must never: signal anything.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace skein::tests {

struct Census {
  size_t processes = 0;  // of the tree, its root included
  size_t zombies = 0;    // ended, and not waited for
  // Open, by program and file; of sockets, by protocol and state.
  std::map<std::string, size_t> descriptors;
  size_t num_descriptors() const;
  friend bool operator==(const Census&, const Census&) = default;
};

// Of `root` and all its descendants.
Census TakeCensus(int root);
// Descendants of this process that are not in a tree below `roots`: what was orphaned came to us,
// if this process is a subreaper.
size_t CountOrphans(const std::vector<int>& roots);
// Where the two differ: "skein-worker socket: 12, before 11".
std::string Difference(const Census& before, const Census& after);

}  // namespace skein::tests
