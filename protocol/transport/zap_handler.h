// Answers the question of libzmq whether the key of a peer may come in: the allow-list decides, and
// whatever is not on it stays out. Counts failed handshakes, whatever failed.
// Owns two sockets; one thread, the one that polls. Must never let in what it cannot judge.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace skein::protocol {

class ZapHandler {
 public:
  // Serves the context's question channel; call before any socket is bound. Internal when another
  // handler is there.
  static absl::StatusOr<std::unique_ptr<ZapHandler>> Create(void* context,
                                                            std::string allowed_keys_file);
  ~ZapHandler();
  ZapHandler(const ZapHandler&) = delete;
  ZapHandler& operator=(const ZapHandler&) = delete;

  // Counts the failed handshakes of a listening socket from now on.
  absl::Status Watch(void* listening);

  void* questions() const { return questions_; }  // to poll
  void* events() const { return events_; }        // to poll; null before Watch
  // Answers what waits.
  void Answer();
  // Peers that were turned away since the last call.
  uint64_t TakeDenied();

 private:
  ZapHandler(void* context, void* questions, std::string allowed_keys_file)
      : context_(context), questions_(questions), file_(std::move(allowed_keys_file)) {}
  bool Allows(const std::string& key);
  void Reload();

  void* const context_;
  void* const questions_;
  void* events_ = nullptr;
  const std::string file_;
  std::vector<std::string> allowed_;
  // Change time in nanoseconds and number of the file that was read; both, since time is coarse.
  std::pair<int64_t, uint64_t> loaded_;
};

}  // namespace skein::protocol
