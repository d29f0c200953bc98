#include "protocol/transport/curve_keys.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

constexpr size_t kKeyCharacters = 40;
constexpr size_t kFileBytesMax = 64 << 10;

bool IsKey(std::string_view text) {
  std::array<uint8_t, 32> bytes{};
  return text.size() == kKeyCharacters &&
         ::zmq_z85_decode(bytes.data(), std::string(text).c_str()) != nullptr;
}

absl::StatusOr<std::string> ReadText(const std::string& key, const std::string& path) {
  std::ifstream file(path);
  std::string text(kFileBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad()) {
    return absl::InvalidArgumentError(
        Concat(key, ": cannot read ", path, ": ", std::strerror(errno)));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kFileBytesMax) {
    return absl::InvalidArgumentError(Concat(key, ": ", path, " is longer than 64 KiB"));
  }
  return text;
}

// A secret that others can read is none.
absl::Status CheckPrivate(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    return absl::InvalidArgumentError(Concat("transport.curve_secret_key_file: ", path, ": ",
                                             std::strerror(errno),
                                             "; make one with skein keygen FILE"));
  }
  if (!S_ISREG(status.st_mode) || (status.st_mode & 0077) != 0) {
    return absl::InvalidArgumentError(
        Concat("transport.curve_secret_key_file: ", path,
               " must be a file that only its owner can read: chmod 600 it"));
  }
  return absl::OkStatus();
}

absl::Status ReadPair(const std::string& path, CurveKeys& keys) {
  SKEIN_RETURN_IF_ERROR(CheckPrivate(path));
  SKEIN_ASSIGN_OR_RETURN(const std::string text, ReadText("transport.curve_secret_key_file", path));
  std::istringstream lines(text);
  for (std::string name, value; lines >> name >> value;) {
    if (name == "public") keys.public_key = value;
    if (name == "secret") keys.secret_key = value;
  }
  std::array<char, kKeyCharacters + 1> derived{};
  if (!IsKey(keys.public_key) || !IsKey(keys.secret_key) ||
      ::zmq_curve_public(derived.data(), keys.secret_key.c_str()) != 0 ||
      keys.public_key != derived.data()) {
    return absl::InvalidArgumentError(Concat("transport.curve_secret_key_file: ", path,
                                             " has no lines \"public KEY\" and \"secret KEY\" of ",
                                             "one pair; make it with skein keygen FILE"));
  }
  return absl::OkStatus();
}

absl::Status ReadServerKeys(const std::string& text, CurveKeys& keys) {
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    keys.server_keys.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  const bool good = keys.server_keys.size() <= 2 &&
                    std::all_of(keys.server_keys.begin(), keys.server_keys.end(), IsKey);
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      Concat("transport.curve_server_key: \"", text, "\" is not the coordinator's public key of ",
             kKeyCharacters, " characters, or two of them separated by a comma"));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseAllowedKeys(std::string_view text) {
  std::vector<std::string> keys;
  std::istringstream lines{std::string(text)};
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    // '#' is a character of Z85 too: a comment stands at the beginning or behind a space.
    std::string word;
    if (!(std::istringstream(line) >> word) || word.front() == '#') continue;
    if (!IsKey(word)) {
      return absl::InvalidArgumentError(Concat("transport.curve_allowed_keys_file: line ", number,
                                               " is no public key of ", kKeyCharacters,
                                               " characters"));
    }
    keys.push_back(word);
  }
  return keys;
}

absl::StatusOr<CurveKeys> LoadCurveKeys(const CurveFiles& files, CurveSide side) {
  if (::zmq_has("curve") == 0) {
    return absl::FailedPreconditionError(
        "this libzmq was built without CURVE, which tcp control endpoints need; install one with "
        "libsodium or use an ipc endpoint");
  }
  CurveKeys keys;
  if (files.secret_key_file.empty()) {
    return absl::InvalidArgumentError(
        "transport.curve_secret_key_file: a tcp control endpoint needs it; make one with skein "
        "keygen FILE");
  }
  SKEIN_RETURN_IF_ERROR(ReadPair(files.secret_key_file, keys));
  if (side == CurveSide::kWorker) {
    SKEIN_RETURN_IF_ERROR(ReadServerKeys(files.server_key, keys));
    return keys;
  }
  if (files.allowed_keys_file.empty()) {
    return absl::InvalidArgumentError(
        "transport.curve_allowed_keys_file: a coordinator on tcp needs it; write the public key of "
        "each worker in a line");
  }
  SKEIN_ASSIGN_OR_RETURN(const std::string text,
                         ReadText("transport.curve_allowed_keys_file", files.allowed_keys_file));
  SKEIN_RETURN_IF_ERROR(ParseAllowedKeys(text).status());
  keys.allowed_keys_file = files.allowed_keys_file;
  return keys;
}

absl::StatusOr<std::string> WriteNewCurveKeys(const std::string& path) {
  std::array<char, kKeyCharacters + 1> public_key{};
  std::array<char, kKeyCharacters + 1> secret_key{};
  if (::zmq_curve_keypair(public_key.data(), secret_key.data()) != 0) {
    return absl::FailedPreconditionError("this libzmq was built without CURVE: it makes no keys");
  }
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) {
    const int error = errno;
    const std::string text = Concat("cannot make ", path, ": ", std::strerror(error),
                                    "; name a new file in a directory that can be written");
    return error == EEXIST ? absl::AlreadyExistsError(text) : absl::InvalidArgumentError(text);
  }
  const std::string lines =
      Concat("public ", public_key.data(), "\nsecret ", secret_key.data(), "\n");
  const ssize_t written = ::write(fd, lines.data(), lines.size());
  ::close(fd);
  if (written != static_cast<ssize_t>(lines.size())) {
    return absl::InvalidArgumentError(Concat("cannot write ", path, ": ", std::strerror(errno)));
  }
  return std::string(public_key.data());
}

}  // namespace skein::protocol
