#include "tests/conformance/dump.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"
#include "tests/conformance/golden_dir.h"
#include "tests/conformance/sequence_run.h"
#include "tests/kernels/buffer.h"
#include "tests/kernels/conformance.h"
#include "worker/model/checkpoint.h"

namespace skein::tests {
namespace {

using Outputs = std::map<std::string, std::vector<double>>;

constexpr std::string_view kOperatorPrefix = "operator.";

void AddTrace(const std::string& prefix, const Trace& trace, Outputs& out) {
  for (size_t l = 0; l < trace.layers.size(); ++l) {
    out[absl::StrCat(prefix, ".stream.", l)] = trace.layers[l].stream;
    out[absl::StrCat(prefix, ".pre.", l)] = trace.layers[l].pre;
  }
  for (const DecisionRows& rows : trace.decisions) {
    out[absl::StrCat(prefix, ".", rows.what, ".", rows.layer)] = {rows.values.begin(),
                                                                  rows.values.end()};
  }
  out[prefix + ".y"] = trace.y;
  out[prefix + ".logits"] = trace.logits;
}

// Memory that host and device reach, handed out in order and taken back as a whole when nothing is
// in use: a call may still run when its workspace is given back.
struct Arena {
  std::byte* data = nullptr;
  size_t used = 0;
  size_t live = 0;
};
constexpr size_t kArenaBytes = size_t{1} << 30;

Arena& TheArena() {
  static Arena arena;
  return arena;
}

absl::Status PutBuffersOn(kernels::Device& device) {
  SKEIN_ASSIGN_OR_RETURN(void* const data, device.AllocateHost(kArenaBytes));
  TheArena().data = static_cast<std::byte*>(data);
  kernels::MemoryOfTests() = {[](size_t bytes) -> void* {
                                Arena& arena = TheArena();
                                const size_t begin = arena.used;
                                arena.used += (bytes + 255) / 256 * 256;
                                if (arena.used > kArenaBytes) std::abort();
                                ++arena.live;
                                return arena.data + begin;
                              },
                              [](void*, size_t) {
                                if (--TheArena().live == 0) TheArena().used = 0;
                              }};
  return absl::OkStatus();
}

// Every operator case that the backend serves, on the same inputs everywhere. Outputs as bytes.
absl::Status AddOperators(const std::string& backend, kernels::Device& device, Outputs& out) {
  kernels::KernelRegistry registry;
  SKEIN_RETURN_IF_ERROR(RegisterBackends(registry));
  std::vector<kernels::Case> cases;
  kernels::AddDenseCases(cases);
  kernels::AddExpertCases(cases);
  kernels::AddCacheCases(cases);
  kernels::AddAttentionCases(cases);
  kernels::AddSamplingCases(cases);
  const std::vector<kernels::OpId> served = registry.Operators(backend);
  kernels::Rows rows;
  rows.ids = {0, 1, 2, 3, 4, 5, 6};
  for (const kernels::Case& one : cases) {
    if (std::find(served.begin(), served.end(), one.op) == served.end()) continue;
    const kernels::Instance instance = one.make(rows);
    if (!instance.supports(registry, backend).ok()) continue;
    SKEIN_RETURN_IF_ERROR(instance.run(registry, backend, device.stream()));
    SKEIN_RETURN_IF_ERROR(device.Wait());
    for (const kernels::Output& output : instance.outputs) {
      const kernels::Bytes& bytes = output.buffer->bytes();
      out[absl::StrCat(protocol::ToAbsl(kOperatorPrefix), one.name, ".", output.name)] = {
          bytes.begin(), bytes.end()};
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Outputs> RunAll(const DumpOptions& options) {
  Outputs out;
  if (!options.device->is_host()) SKEIN_RETURN_IF_ERROR(PutBuffersOn(*options.device));
  SKEIN_RETURN_IF_ERROR(AddOperators(options.backend, *options.device, out));
  for (const std::string& dir : options.dirs) {
    SKEIN_ASSIGN_OR_RETURN(auto goldens, GoldenDir::Open(dir));
    size_t longest = 0;
    for (const GoldenSequence& sequence : goldens->sequences()) {
      longest = std::max(longest, sequence.ids.size());
    }
    RunSetup setup;
    setup.backend = options.backend;
    setup.numerics = worker::BackendNumerics(options.backend);
    setup.model_dir = options.model.empty() ? dir : options.model;
    setup.max_rows = static_cast<int>(longest) + 8;
    setup.max_model_len = setup.max_rows + 8;
    setup.rope = goldens->rope();
    setup.device = options.device;
    SKEIN_ASSIGN_OR_RETURN(auto run, SequenceRun::Create(setup));
    for (const GoldenSequence& sequence : goldens->sequences()) {
      run->Restart();
      SKEIN_ASSIGN_OR_RETURN(const Trace trace, run->Append(sequence.ids));
      AddTrace(absl::StrCat(std::filesystem::path(dir).filename().string(), ".", sequence.name),
               trace, out);
    }
  }
  return out;
}

double LargestDifference(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = 0;
  double largest = 1e-300;
  for (size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  return worst / largest;
}

std::string Describe(const std::string& name, const std::vector<double>& ours,
                     const std::vector<double>& theirs) {
  if (!name.starts_with(kOperatorPrefix)) {
    return absl::StrFormat("%.3g of the maximum", LargestDifference(ours, theirs));
  }
  size_t bytes = 0;
  for (size_t i = 0; i < ours.size(); ++i) bytes += ours[i] != theirs[i] ? 1 : 0;
  return absl::StrFormat("%d of %d bytes", bytes, ours.size());
}

}  // namespace

absl::Status WriteDump(const DumpOptions& options, const std::string& file) {
  SKEIN_ASSIGN_OR_RETURN(const Outputs outputs, RunAll(options));
  std::string header = "{";
  size_t offset = 0;
  for (const auto& [name, values] : outputs) {
    const size_t end = offset + values.size() * sizeof(double);
    absl::StrAppend(&header, header.size() > 1 ? "," : "", "\"", name,
                    "\":{\"dtype\":\"F64\",\"shape\":[", values.size(), "],\"data_offsets\":[",
                    offset, ",", end, "]}");
    offset = end;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::ofstream stream(file, std::ios::binary);
  const uint64_t length = header.size();
  stream.write(reinterpret_cast<const char*>(&length), sizeof(length));
  stream << header;
  for (const auto& [name, values] : outputs) {
    stream.write(reinterpret_cast<const char*>(values.data()),
                 static_cast<std::streamsize>(values.size() * sizeof(double)));
  }
  stream.close();
  return stream ? absl::OkStatus() : absl::InternalError(absl::StrCat(file, ": cannot be written"));
}

absl::Status CompareDump(const DumpOptions& options, const std::string& file, std::ostream& out) {
  SKEIN_ASSIGN_OR_RETURN(auto stored, worker::SafetensorsFile::Open(file));
  SKEIN_ASSIGN_OR_RETURN(const Outputs outputs, RunAll(options));
  int differ = 0;
  for (const auto& [name, view] : stored->tensors()) {
    auto found = outputs.find(name);
    const std::vector<double> theirs = ToDoubles(view);
    if (found == outputs.end() || found->second.size() != theirs.size()) {
      out << "MISSING " << name << "\n";
      ++differ;
      continue;
    }
    if (std::memcmp(theirs.data(), found->second.data(), theirs.size() * sizeof(double)) == 0) {
      continue;
    }
    out << "DIFFER " << name << ": " << Describe(name, found->second, theirs) << "\n";
    ++differ;
  }
  out << stored->tensors().size() << " outputs, " << differ << " differ\n";
  if (differ == 0 && outputs.size() == stored->tensors().size()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(differ, " outputs differ from ", file));
}

}  // namespace skein::tests
