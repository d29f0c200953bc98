// A UCX worker with a listener, and the care of its endpoints: who connects, what is on its way and
// when an end is over. Transfers of blocks and groups across hosts are made of it. One thread makes
// its calls; Wake alone comes from any. Must never let go of memory that UCX may still touch: what
// a request uses stays until it is done, and a link is over when its endpoint is closed and no
// request is open on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <netinet/in.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "protocol/tensor/ucx_library.h"

namespace skein::protocol {

enum class UcxTransports : uint8_t { kAny, kTcp };

struct UcxPortOptions {
  std::string address = "127.0.0.1";  // IPv4 of this host that other workers reach
  UcxTransports transports = UcxTransports::kAny;
  std::string library = std::string(UcxLibrary::kName);
  // What is said where there is no UCX.
  std::string remedy =
      "cache blocks move over UCX: install libucx0, or leave transport.block_address empty";
};

// A request of UCX, and what must stay until it is done.
struct UcxRequest {
  void* request = nullptr;
  std::vector<std::byte> header = {};
  std::vector<std::byte> text = {};
  std::optional<size_t> piece = std::nullopt;  // that it receives
  uint32_t crc = 0;                            // that the piece must have
};

// An endpoint. Its address does not change while it is used.
struct UcxLink {
  ucp_ep_h endpoint = nullptr;  // null: closed, or being closed
  std::vector<UcxRequest> open = {};
  void* closing = nullptr;
  absl::Status broken = {};         // by UCX's word
  const UcxLibrary* ucx = nullptr;  // of the port
};

// A message of another port. What the pointers show lasts for the call.
struct UcxMessage {
  std::span<const std::byte> header;
  void* data = nullptr;  // a name for Receive if it is a rendezvous
  size_t bytes = 0;
  bool rendezvous = false;
  ucp_ep_h from = nullptr;  // null: not known
};

// A message to another port: behind the header comes `payload`, which stays until the request is
// done, or, if it is not empty, a copy of `text`.
struct UcxWords {
  std::span<const std::byte> header;
  std::span<const std::byte> payload = {};
  std::string_view text = {};
};

class UcxPort {
 public:
  // Called in Progress; must not close a link.
  using OnMessage = std::function<void(const UcxMessage&)>;
  // NotFound: no UCX here. InvalidArgument: the address is none. Unavailable: UCX refuses, or the
  // device of the address is not up, which another start may find otherwise.
  static absl::StatusOr<std::unique_ptr<UcxPort>> Create(const UcxPortOptions& options,
                                                         OnMessage on_message);
  // All links were given to End before.
  ~UcxPort();
  UcxPort(const UcxPort&) = delete;
  UcxPort& operator=(const UcxPort&) = delete;

  // Where others reach it: "ADDRESS:PORT".
  const std::string& address() const { return address_; }

  absl::Status Connect(UcxLink& link, const sockaddr_in& to);
  // Connections of others since the last call, each to be accepted or refused.
  std::vector<ucp_conn_request_h> TakeArrived();
  bool Accept(ucp_conn_request_h request, UcxLink& link);
  void Refuse(ucp_conn_request_h request);

  absl::Status Send(UcxLink& link, const UcxWords& words);
  // Takes the data of a rendezvous. True: it is there; false: Reap will tell.
  absl::StatusOr<bool> Receive(UcxLink& link, const UcxMessage& message, std::span<std::byte> into,
                               const UcxRequest& piece);
  // A request that is done when everything sent before has left.
  void Flush(UcxLink& link);
  // Gives out the requests that are done and were right; what was not makes the link broken.
  void Reap(UcxLink& link, const std::function<void(const UcxRequest&)>& on_done);
  // At once, whatever is on its way: a peer that says nothing holds up nobody.
  void Close(UcxLink& link);
  // Nobody can read or write through the link any more.
  bool Closed(UcxLink& link);
  // Takes no more connections, closes the links and waits for that, a second at most.
  void End(std::span<UcxLink* const> links);

  // Carries everything on, without waiting.
  void Progress();
  // Until UCX has something, Wake was called or the time has come.
  absl::Status Sleep(absl::Time until);
  // Wake was called since the last call.
  bool TakeWake();
  void Wake();

 private:
  UcxPort(std::unique_ptr<UcxLibrary> library, OnMessage on_message);
  absl::Status Start(const UcxPortOptions& options);
  absl::Status StartListener(const sockaddr_in& at);
  static void OnConnection(ucp_conn_request_h request, void* port);
  static void OnBroken(void* link, ucp_ep_h endpoint, ucs_status_t status);
  static ucs_status_t OnWords(void* port, const void* header, size_t header_bytes, void* data,
                              size_t bytes, const ucp_am_recv_param_t* param);

  const std::unique_ptr<UcxLibrary> ucx_;
  const OnMessage on_message_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_listener_h listener_ = nullptr;
  int ucx_fd_ = -1;
  int wake_fd_ = -1;
  std::string address_;
  std::vector<ucp_conn_request_h> arrived_;
};

}  // namespace skein::protocol
