// Chat and completion requests to a live server: their bodies, their answers in a form that can be
// compared bit for bit, and streams on threads of their own. Owns: the thread and the answer of
// each stream. Thread: the test's; a stream's events arrive on its own thread. Must never: repeat a
// request.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "protocol/http/http_client.h"

namespace skein::tests {

struct ChatCall {
  std::string content;
  double temperature = 0;
  std::optional<int64_t> seed = std::nullopt;
  int max_tokens = 0;  // 0: to the end of the answer; else exactly so many
  bool logprobs = true;
  std::vector<std::string> stop = {};
  std::string speculation = {};          // JSON of the field; empty: absent
  std::string cache_salt = {};           // empty: absent
  std::vector<int32_t> prompt_ids = {};  // not empty: a completion of these instead of a chat
  std::string key = {};                  // of the API; empty: none is sent
};

// One answer. Entries are the JSON text of a token with its log-probability and alternatives:
// numbers are written in the shortest form that reads back the same, so equal text is equal bits.
struct ChatAnswer {
  int status = 0;
  std::string text;
  std::vector<std::string> entries;
  std::string finish_reason;
  int64_t prompt_tokens = 0;  // not of a stream, as what follows
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t steps = 0;
  int64_t draft_tokens = 0;
  int64_t accepted_draft_tokens = 0;

  // Of a stream.
  bool is_done = false;  // [DONE] came
  std::string error;     // text of the error event
  std::string cut;       // why the body is not whole

  // The body of a refusal and its Retry-After.
  std::string refusal;
  std::string retry_after;
};

// The same tokens, log-probabilities and end.
inline bool SameAnswer(const ChatAnswer& a, const ChatAnswer& b) {
  return a.status == b.status && a.text == b.text && a.entries == b.entries &&
         a.finish_reason == b.finish_reason;
}
inline bool operator==(const ChatAnswer& a, const ChatAnswer& b) { return SameAnswer(a, b); }
void PrintTo(const ChatAnswer& answer, std::ostream* out);

enum class Streaming { kNo, kYes };
std::string ChatBody(const ChatCall& call, Streaming streaming);

// Sends the call, not streamed, and waits for its answer.
ChatAnswer Ask(uint16_t port, const ChatCall& call);

// A stream being read on a thread of its own.
class ChatStream {
 public:
  ChatStream(uint16_t port, const ChatCall& call);
  // Leaves the stream when it has not ended.
  ~ChatStream();
  ChatStream(const ChatStream&) = delete;
  ChatStream& operator=(const ChatStream&) = delete;

  // Waits until the stream was accepted: its head and first event came. False when it was not.
  bool WaitAccepted();
  // Waits for so many tokens; false when the stream ended before.
  bool WaitTokens(size_t count);
  size_t num_tokens() const;
  bool ended() const;
  // Closes the connection at the next event.
  void Leave();
  // Waits for the end.
  ChatAnswer Join();

 private:
  void Run(protocol::HttpCall call);
  bool OnEvent(std::string_view event);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  ChatAnswer answer_;
  bool is_accepted_ = false;
  bool has_ended_ = false;
  bool leaves_ = false;
  std::thread thread_;
};

// So many streams of the same call.
std::vector<std::unique_ptr<ChatStream>> OpenStreams(uint16_t port, const ChatCall& call,
                                                     size_t count);

}  // namespace skein::tests
