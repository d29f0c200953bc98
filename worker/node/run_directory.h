// The private directory of one run: sockets and generated files, mode 0700, gone at the end. A lock
// in it tells a living owner from a dead one, whose directory the next start removes.
// Supervisor's thread. Must never remove what is not locked-and-ours.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/node/containment.h"

namespace skein::worker {

// Names of run directories begin with this.
inline constexpr std::string_view kRunPrefix = "skein-run.";
// Where they are without configuration: the first if it can be written, else the second.
inline constexpr std::string_view kDefaultRunBase = "/run/skein";
inline constexpr std::string_view kFallbackRunBase = "/tmp";

// From the working directory; an empty path stays empty. Sockets need absolute ones.
std::string AbsolutePath(std::string_view path);

// That run directories can be made below `base`, an absolute path. FailedPrecondition names it, the
// reason and the remedy. Leaves nothing behind.
absl::Status TryRunBase(const std::string& base);

class RunDirectory final {
 public:
  // Below `base`, made when missing; empty: /run/skein when it can be written, else /tmp.
  // FailedPrecondition names it, the reason and the remedy.
  static absl::StatusOr<std::unique_ptr<RunDirectory>> Create(std::string_view base);
  ~RunDirectory();

  const std::string& path() const { return path_; }

  // Writes a file of mode 0600 and returns its path.
  absl::StatusOr<std::string> WriteFile(std::string_view name, std::string_view text) const;

 private:
  RunDirectory(std::string path, Descriptor lock, Descriptor directory)
      : path_(std::move(path)), lock_(std::move(lock)), directory_(std::move(directory)) {}

  std::string path_;
  Descriptor lock_;
  Descriptor directory_;  // locked, which keeps the cleaner of /tmp out
};

}  // namespace skein::worker
