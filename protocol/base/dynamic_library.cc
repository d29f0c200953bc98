// dlopen and dlsym.
// Any thread. Must never keep the text of dlerror beyond the call.
#include "protocol/base/dynamic_library.h"

#include <dlfcn.h>

#include "absl/status/status.h"
#include "protocol/base/strings.h"

namespace skein::protocol {

absl::StatusOr<DynamicLibrary> DynamicLibrary::Open(std::string_view name) {
  std::string file(name);
  void* handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = ::dlerror();
    return absl::NotFoundError(
        Concat(file, " cannot be opened: ", reason != nullptr ? reason : "no reason given"));
  }
  return DynamicLibrary(std::move(file), handle);
}

DynamicLibrary::~DynamicLibrary() {
  if (handle_ != nullptr) ::dlclose(handle_);
}

void* DynamicLibrary::FindAddress(std::string_view symbol) const {
  return ::dlsym(handle_, std::string(symbol).c_str());
}

}  // namespace skein::protocol
