#include "protocol/tensor/nccl_group.h"

#include <climits>
#include <thread>

#include <poll.h>

#include "protocol/base/clock.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

// Values of NCCL's interface.
constexpr int kSuccess = 0;
constexpr int kRemoteError = 6;  // another rank's fault
constexpr int kInProgress = 7;
constexpr int kBytes = 1;       // the type ncclUint8
constexpr int kOldest = 21800;  // with the configuration that is used here
constexpr int kLooks = 1000;    // before a pause of a millisecond
constexpr std::string_view kRemedy = "install libnccl2 2.18 or later";

}  // namespace

// Of version 2.18; later ones take it by its size and version.
struct NcclLibrary::Configuration {
  size_t size = sizeof(Configuration);
  unsigned magic = 0xcafebeef;
  unsigned version = kOldest;
  int blocking = 0;
  int cga_cluster_size = INT_MIN;  // INT_MIN and null: as NCCL likes
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

absl::StatusOr<std::shared_ptr<const NcclLibrary>> NcclLibrary::Open(std::string_view name) {
  absl::StatusOr<DynamicLibrary> opened = DynamicLibrary::Open(name);
  if (!opened.ok()) {
    return absl::NotFoundError(Concat(StatusText(opened.status()), "; ", kRemedy));
  }
  std::shared_ptr<NcclLibrary> library(new NcclLibrary(*std::move(opened)));
  SKEIN_RETURN_IF_ERROR(library->Load());
  return library;
}

absl::Status NcclLibrary::Load() {
  std::string missing;
  const auto find = [&](auto*& function, std::string_view symbol) {
    function = library_.Find<std::remove_reference_t<decltype(*function)>>(symbol);
    if (function == nullptr && missing.empty()) missing = symbol;
  };
  find(get_version_, "ncclGetVersion");
  find(get_unique_id_, "ncclGetUniqueId");
  find(init_, "ncclCommInitRankConfig");
  find(get_async_error_, "ncclCommGetAsyncError");
  find(abort_, "ncclCommAbort");
  find(all_gather_, "ncclAllGather");
  find(send_, "ncclSend");
  find(receive_, "ncclRecv");
  find(begin_, "ncclGroupStart");
  find(end_, "ncclGroupEnd");
  find(error_text_, "ncclGetErrorString");
  if (!missing.empty()) {
    return absl::FailedPreconditionError(
        Concat(library_.name(), " has no ", missing, "; ", kRemedy));
  }
  SKEIN_RETURN_IF_ERROR(StatusOf(get_version_(&version_), "its version"));
  if (version_ >= kOldest) return absl::OkStatus();
  return absl::FailedPreconditionError(
      Concat(library_.name(), " is version ", version_, "; ", kRemedy));
}

absl::Status NcclLibrary::StatusOf(int result, std::string_view what) const {
  if (result == kSuccess) return absl::OkStatus();
  const std::string text = Concat("NCCL: ", what, ": ", std::string_view(error_text_(result)));
  return result == kRemoteError ? absl::AbortedError(text) : absl::InternalError(text);
}

absl::StatusOr<NcclId> NcclLibrary::MakeId() const {
  NcclId id;
  SKEIN_RETURN_IF_ERROR(StatusOf(get_unique_id_(&id), "making the name of a communicator"));
  return id;
}

// Waits until NCCL has done on the host what it began.
absl::Status NcclGroup::Settle(int result, std::string_view what, absl::Time deadline) const {
  for (int looks = 0; result == kInProgress; ++looks) {
    if (live_) SKEIN_RETURN_IF_ERROR(live_());
    if (MonotonicNow() > deadline) {
      return absl::DeadlineExceededError(
          Concat(label_, ": ", what, ": the other ranks did not come"));
    }
    if (looks < kLooks) {
      std::this_thread::yield();
    } else {
      ::poll(nullptr, 0, 1);
    }
    const int asked = library_->get_async_error_(communicator_, &result);
    if (asked != kSuccess) result = asked;
  }
  return Told(library_->StatusOf(result, Concat(label_, ": ", what)));
}

absl::Status NcclGroup::Told(absl::Status status) const {
  if (status.ok() || !live_) return status;
  absl::Status over = live_();
  return over.ok() ? status : over;
}

absl::Status NcclGroup::Join(const NcclId& id, absl::Time deadline, Live live) {
  live_ = std::move(live);
  NcclLibrary::Configuration configuration;
  const int result = library_->init_(&communicator_, size_, id, rank_, &configuration);
  return Settle(result, "meeting", deadline);
}

absl::Status NcclGroup::AllGather(std::span<const Part> parts, const Queue& queue) {
  if (communicator_ == nullptr) return absl::AbortedError(Concat(label_, ": it was aborted"));
  int result = library_->begin_();
  if (result != kSuccess) return Told(library_->StatusOf(result, label_));
  for (const Part& part : parts) {
    if (result != kSuccess) break;
    result =
        library_->all_gather_(part.mine, part.all, part.each, kBytes, communicator_, queue.stream);
    if (result == kInProgress) result = kSuccess;
  }
  const int ended = library_->end_();
  return Settle(result == kSuccess ? ended : result, "a gather", queue.deadline);
}

absl::Status NcclGroup::AllToAll(const void* send, void* receive, size_t each, const Queue& queue) {
  if (communicator_ == nullptr) return absl::AbortedError(Concat(label_, ": it was aborted"));
  int result = library_->begin_();
  if (result != kSuccess) return Told(library_->StatusOf(result, label_));
  for (int rank = 0; rank < size_ && result == kSuccess; ++rank) {
    const size_t at = static_cast<size_t>(rank) * each;
    result = library_->send_(static_cast<const std::byte*>(send) + at, each, kBytes, rank,
                             communicator_, queue.stream);
    if (result != kSuccess && result != kInProgress) break;
    result = library_->receive_(static_cast<std::byte*>(receive) + at, each, kBytes, rank,
                                communicator_, queue.stream);
    if (result == kInProgress) result = kSuccess;
  }
  const int ended = library_->end_();
  return Settle(result == kSuccess ? ended : result, "an exchange", queue.deadline);
}

absl::Status NcclGroup::Check() const {
  if (communicator_ == nullptr) return absl::AbortedError(Concat(label_, ": it was aborted"));
  int result = kSuccess;
  SKEIN_RETURN_IF_ERROR(Told(
      library_->StatusOf(library_->get_async_error_(communicator_, &result), "asking for errors")));
  return result == kInProgress ? absl::OkStatus() : Told(library_->StatusOf(result, label_));
}

void NcclGroup::Abort() {
  if (communicator_ == nullptr) return;
  aborting_ =
      std::thread([library = library_, communicator = std::exchange(communicator_, nullptr)] {
        library->abort_(communicator);
      });
}

NcclGroup::~NcclGroup() {
  Abort();
  if (aborting_.joinable()) aborting_.join();
}

}  // namespace skein::protocol
