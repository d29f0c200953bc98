// `skein doctor`: every probe of a start with state, reason and fix, and whether a checkpoint's
// files agree with each other. Starts nothing. Main thread of skein. Must never change the host.
#pragma once

#include <span>
#include <string>

#include "worker/node/commands/serve.h"
#include "worker/node/doctor.h"

namespace skein::worker {

// Whether config.json, tokenizer.json, the encoding resource and the weight files of the checkpoint
// are there and of one model.
Feature ExamineModel(const std::string& directory);

// The probes as one JSON object.
std::string FeatureJson(const std::vector<Feature>& features);

// The whole command; the result is the exit code of the program: 78 when `skein serve` with the
// same flags would refuse.
int RunDoctor(std::span<const std::string> arguments, const ProgramPaths& paths);

}  // namespace skein::worker
