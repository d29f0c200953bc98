// What the commands that speak to a running cluster share: flags, the call of an operator route,
// and the members of its answer. Main thread of skein. Must never reach a coordinator in another
// way than its operator listener.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "protocol/http/http_client.h"
#include "protocol/json/json.h"

namespace skein::worker {

// The flags that each of them has, as --help lists them.
extern const char kCommonHelp[];

// The flags of a command.
struct Common {
  std::string admin, run_directory, token_file;
  bool json = false;
  bool help = false;
  bool wait = false;
  bool undo = false;
  bool supervisor = false;
  bool slow = false;
  absl::Duration timeout = absl::Seconds(600);
  std::string build;
  std::string interval, count;
  std::vector<std::string> words;  // what is no flag
};

// Flags of one command beside the common ones.
struct Switch {
  std::string_view name;
  bool Common::*member;
};
struct Value {
  std::string_view name;
  std::string Common::*member;
};

// InvalidArgument: an unknown flag, one without its value, or more words than `words_max`.
absl::StatusOr<Common> ParseCommon(std::string_view command, std::span<const std::string> arguments,
                                   std::initializer_list<Switch> switches,
                                   std::initializer_list<Value> values, size_t words_max);

// The call of an operator route; its target and body are to be filled in.
absl::StatusOr<protocol::HttpCall> OpenCall(const Common& common);

// The body of an answer with status 200. Unavailable: no coordinator answers. FailedPrecondition:
// what the listener says against it.
absl::StatusOr<std::string> AskText(protocol::HttpCall call, std::string_view method,
                                    std::string_view target, std::string body = {});
// The same of a route that answers JSON.
absl::StatusOr<protocol::JsonValue> Ask(const protocol::HttpCall& call, std::string_view method,
                                        std::string_view target, std::string body = {});

// Says why on standard error; the exit code: 64 wrong flags, 75 nobody answers, else 1.
int FailCommand(const absl::Status& status);

// Members of an answer; empty, 0 or false when it has none of that name. Text is made harmless for
// a terminal: parts of it are what workers say of themselves.
std::string TextAt(const protocol::JsonValue& object, std::string_view key);
int64_t NumberAt(const protocol::JsonValue& object, std::string_view key);
double SecondsAt(const protocol::JsonValue& object, std::string_view key);
bool FlagAt(const protocol::JsonValue& object, std::string_view key);
std::span<const protocol::JsonValue> ListAt(const protocol::JsonValue& object,
                                            std::string_view key);

}  // namespace skein::worker
