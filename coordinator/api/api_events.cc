// Events of the listener and of generations.
// Thread: any.
// Must never: hold text of a client but the names of unknown fields.
#include "coordinator/api/api_events.h"

namespace skein::coordinator {

using Kind = ApiEvent::Kind;

std::string_view ShownMethod(std::string_view method) {
  return method == "GET" || method == "POST" ? method : std::string_view("other");
}

ApiEvent EventOf(const protocol::HttpEvent& event) {
  const Kind kind = event.kind == "malformed" ? Kind::kMalformed
                    : event.kind == "timeout" ? Kind::kTimeout
                                              : Kind::kLimit;
  return {kind, {}, {}, event.name};
}

ApiEvent EventOf(GenerationEvent event, size_t count) {
  ApiEvent out;
  out.value = static_cast<double>(count);
  switch (event) {
    case GenerationEvent::kSlow:
      out.kind = Kind::kSlowStream;
      break;
    case GenerationEvent::kPrompt:
      out.kind = Kind::kPromptStream;
      break;
    case GenerationEvent::kLateTokens:
      out.kind = Kind::kLateTokens;
      break;
  }
  return out;
}

void EmitEnd(const EmitEvent& emit, std::string_view route, const GenerationEnd& end,
             bool streamed) {
  emit({Kind::kGeneration, route, "POST", end.reason, end.status});
  for (size_t result = 0; result < end.calls.size(); ++result) {
    for (uint32_t i = 0; i < end.calls[result]; ++i) {
      emit({Kind::kToolParse, route, "POST", kParseResultNames[result]});
    }
  }
  for (const ParseResult reasoning : end.reasoning) {
    const auto result = static_cast<size_t>(reasoning);
    emit({Kind::kReasoningParse, route, "POST", kParseResultNames[result]});
  }
  for (const ReasoningWork& work : end.reasoned) {
    const auto tokens = static_cast<double>(work.tokens);
    emit({Kind::kReasoning, route, "POST", {}, 0, tokens, work.engine});
  }
  if (streamed) emit({Kind::kStreamClosed, route, "POST"});
  emit({Kind::kResponse, route, "POST", {}, end.status});
}

}  // namespace skein::coordinator
