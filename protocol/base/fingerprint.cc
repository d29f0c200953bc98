#include "protocol/base/fingerprint.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace skein::protocol {
namespace {

constexpr uint64_t kBasis = 14695981039346656037u;

uint64_t Fold(uint64_t hash, std::string_view bytes) {
  for (const char byte : bytes) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 1099511628211u;
  }
  return hash;
}

std::string Digits(uint64_t hash) { return absl::StrCat(absl::Hex(hash, absl::kZeroPad16)); }

}  // namespace

std::string Fingerprint(std::string_view bytes) { return Digits(Fold(kBasis, bytes)); }

absl::StatusOr<std::string> FileFingerprint(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  std::array<char, 1 << 16> piece;
  uint64_t hash = kBasis;
  while (file.read(piece.data(), piece.size()) || file.gcount() > 0) {
    hash = Fold(hash, std::string_view(piece.data(), static_cast<size_t>(file.gcount())));
  }
  if (file.bad()) return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  return Digits(hash);
}

}  // namespace skein::protocol
