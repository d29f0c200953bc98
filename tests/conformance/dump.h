// Stores what every operator case and every layer computes, to compare machines and backends. The
// file is safetensors: one F64 tensor per output, named operator.<case>.<output> (its bytes) or
// <dir>.<sequence>.<what>[.<layer>]. Thread: main.
#pragma once

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/device.h"

namespace skein::tests {

struct DumpOptions {
  std::string backend;
  std::string model;                        // empty: each directory is its own checkpoint
  std::vector<std::string> dirs;            // directories with goldens.json
  std::shared_ptr<kernels::Device> device;  // what the backend runs on
};

// Runs every sequence and writes the outputs.
absl::Status WriteDump(const DumpOptions& options, const std::string& file);

// Runs again and prints, per output, whether the bits are equal and the largest difference over the
// row maximum. FailedPrecondition if anything is missing or differs in a bit.
absl::Status CompareDump(const DumpOptions& options, const std::string& file, std::ostream& out);

}  // namespace skein::tests
