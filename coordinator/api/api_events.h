// What the API counts: events, and what a generation has to tell of itself as events.
// Owns: nothing; plain values whose texts are literals or outlive the call.
// Thread: any.
// Must never: hold text of a client but the names of unknown fields.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "coordinator/api/generation.h"
#include "protocol/http/http_server.h"

namespace skein::coordinator {

// Something to count. `kind` decides which other members are set.
struct ApiEvent {
  enum class Kind {
    kResponse,        // route, method, status: an answer is decided (for a stream: it ended)
    kGeneration,      // route, name = "stop", "length", "abort", "error" or "timeout"
    kStreamOpened,    // route
    kStreamClosed,    // route
    kUnknownField,    // a field of that name was ignored
    kRefusal,         // route, status, name = reason or code of the error
    kMalformed,       // name = framing rule
    kTimeout,         // name = phase
    kLimit,           // name = limit
    kToolParse,       // route, name = "ok", "recovered", "malformed" or "unclosed"
    kReasoningParse,  // the same of reasoning
    kAuthFailure,     // route, status: a wrong key, or an address that sent too many
    kRequest,         // route: a request is being answered until its kResponse
    kReasoning,       // engine, value: tokens of a choice that began in reasoning
    kGrammar,         // name = "ok" or "too_complex", value: seconds that it took
    kSlowStream,      // its client does not keep up
    kPromptStream,    // it does again, or the stream ended
    kLateTokens,      // value: tokens that came after their client had left
  };
  Kind kind = Kind::kResponse;
  std::string_view route = {};   // "/v1/chat/completions", ...; "other" for unknown paths
  std::string_view method = {};  // "GET", "POST" or "other"
  std::string_view name = {};
  int status = 0;
  double value = 0;
  uint32_t engine = 0;
};

using EmitEvent = std::function<void(const ApiEvent&)>;

// A method as metrics have it.
std::string_view ShownMethod(std::string_view method);

// What the listener itself counts.
ApiEvent EventOf(const protocol::HttpEvent& event);
// What happens to a generation on its way.
ApiEvent EventOf(GenerationEvent event, size_t count);
// Everything that the end of a generation has to tell.
void EmitEnd(const EmitEvent& emit, std::string_view route, const GenerationEnd& end,
             bool streamed);

}  // namespace skein::coordinator
