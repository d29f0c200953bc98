// Keys of the control plane for tcp endpoints: this process's own pair, the server keys that a
// worker accepts and the list of keys that a coordinator lets in. Text form is Z85, 40 characters.
// Pure but for reading files; any thread. Must never print a secret key.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace skein::protocol {

struct CurveKeys {
  std::string public_key, secret_key;
  // One or, while the coordinator's pair is replaced, two: whoever has one of them is accepted.
  std::vector<std::string> server_keys;
  std::string allowed_keys_file;  // of a coordinator; read again whenever it changed
};

// The three keys of section `transport`.
struct CurveFiles {
  std::string server_key;  // public key of the coordinator; two separated by a comma
  std::string secret_key_file;
  std::string allowed_keys_file;
  bool empty() const {
    return server_key.empty() && secret_key_file.empty() && allowed_keys_file.empty();
  }
};

enum class CurveSide { kCoordinator, kWorker };

// Reads and checks them. FailedPrecondition when this libzmq has no CURVE; InvalidArgument names
// the key of the configuration that is missing or wrong, and the remedy.
absl::StatusOr<CurveKeys> LoadCurveKeys(const CurveFiles& files, CurveSide side);

// The keys in the text of an allow-list: one in a line, comments begin with '#'. InvalidArgument
// names the line that is none. An empty list lets nobody in.
absl::StatusOr<std::vector<std::string>> ParseAllowedKeys(std::string_view text);

// Makes a pair, writes it with mode 0600 to a new file and returns its public key. AlreadyExists
// when the file is there.
absl::StatusOr<std::string> WriteNewCurveKeys(const std::string& path);

}  // namespace skein::protocol
