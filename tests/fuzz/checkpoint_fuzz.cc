// Checkpoints. An input that begins with '{' is the header of a file up to its first line end, and
// what follows the tensors' data; one that begins with '[' is, behind it, an index of two given
// files; any other is a whole file. Tensors lie in the data, side by side; a refusal names the
// file. Thread: one. Must never: read a file that the input names, other than those two.
#include <cstring>
#include <filesystem>
#include <fstream>

#include "protocol/base/strings.h"
#include "tests/fuzz/fuzz_target.h"
#include "worker/model/checkpoint.h"

namespace skein::tests {
namespace {

using protocol::StatusText;
using worker::Checkpoint;
using worker::SafetensorsFile;
namespace fs = std::filesystem;

std::string FileOf(std::string_view header, std::string_view data) {
  const uint64_t size = header.size();
  std::string file(sizeof size, '\0');
  std::memcpy(file.data(), &size, sizeof size);
  return (file += header) += data;
}

// A directory with two files of one tensor each, for an index.
class Shards {
 public:
  Shards() {
    char path[] = "/tmp/skein_fuzz_XXXXXX";
    directory_ = ::mkdtemp(path);
    for (const char* name : {"a", "b"}) {
      const std::string header =
          protocol::Concat("{\"", name, R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})");
      std::ofstream(directory_ / name) << FileOf(header, "01234567");
    }
  }
  ~Shards() {
    std::error_code ignored;
    fs::remove_all(directory_, ignored);
  }
  Shards(const Shards&) = delete;
  Shards& operator=(const Shards&) = delete;

  void Open(std::string_view index) const {
    std::ofstream(directory_ / "model.safetensors.index.json") << index;
    const auto checkpoint = Checkpoint::Open(directory_);
    if (!checkpoint.ok()) {
      return Require(
          StatusText(checkpoint.status()).find(directory_.string()) != std::string_view::npos,
          "a refusal names the file", StatusText(checkpoint.status()));
    }
    for (const auto& [name, tensor] : (*checkpoint)->tensors()) {
      Require(name == tensor.file && (*checkpoint)->Find(name) == &tensor,
              "a tensor is that of its file", name);
    }
  }

 private:
  fs::path directory_;
};

void CheckFile(std::string_view content) {
  const MemoryFile file(content);
  const auto opened = SafetensorsFile::Open(file.path());
  if (!opened.ok()) {
    return Require(StatusText(opened.status()).starts_with(file.path()), "a refusal names the file",
                   StatusText(opened.status()));
  }
  size_t total = 0;
  volatile unsigned sum = 0;  // so that every byte is read
  for (const auto& [name, view] : (*opened)->tensors()) {
    const size_t bytes = static_cast<size_t>(view.size()) * kernels::DTypeBytes(view.dtype);
    total += bytes;
    Require(total <= content.size(), "tensors lie in their file", name);
    const auto* const data = static_cast<const unsigned char*>(view.data);
    for (size_t i = 0; i < bytes; ++i) sum = sum + data[i];
    Require(!worker::DescribeTensor(view).empty(), "a tensor can be shown");
  }
  uint64_t header = 0;
  std::memcpy(&header, content.data(), sizeof header);
  Require(sizeof header + header + total == content.size(), "and fill it");
}

void Check(std::string_view text) {
  static const Shards shards;
  if (text.starts_with("[")) return shards.Open(text.substr(1));
  if (!text.starts_with("{")) return CheckFile(text);
  const size_t end = std::min(text.find('\n'), text.size());
  CheckFile(FileOf(text.substr(0, end), text.substr(std::min(text.size(), end + 1))));
}

}  // namespace
}  // namespace skein::tests

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  skein::tests::Check(skein::tests::TextOf(data, size));
  return 0;
}
