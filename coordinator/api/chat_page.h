// The page at /: what runs here, and a chat with it. Four static files; the browser loads nothing
// from elsewhere.
// Owns: nothing.
// Thread: any.
// Must never: name another origin, or show the text of an answer as markup.
#pragma once

#include <optional>
#include <string_view>

#include "protocol/http/http_message.h"

namespace skein::coordinator {

// The file of a path with the headers that keep the page to itself; nothing for another path.
// `root_path`: under which a proxy shows it, which browsers may open without a / at its end; empty:
// none.
std::optional<protocol::HttpResponse> ChatPageFile(std::string_view path,
                                                   std::string_view root_path);

}  // namespace skein::coordinator
