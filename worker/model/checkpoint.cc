#include "worker/model/checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <new>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"
#include "protocol/json/json.h"

namespace skein::worker {
namespace {

using kernels::DType;
using kernels::TensorView;
using protocol::JsonValue;
using protocol::ToAbsl;

constexpr size_t kHeaderBytesMax = size_t{100} << 20;
constexpr size_t kAlignment = 8;

struct DTypeName {
  std::string_view name;
  DType dtype;
};
constexpr DTypeName kDTypes[] = {
    {"F64", DType::kF64},      {"F32", DType::kF32},      {"BF16", DType::kBf16},
    {"F8_E4M3", DType::kE4m3}, {"F8_E8M0", DType::kE8m0}, {"I8", DType::kE2m1x2},
    {"I32", DType::kI32},      {"I64", DType::kI64},      {"U8", DType::kU8},
};

std::optional<DType> ParseDType(std::string_view name) {
  for (const DTypeName& entry : kDTypes) {
    if (entry.name == name) return entry.dtype;
  }
  return std::nullopt;
}

absl::Status Broken(const std::string& file, std::string_view tensor, std::string_view rule) {
  return absl::InvalidArgumentError(
      absl::StrCat(file, ": tensor \"", ToAbsl(tensor), "\": ", ToAbsl(rule)));
}

struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;
  std::string tensor;
};

// Shape and byte range of one header entry.
absl::StatusOr<std::pair<TensorView, Range>> ReadEntry(const std::string& file,
                                                       const std::string& name,
                                                       const JsonValue& entry,
                                                       uint64_t data_bytes) {
  const std::string path = absl::StrCat(file, ": tensor \"", name, "\"");
  for (const protocol::JsonMember& member : entry.members()) {
    if (member.key != "dtype" && member.key != "shape" && member.key != "data_offsets") {
      return Broken(file, name, absl::StrCat("unknown key \"", member.key, "\""));
    }
  }
  SKEIN_ASSIGN_OR_RETURN(const JsonValue* dtype_value, entry.Require("dtype", path));
  SKEIN_ASSIGN_OR_RETURN(std::string_view dtype_name, dtype_value->AsString(path));
  const std::optional<DType> dtype = ParseDType(dtype_name);
  if (!dtype)
    return Broken(file, name, absl::StrCat("dtype ", ToAbsl(dtype_name), " is not known"));
  SKEIN_ASSIGN_OR_RETURN(const JsonValue* shape_value, entry.Require("shape", path));
  SKEIN_ASSIGN_OR_RETURN(auto extents, shape_value->AsArray(path));
  if (extents.empty() || extents.size() > 4) {
    return Broken(file, name, absl::StrCat("has ", extents.size(), " dimensions, needs 1 to 4"));
  }
  TensorView view;
  view.dtype = *dtype;
  uint64_t bytes = kernels::DTypeBytes(*dtype);
  for (const JsonValue& extent : extents) {
    SKEIN_ASSIGN_OR_RETURN(int64_t value, extent.AsInt64(path, 0, int64_t{1} << 48));
    view.shape[static_cast<size_t>(view.rank++)] = value;
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(value), &bytes)) {
      return Broken(file, name, "the product of its shape overflows");
    }
  }
  int64_t step = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.stride[static_cast<size_t>(i)] = step;
    // An extent of zero hides the product of the others from the check above.
    if (__builtin_mul_overflow(step, view.dim(i), &step)) {
      return Broken(file, name, "the product of its shape overflows");
    }
  }
  SKEIN_ASSIGN_OR_RETURN(const JsonValue* offsets_value, entry.Require("data_offsets", path));
  SKEIN_ASSIGN_OR_RETURN(auto offsets, offsets_value->AsArray(path));
  if (offsets.size() != 2) return Broken(file, name, "data_offsets must have two entries");
  Range range;
  range.tensor = name;
  SKEIN_ASSIGN_OR_RETURN(range.begin, offsets[0].AsUint64(path));
  SKEIN_ASSIGN_OR_RETURN(range.end, offsets[1].AsUint64(path));
  if (range.begin > range.end || range.end > data_bytes) {
    return Broken(file, name,
                  absl::StrCat("data_offsets [", range.begin, ", ", range.end,
                               "] leave the file's ", data_bytes, " data bytes"));
  }
  if (range.end - range.begin != bytes) {
    return Broken(file, name,
                  absl::StrCat("its shape needs ", bytes, " bytes, data_offsets give ",
                               range.end - range.begin));
  }
  return std::make_pair(view, range);
}

absl::Status CheckContiguous(const std::string& file, std::vector<Range> ranges,
                             uint64_t data_bytes) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t at = 0;
  for (const Range& range : ranges) {
    if (range.begin != at) {
      return Broken(file, range.tensor,
                    absl::StrCat("begins at byte ", range.begin, ", the data before it end at ", at,
                                 ": overlap or hole"));
    }
    at = range.end;
  }
  if (at != data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": tensors end at byte ", at, " of ",
                                                   data_bytes, ": truncated or padded file"));
  }
  return absl::OkStatus();
}

std::string SystemError(const std::filesystem::path& path) {
  return absl::StrCat(path.string(), ": ", std::strerror(errno));
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(const std::filesystem::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::NotFoundError(SystemError(path));
  struct stat info = {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": not a regular file"));
  }
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0) {
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": the file is empty"));
  }
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  close(fd);
  if (data == MAP_FAILED) return absl::InternalError(SystemError(path));
  return MappedFile(static_cast<std::byte*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(data_, size_);
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(
    const std::filesystem::path& path) {
  SKEIN_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  std::unique_ptr<SafetensorsFile> out(new SafetensorsFile(std::move(file)));
  SKEIN_RETURN_IF_ERROR(out->ReadHeader(path.string()));
  return out;
}

absl::Status SafetensorsFile::ReadHeader(const std::string& name) {
  uint64_t header_bytes = 0;
  if (file_.size() < sizeof(header_bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", file_.size(), " bytes are too few for a safetensors header"));
  }
  std::memcpy(&header_bytes, file_.data(), sizeof(header_bytes));
  if (header_bytes > std::min(kHeaderBytesMax, file_.size() - sizeof(header_bytes))) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": header of ", header_bytes,
                                                   " bytes exceeds the file of ", file_.size(),
                                                   " bytes or the limit of ", kHeaderBytesMax));
  }
  const char* text = reinterpret_cast<const char*>(file_.data()) + sizeof(header_bytes);
  if (header_bytes == 0 || text[0] != '{') {
    return absl::InvalidArgumentError(absl::StrCat(name, ": header does not start with '{'"));
  }
  auto header = protocol::ParseJson({text, header_bytes}, {.bytes_max = kHeaderBytesMax,
                                                           .string_bytes_max = 4096,
                                                           .depth_max = 4,
                                                           .values_max = 20'000'000});
  if (!header.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": header: ", header.status().message()));
  }
  const std::byte* data = file_.data() + sizeof(header_bytes) + header_bytes;
  const uint64_t data_bytes = file_.size() - sizeof(header_bytes) - header_bytes;
  std::vector<Range> ranges;
  for (const protocol::JsonMember& member : header->members()) {
    if (member.key == "__metadata__") continue;
    SKEIN_ASSIGN_OR_RETURN(auto entry, ReadEntry(name, member.key, member.value, data_bytes));
    auto [view, range] = entry;
    const std::byte* begin = data + range.begin;
    const size_t bytes = range.end - range.begin;
    if (reinterpret_cast<uintptr_t>(begin) % kernels::DTypeBytes(view.dtype) != 0) {
      // operator new[] of bytes is aligned for every dtype.
      aligned_.push_back(std::make_unique<std::byte[]>(bytes + kAlignment));
      std::memcpy(aligned_.back().get(), begin, bytes);
      begin = aligned_.back().get();
    }
    view.data = const_cast<std::byte*>(begin);
    tensors_.emplace(member.key, view);
    ranges.push_back(std::move(range));
  }
  return CheckContiguous(name, std::move(ranges), data_bytes);
}

absl::Status Checkpoint::AddShard(const std::string& file) {
  SKEIN_ASSIGN_OR_RETURN(auto shard, SafetensorsFile::Open(dir_ / file));
  for (const auto& [name, view] : shard->tensors()) {
    if (!tensors_.emplace(name, StoredTensor{view, file}).second) {
      return Broken((dir_ / file).string(), name, "is in an earlier shard too");
    }
  }
  shards_.push_back(std::move(shard));
  return absl::OkStatus();
}

absl::Status Checkpoint::ReadIndex(const std::filesystem::path& index) {
  std::ifstream stream(index, std::ios::binary);
  std::stringstream text;
  text << stream.rdbuf();
  auto root = protocol::ParseJson(text.str(), {.bytes_max = kHeaderBytesMax,
                                               .string_bytes_max = 4096,
                                               .depth_max = 4,
                                               .values_max = 5'000'000});
  if (!root.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(index.string(), ": ", root.status().message()));
  }
  SKEIN_ASSIGN_OR_RETURN(const JsonValue* map, root->Require("weight_map", index.string()));
  SKEIN_ASSIGN_OR_RETURN(auto entries, map->AsObject(index.string() + ": weight_map"));
  std::map<std::string, std::string> files;
  std::set<std::string> names;
  for (const protocol::JsonMember& entry : entries) {
    SKEIN_ASSIGN_OR_RETURN(std::string_view file, entry.value.AsString(absl::StrCat(
                                                      index.string(), ": ", entry.key)));
    if (file.empty() || file.find('/') != std::string_view::npos) {
      return Broken(index.string(), entry.key,
                    absl::StrCat("its shard \"", ToAbsl(file), "\" must be a plain file name"));
    }
    files.emplace(entry.key, file);
    names.emplace(file);
  }
  for (const std::string& file : names) SKEIN_RETURN_IF_ERROR(AddShard(file));
  for (const auto& [tensor, file] : files) {
    auto found = tensors_.find(tensor);
    if (found == tensors_.end() || found->second.file != file) {
      return Broken(index.string(), tensor, absl::StrCat("is not in its shard ", file));
    }
  }
  for (const auto& [tensor, stored] : tensors_) {
    if (!files.contains(tensor)) {
      return Broken((dir_ / stored.file).string(), tensor, "is not in the index");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::filesystem::path& dir) {
  std::unique_ptr<Checkpoint> out(new Checkpoint(dir));
  const std::filesystem::path index = dir / "model.safetensors.index.json";
  if (std::filesystem::exists(index)) {
    SKEIN_RETURN_IF_ERROR(out->ReadIndex(index));
  } else {
    SKEIN_RETURN_IF_ERROR(out->AddShard("model.safetensors"));
  }
  return out;
}

const StoredTensor* Checkpoint::Find(std::string_view name) const {
  auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::string DescribeTensor(const TensorView& view) {
  std::string text = "?";
  for (const DTypeName& entry : kDTypes) {
    if (entry.dtype == view.dtype) text = std::string(entry.name);
  }
  for (int i = 0; i < view.rank; ++i) absl::StrAppend(&text, i == 0 ? " [" : ", ", view.dim(i));
  return text + "]";
}

}  // namespace skein::worker
