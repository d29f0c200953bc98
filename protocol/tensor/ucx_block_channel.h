// Block transfers over UCX: each fetch is a connection of its own to the lender's listener, pieces
// are active messages, and UCX chooses the transport (RDMA where there is some, else TCP). Memory
// of this process is read and written between Lend or Fetch and the end of the transfer, which is
// reported when the endpoint is closed and no request on it is open.
// Unauthenticated and unencrypted, for private networks: the name of a transfer is its only key.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "protocol/tensor/block_channel.h"
#include "protocol/tensor/ucx_port.h"

namespace skein::protocol {

class UcxBlockChannel final : public BlockChannel {
 public:
  // NotFound: no UCX here. InvalidArgument: the address is none. Unavailable: UCX refuses.
  static absl::StatusOr<std::unique_ptr<UcxBlockChannel>> Create(const UcxPortOptions& options);
  // Closes every endpoint before it returns.
  ~UcxBlockChannel() override;
  UcxBlockChannel(const UcxBlockChannel&) = delete;
  UcxBlockChannel& operator=(const UcxBlockChannel&) = delete;

  const std::string& address() const override;
  absl::Status Lend(TransferId transfer, std::vector<std::span<const std::byte>> pieces,
                    absl::Time deadline) override;
  absl::Status Fetch(TransferId transfer, const std::string& address,
                     std::vector<std::span<std::byte>> pieces, absl::Time deadline) override;
  void Cancel(TransferId transfer) override;
  absl::StatusOr<std::vector<ChannelEvent>> Poll(absl::Time until) override;
  void Wake() override;

 private:
  struct Core;
  explicit UcxBlockChannel(std::unique_ptr<Core> core);
  const std::unique_ptr<Core> core_;
};

}  // namespace skein::protocol
