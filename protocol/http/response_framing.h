// Bytes of answers: status line, headers, chunks.
// Thread: functions are pure.
// Must never: frame a body in two ways.
#pragma once

#include <string>
#include <string_view>

#include "protocol/http/http_message.h"

namespace skein::protocol {

enum class BodyFraming { kLength, kChunked };
enum class KeepAlive { kYes, kNo };

// The head of `response` with its empty line. kLength states the size of response.body. `always`:
// headers that every answer has.
std::string MakeResponseHead(const HttpResponse& response, BodyFraming framing,
                             KeepAlive keep_alive, const HttpHeaders& always = {});

// Appends one chunk that holds `data`, which is not empty.
void AppendChunk(std::string_view data, std::string* out);

}  // namespace skein::protocol
