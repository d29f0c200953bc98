// Read-only access to the safetensors shards of a checkpoint directory: mapped, bounded, checked.
// Owns the mappings; views into them live as long as the Checkpoint. Thread: immutable after Open.
// Never trusts a header: every size, range and name is checked before a byte of data is used.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/tensor_view.h"

namespace skein::worker {

// One file mapped read-only.
class MappedFile {
 public:
  static absl::StatusOr<MappedFile> Open(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  MappedFile(std::byte* data, size_t size) : data_(data), size_(size) {}
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// A tensor as the file declares it.
struct StoredTensor {
  kernels::TensorView
      view;          // data in the mapping, or in an aligned copy when the file is unaligned
  std::string file;  // for messages
};

// The tensors of one safetensors file. Rules: size >= 8, header within 100 MiB and the file, strict
// JSON object, known dtype, shape product without overflow, byte range inside the data and equal to
// the shape's size, ranges contiguous without overlap or hole. Errors name file, tensor and rule.
class SafetensorsFile {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::filesystem::path& path);

  const std::map<std::string, kernels::TensorView, std::less<>>& tensors() const {
    return tensors_;
  }

 private:
  explicit SafetensorsFile(MappedFile file) : file_(std::move(file)) {}
  absl::Status ReadHeader(const std::string& name);

  MappedFile file_;
  std::map<std::string, kernels::TensorView, std::less<>> tensors_;
  std::vector<std::unique_ptr<std::byte[]>> aligned_;
};

// All shards of a directory: model.safetensors.index.json and the files it names, or a single
// model.safetensors. A tensor in the index but not in its shard, or the reverse, is an error.
class Checkpoint {
 public:
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::filesystem::path& dir);

  const std::map<std::string, StoredTensor, std::less<>>& tensors() const { return tensors_; }
  const StoredTensor* Find(std::string_view name) const;
  const std::filesystem::path& dir() const { return dir_; }

 private:
  explicit Checkpoint(std::filesystem::path dir) : dir_(std::move(dir)) {}
  absl::Status AddShard(const std::string& file);
  absl::Status ReadIndex(const std::filesystem::path& index);

  std::filesystem::path dir_;
  std::vector<std::unique_ptr<SafetensorsFile>> shards_;
  std::map<std::string, StoredTensor, std::less<>> tensors_;
};

// "F8_E4M3 [64, 192]".
std::string DescribeTensor(const kernels::TensorView& view);

}  // namespace skein::worker
