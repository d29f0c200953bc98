// Transcripts of answers with tool calls: written by hand and made by a generator.
// Owns: nothing; the same list each time.
// Must never: depend on the code under test.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "coordinator/text/tool_call_parser.h"

namespace skein::tests {

// get_weather (location required), calculator (expression required), note (nothing required).
std::vector<coordinator::DeclaredTool> TranscriptTools();

// In the text the mark stands for the DSML token.
struct Transcript {
  std::string name;
  std::string text;
};

// The mark in transcripts.
inline constexpr std::string_view kTranscriptMark = "｜DSML｜";

// At least 200, names unique.
std::vector<Transcript> Transcripts();

}  // namespace skein::tests
