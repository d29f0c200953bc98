// Messages to the service manager, as sd_notify(3) defines them, without its library and without
// the environment: the address is configuration.
// Supervisor's thread. Must never wait: a manager that does not read loses the message.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/node/descriptor.h"

namespace skein::worker {

class NotifySocket {
 public:
  // "/path" or "@name" of the abstract namespace; empty: none, and Send does nothing.
  // InvalidArgument for anything else.
  static absl::StatusOr<NotifySocket> Open(std::string_view address);

  bool is_open() const { return socket_.valid(); }
  // Lines NAME=value, such as "READY=1\nSTATUS=serving". False when it could not be sent.
  bool Send(std::string_view text) const;

 private:
  Descriptor socket_;
  std::string address_;
};

}  // namespace skein::worker
