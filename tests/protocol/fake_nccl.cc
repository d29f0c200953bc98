// A library with NCCL's functions for ranks that are threads of one process and memory of the host
// or, built with CUDA, of one GPU: what a group of calls queues is exchanged while its rank asks
// for errors, as NCCL does with connections that it makes on the way, so it cannot be recorded by a
// GPU. Who ends a communicator ends it for all. Only what NcclLibrary looks up.
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#ifdef SKEIN_FAKE_NCCL_CUDA
#include <cuda_runtime_api.h>
#endif

namespace {

#ifdef SKEIN_FAKE_NCCL_CUDA
void Copy(void* to, const void* from, size_t bytes) {
  cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
}
void Finish(void* stream) { cudaStreamSynchronize(static_cast<cudaStream_t>(stream)); }
#else
void Copy(void* to, const void* from, size_t bytes) { std::memmove(to, from, bytes); }
void Finish(void*) {}
#endif

constexpr int kSuccess = 0;
constexpr int kRemoteError = 6;
constexpr int kInProgress = 7;

struct Id {
  std::array<char, 128> bytes;
};

struct Send {
  int to;
  const void* from;
  size_t bytes;
};
struct Receive {
  int from;
  void* to;
  size_t bytes;
};
struct Gather {
  const void* mine;
  void* all;
  size_t each;
};

struct Calls {
  std::vector<Send> sends;
  std::vector<Receive> receives;
  std::vector<Gather> gathers;
};

// What the ranks of a communicator share.
struct Meeting {
  std::string name;
  int size = 0;
  std::atomic<int> joined = 0;
  std::atomic<bool> over = false;
  std::atomic<uint64_t> arrived = 0;
  std::vector<std::shared_ptr<const Calls>> calls;  // by rank, of the exchange that runs
};

// How far a rank is with what it queued: every one has told its calls, every one has taken.
enum class Phase { kIdle, kCame, kTook };

struct Communicator {
  std::shared_ptr<Meeting> meeting;
  int rank = 0;
  uint64_t meetings = 0;
  std::shared_ptr<Calls> calls = std::make_shared<Calls>();
  void* stream = nullptr;
  Phase phase = Phase::kIdle;
  bool good = true;  // what others queued belongs to what this one did

  void Arrive(Phase next) {
    phase = next;
    ++meetings;
    meeting->arrived.fetch_add(1);
  }
  bool AllArrived() const {
    return meeting->arrived.load() >= meetings * static_cast<uint64_t>(meeting->size);
  }
};

std::atomic_flag registry_taken;
std::list<std::shared_ptr<Meeting>> registry;
std::atomic<uint64_t> ids = 0;
thread_local std::vector<Communicator*> queued;

std::shared_ptr<Meeting> MeetingOf(const std::string& name, int size) {
  while (registry_taken.test_and_set()) std::this_thread::yield();
  std::shared_ptr<Meeting> found;
  for (const auto& one : registry) {
    if (one->name == name) found = one;
  }
  if (found == nullptr) {
    found = std::make_shared<Meeting>();
    found->name = name;
    found->size = size;
    found->calls.resize(static_cast<size_t>(size));
    registry.push_back(found);
  }
  registry_taken.clear();
  return found;
}

void Note(Communicator* communicator, void* stream) {
  communicator->stream = stream;
  for (const Communicator* one : queued) {
    if (one == communicator) return;
  }
  queued.push_back(communicator);
}

// Takes what the others have for this rank.
bool Take(Communicator& own) {
  for (const Receive& receive : own.calls->receives) {
    const Calls& theirs = *own.meeting->calls[static_cast<size_t>(receive.from)];
    bool found = false;
    for (const Send& send : theirs.sends) {
      if (send.to != own.rank) continue;
      if (send.bytes != receive.bytes) return false;
      Copy(receive.to, send.from, send.bytes);
      found = true;
    }
    if (!found) return false;
  }
  for (size_t i = 0; i < own.calls->gathers.size(); ++i) {
    const Gather& gather = own.calls->gathers[i];
    for (size_t rank = 0; rank < own.meeting->calls.size(); ++rank) {
      const Calls& theirs = *own.meeting->calls[rank];
      if (theirs.gathers.size() <= i || theirs.gathers[i].each != gather.each) return false;
      auto* to = static_cast<char*>(gather.all) + rank * gather.each;
      Copy(to, theirs.gathers[i].mine, gather.each);
    }
  }
  return true;
}

void Begin(Communicator& own) {
  own.meeting->calls[static_cast<size_t>(own.rank)] = own.calls;
  Finish(own.stream);
  own.Arrive(Phase::kCame);
}

// Goes on as far as the others are there.
int Go(Communicator& own) {
  if (own.phase == Phase::kCame && own.AllArrived()) {
    own.good = Take(own);
    Finish(nullptr);
    own.Arrive(Phase::kTook);
  }
  if (own.phase == Phase::kTook && own.AllArrived()) {
    own.calls = std::make_shared<Calls>();
    own.phase = Phase::kIdle;
    return own.good ? kSuccess : kRemoteError;
  }
  if (own.meeting->over.load()) return kRemoteError;
  return own.phase == Phase::kIdle && own.good ? kSuccess
         : own.phase == Phase::kIdle           ? kRemoteError
                                               : kInProgress;
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = SKEIN_FAKE_NCCL_VERSION;
  return kSuccess;
}
int ncclGetUniqueId(Id* id) {
  *id = {};
  const uint64_t number = ++ids;
  std::memcpy(id->bytes.data(), &number, sizeof(number));
  return kSuccess;
}
int ncclCommInitRankConfig(void** communicator, int size, Id id, int rank, void*) {
  auto made = std::make_unique<Communicator>();
  made->meeting = MeetingOf({id.bytes.data(), id.bytes.size()}, size);
  made->rank = rank;
  made->meeting->joined.fetch_add(1);
  *communicator = made.release();
  return kInProgress;
}
int ncclCommGetAsyncError(void* communicator, int* result) {
  auto* own = static_cast<Communicator*>(communicator);
  *result = Go(*own);
  if (*result == kSuccess && own->meeting->joined.load() < own->meeting->size) {
    *result = kInProgress;
  }
  return kSuccess;
}
int ncclCommAbort(void* communicator) {
  auto* own = static_cast<Communicator*>(communicator);
  own->meeting->over.store(true);
  delete own;
  return kSuccess;
}
int ncclAllGather(const void* mine, void* all, size_t each, int, void* communicator, void* stream) {
  auto* own = static_cast<Communicator*>(communicator);
  own->calls->gathers.push_back({mine, all, each});
  Note(own, stream);
  return kSuccess;
}
int ncclSend(const void* from, size_t bytes, int, int to, void* communicator, void* stream) {
  auto* own = static_cast<Communicator*>(communicator);
  own->calls->sends.push_back({to, from, bytes});
  Note(own, stream);
  return kSuccess;
}
int ncclRecv(void* to, size_t bytes, int, int from, void* communicator, void* stream) {
  auto* own = static_cast<Communicator*>(communicator);
  own->calls->receives.push_back({from, to, bytes});
  Note(own, stream);
  return kSuccess;
}
int ncclGroupStart() { return kSuccess; }
int ncclGroupEnd() {
  int result = kSuccess;
  for (Communicator* own : queued) {
    Begin(*own);
    if (const int one = Go(*own); one != kSuccess) result = one;
  }
  queued.clear();
  return result;
}
const char* ncclGetErrorString(int result) {
  return result == kRemoteError ? "remote process exited or there was a network error" : "error";
}

}  // extern "C"
