// A library that is opened at run time, so that a host without it runs everything that does not
// need it: NVML, NCCL, cuBLAS.
// Any thread; stays open until destroyed. Must never be a way to choose another implementation.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

namespace skein::protocol {

class DynamicLibrary {
 public:
  // NotFound says which library and why.
  static absl::StatusOr<DynamicLibrary> Open(std::string_view name);
  ~DynamicLibrary();
  DynamicLibrary(DynamicLibrary&& other) noexcept
      : name_(std::move(other.name_)), handle_(std::exchange(other.handle_, nullptr)) {}
  DynamicLibrary& operator=(DynamicLibrary&&) = delete;

  // The function of that name as `Function*`; null when this version of the library lacks it.
  template <typename Function>
  Function* Find(std::string_view symbol) const {
    return reinterpret_cast<Function*>(FindAddress(symbol));
  }
  const std::string& name() const { return name_; }

 private:
  DynamicLibrary(std::string name, void* handle) : name_(std::move(name)), handle_(handle) {}
  void* FindAddress(std::string_view symbol) const;

  std::string name_;
  void* handle_ = nullptr;
};

}  // namespace skein::protocol
