// Plain open, read and close: a stream would throw when the file vanishes between the two.
// Any thread. Must never read without a bound.
#include "worker/node/descriptor.h"

#include <fcntl.h>
#include <unistd.h>

namespace skein::worker {
namespace {

constexpr size_t kBytesMax = 64 << 10;

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = other.Release();
  }
  return *this;
}

void Descriptor::Close() {
  if (fd_ >= 0) ::close(Release());
}

std::string ReadKernelFile(const std::string& path) {
  std::string text;
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char piece[4096];
  while (file.valid() && text.size() < kBytesMax) {
    const ssize_t count = ::read(file.get(), piece, sizeof piece);
    if (count <= 0) break;
    text.append(piece, static_cast<size_t>(count));
  }
  return text;
}

}  // namespace skein::worker
