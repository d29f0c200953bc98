// The term of the coordinator: a number in a file that outlives processes and power, one larger at
// each start of a coordinator, so no term is ever given out twice.
// One thread of whoever starts a coordinator; others of the host may use the same file.
// Must never hand out a term before it is on the disk.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace skein::protocol {

// Where state goes without configuration, if it is there and can be written.
inline constexpr std::string_view kDefaultStateDirectory = "/var/lib/skein";

// The directory for state: `configured`; empty: `preferred` if it is there and can be written, else
// a private one in `run_base`. InvalidArgument when what is written there would not last, or others
// could write it. Leaves nothing behind.
absl::StatusOr<std::string> TryStateDirectory(std::string_view configured,
                                              std::string_view run_base,
                                              std::string_view preferred);

// The same, and makes it when it is missing.
absl::StatusOr<std::string> ChooseStateDirectory(std::string_view configured,
                                                 std::string_view run_base,
                                                 std::string_view preferred);

// A floor for terms that grows while the machine is up.
uint64_t SecondsSinceBoot();

class TermFile final {
 public:
  // The file `term` in a directory that exists.
  explicit TermFile(std::string directory) : directory_(std::move(directory)) {}

  // The next term: at least `floor` and larger than every one before; it is on the disk when this
  // returns. FailedPrecondition when the file is torn, Unavailable when it cannot be written.
  absl::StatusOr<uint64_t> Next(uint64_t floor) const;

  // That the file is absent or whole; FailedPrecondition as above. Changes nothing.
  absl::Status Check() const;

  std::string path() const { return directory_ + "/term"; }

 private:
  std::string directory_;
};

}  // namespace skein::protocol
