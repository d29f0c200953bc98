// The live view of the page at /: a script that reads /metrics once a second while the view is open
// and draws groups, queues, throughput, acceptance, cache use and errors of the last two minutes.
// Thread: any.
#pragma once

#include <string_view>

namespace skein::coordinator {

// live.js; it fills the elements `plots` and `state` of the page.
extern const std::string_view kLiveScript;

}  // namespace skein::coordinator
