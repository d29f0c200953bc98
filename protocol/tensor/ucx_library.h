// The functions of UCX that a port uses, from the library as it is installed: opened at run time,
// so that a host without it runs everything that needs no other. Immutable; any thread.
// Must never leave UCX's handlers of fatal signals in place: a crash ends this process as before.
// Opening it takes variables that begin with UCX_ out of the environment of the process, which no
// other thread may read meanwhile: they are no configuration of ours.
// It sets UCX_MEM_EVENTS=n, so that UCX leaves the memory functions of the process alone.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include <ucp/api/ucp.h>

#include "absl/status/statusor.h"
#include "protocol/base/dynamic_library.h"

namespace skein::protocol {

#define SKEIN_UCX_FUNCTIONS(F)                                                                   \
  F(ucp_config_read) F(ucp_config_modify) F(ucp_config_release) F(ucp_init_version)              \
  F(ucp_cleanup) F(ucp_worker_create) F(ucp_worker_destroy) F(ucp_worker_get_efd)                \
  F(ucp_worker_arm) F(ucp_worker_progress) F(ucp_worker_set_am_recv_handler)                     \
  F(ucp_listener_create) F(ucp_listener_query) F(ucp_listener_reject) F(ucp_listener_destroy)    \
  F(ucp_ep_create) F(ucp_ep_close_nbx) F(ucp_ep_flush_nbx) F(ucp_am_send_nbx)                    \
  F(ucp_am_recv_data_nbx) F(ucp_request_check_status) F(ucp_request_free) F(ucs_status_string)

struct UcxLibrary {
  static constexpr std::string_view kName = "libucp.so.0";

  // NotFound says what is missing, and `remedy` what to do about it.
  static absl::StatusOr<std::unique_ptr<UcxLibrary>> Open(std::string_view name,
                                                          std::string_view remedy);

#define SKEIN_UCX_MEMBER(function) decltype(&::function) function = nullptr;
  SKEIN_UCX_FUNCTIONS(SKEIN_UCX_MEMBER)
#undef SKEIN_UCX_MEMBER

  // A context for messages between workers, over TCP or over `any` transport that needs no process
  // number of the other side, which is another one in its namespace. Its owner cleans it up.
  absl::StatusOr<ucp_context_h> MakeContext(bool any) const;
  // OK, or Unavailable with what was tried and what UCX says.
  absl::Status StatusOf(ucs_status_t status, std::string_view tried) const;

 private:
  explicit UcxLibrary(DynamicLibrary library) : library_(std::move(library)) {}

  DynamicLibrary library_;
};

}  // namespace skein::protocol
