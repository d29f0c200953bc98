#include "protocol/tensor/ucx_library.h"

#include <array>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <vector>

#include <signal.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

// Keeps the handlers of fatal signals as they were.
class SignalKeeper {
 public:
  SignalKeeper() {
    for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], nullptr, &before_[i]);
  }
  ~SignalKeeper() {
    for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
  }
  SignalKeeper(const SignalKeeper&) = delete;
  SignalKeeper& operator=(const SignalKeeper&) = delete;

 private:
  static constexpr std::array kSignals = {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGABRT};
  std::array<struct sigaction, kSignals.size()> before_{};
};

// UCX reads variables of the environment when it is loaded and with every configuration; here the
// configuration of the program alone counts. One there is no other way to say: that it leaves the
// process's memory functions alone. Otherwise it writes jumps into the C library, and a thread that
// ends comes by UCX's locks when its stack is given back.
void SetVariables() {
  std::vector<std::string> names;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (text.starts_with("UCX_")) names.emplace_back(text.substr(0, text.find('=')));
  }
  for (const std::string& name : names) ::unsetenv(name.c_str());
  ::setenv("UCX_MEM_EVENTS", "n", 1);
}

}  // namespace

absl::StatusOr<std::unique_ptr<UcxLibrary>> UcxLibrary::Open(std::string_view name,
                                                               std::string_view remedy) {
  const SignalKeeper keeper;
  SetVariables();
  absl::StatusOr<DynamicLibrary> opened = DynamicLibrary::Open(name);
  if (!opened.ok()) {
    return absl::NotFoundError(Concat(StatusText(opened.status()), "; ", remedy));
  }
  std::unique_ptr<UcxLibrary> library(new UcxLibrary(*std::move(opened)));
  std::string missing;
#define SKEIN_UCX_FIND(function)                                                                \
  library->function = library->library_.Find<std::remove_pointer_t<decltype(&::function)>>(     \
      #function);                                                                               \
  if (library->function == nullptr) missing = missing.empty() ? #function : missing;
  SKEIN_UCX_FUNCTIONS(SKEIN_UCX_FIND)
#undef SKEIN_UCX_FIND
  if (missing.empty()) return library;
  return absl::NotFoundError(Concat(name, " has no ", missing, "; install UCX 1.13 or newer"));
}

absl::StatusOr<ucp_context_h> UcxLibrary::MakeContext(bool any) const {
  ucp_config_t* config = nullptr;
  SKEIN_RETURN_IF_ERROR(StatusOf(ucp_config_read(nullptr, nullptr, &config), "reading defaults"));
  const std::pair<const char*, const char*> settings[] = {
      {"TLS", any ? "^posix,sysv,cma,self" : "tcp"}, {"KEEPALIVE_INTERVAL", "1s"}};
  absl::Status status;
  for (const auto& [name, value] : settings) {
    if (status.ok()) status = StatusOf(ucp_config_modify(config, name, value), name);
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucp_context_h context = nullptr;
  if (status.ok()) {
    status = StatusOf(ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context),
                      "start");
  }
  ucp_config_release(config);
  if (!status.ok()) return status;
  return context;
}

absl::Status UcxLibrary::StatusOf(ucs_status_t status, std::string_view tried) const {
  if (status == UCS_OK) return absl::OkStatus();
  return absl::UnavailableError(Concat(tried, ": UCX says: ", ucs_status_string(status)));
}

}  // namespace skein::protocol
