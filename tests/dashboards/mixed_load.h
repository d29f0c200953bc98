// Clients of every kind at once, who keep account of what they asked and got: the figures that the
// server's metrics must agree with.
// Owns: the clients' threads. Thread: the test's; counts are read after Stop.
// Must never: repeat a request, or leave an answer uncounted.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace skein::tests {

struct LoadCounts {
  std::map<std::pair<std::string, int>, int64_t> answers;  // by route and status
  std::map<std::string, int64_t> finished;                 // by finish reason; of chats and texts
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t generated_tokens = 0;
  int64_t draft_tokens = 0;
  int64_t accepted_drafts = 0;
  int64_t tool_calls = 0;           // answers that ended with one
  int64_t left = 0;                 // streams whose client went away
  std::vector<std::string> broken;  // answers that nobody should get
};

class MixedLoad {
 public:
  MixedLoad(uint16_t port, std::string key) : port_(port), key_(std::move(key)) {}
  ~MixedLoad() { Stop(); }
  MixedLoad(const MixedLoad&) = delete;
  MixedLoad& operator=(const MixedLoad&) = delete;

  // kCounted: every token and draft that a request commits is in its usage. kAny: calls of tools,
  // too, and drafts in texts that end by themselves, of which some stand behind the end.
  enum class Ends { kCounted, kAny };
  // So many clients, each with one request at a time, of kinds that its own random numbers choose.
  void Start(int clients, Ends ends);
  // Lets every request end, and the clients with them.
  void Stop();
  // So many requests at once that grow until the cache does not hold them together.
  void Crowd(int count);
  // Opens so many streams and leaves each after its first tokens.
  void LeaveStreams(int count);

  const LoadCounts& counts() const { return counts_; }

 private:
  struct Request {
    std::string route, body, key;
    bool streamed = false;
  };

  void Run(uint64_t seed);
  Request Make(uint64_t random) const;
  Request CallOfATool(uint64_t number) const;
  int Send(const Request& request);
  int LeaveStream();
  void Count(const Request& request, int status, const std::string& usage,
             const std::string& finish, const std::string& whole);

  const uint16_t port_;
  const std::string key_;
  std::atomic<bool> stopping_ = false;
  Ends ends_ = Ends::kCounted;
  std::vector<std::thread> clients_;
  std::mutex mutex_;  // of the counts
  LoadCounts counts_;
};

}  // namespace skein::tests
