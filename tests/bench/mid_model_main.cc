// skein-mid-model: writes a checkpoint of random weights in the official names and formats: the
// memory-bound case of cpu_bench. The bytes are a function of the seed. Owns the files it writes.
// Must never: write into a folder that holds another checkpoint.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "protocol/base/status_macros.h"
#include "tests/bench/engram_rows.h"
#include "tests/bench/mid_model_config.h"
#include "worker/model/dummy_weights.h"
#include "worker/model/model_spec.h"

namespace skein::tests {
namespace {

namespace fs = std::filesystem;
using worker::ModelSpec;
using worker::dummy::RandomBytes;
using worker::dummy::Tensor;
using worker::dummy::TensorsOf;

constexpr std::string_view kHelp = R"(skein-mid-model: random weights, 3 billion parameters, 1.7 GB

  --out DIR      where to write; must not hold a checkpoint
  --from DIR     model whose tokenizer files are copied (deploy/models/tiny-v41)
  --seed N       seed of the weights (1)
)";

void WriteTensor(const Tensor& tensor, const RandomBytes& random, uint64_t seed,
                 std::ofstream& out) {
  uint64_t state = RandomBytes::Begin(tensor.name, seed);
  for (int64_t left = tensor.bytes(); left > 0;) {
    const std::string part = random.Part(tensor, std::min<int64_t>(left, 1 << 16), state);
    out.write(part.data(), static_cast<std::streamsize>(part.size()));
    left -= static_cast<int64_t>(part.size());
  }
}

// The header, padded so that the data begin on 64 bytes.
std::string Header(const std::vector<Tensor>& tensors) {
  std::string json = "{";
  int64_t at = 0;
  for (const Tensor& tensor : tensors) {
    absl::StrAppend(&json, at == 0 ? "" : ",", "\"", tensor.name, "\":{\"dtype\":\"",
                    tensor.dtype(), "\",\"shape\":[", absl::StrJoin(tensor.shape, ","),
                    "],\"data_offsets\":[", at, ",", at + tensor.bytes(), "]}");
    at += tensor.bytes();
  }
  json += "}";
  while ((json.size() + 8) % 64 != 0) json += ' ';
  return json;
}

absl::Status Write(const fs::path& out, const fs::path& from, uint64_t seed) {
  if (fs::exists(out / "config.json") || fs::exists(out / "model.safetensors")) {
    return absl::AlreadyExistsError(
        absl::StrCat(out.string(), " holds a checkpoint; remove it or choose another --out"));
  }
  std::error_code error;
  fs::create_directories(out, error);
  for (const char* name : {"tokenizer.json", "generation_config.json", "encoding_resource.json",
                           "engram_token_map.bin"}) {
    fs::copy_file(from / name, out / name, fs::copy_options::overwrite_existing, error);
    if (error) {
      return absl::NotFoundError(absl::StrCat("cannot copy ", (from / name).string(), " to ",
                                              out.string(), ": ", error.message()));
    }
  }
  std::ofstream(out / "config.json") << WithEngramRows(kMidModelConfig, 20'000, 12);
  SKEIN_ASSIGN_OR_RETURN(const ModelSpec spec, ModelSpec::Load(out));
  std::vector<Tensor> tensors = TensorsOf(spec);
  // Tensors of odd sizes last, so that the others lie on whole cache lines.
  std::stable_partition(tensors.begin(), tensors.end(),
                        [](const Tensor& tensor) { return tensor.bytes() % 64 == 0; });
  const std::string header = Header(tensors);
  std::ofstream file(out / "model.safetensors", std::ios::binary);
  const uint64_t size = header.size();
  file.write(reinterpret_cast<const char*>(&size), sizeof(size));
  file << header;
  const RandomBytes random;
  for (const Tensor& tensor : tensors) WriteTensor(tensor, random, seed, file);
  file.close();
  if (!file) {
    return absl::InternalError(
        absl::StrCat("cannot write ", (out / "model.safetensors").string(), "; is the disk full?"));
  }
  return absl::OkStatus();
}

int Main(const std::vector<std::string>& arguments) {
  std::string out, from = "deploy/models/tiny-v41";
  uint64_t seed = 1;
  for (size_t i = 0; i < arguments.size(); i += 2) {
    const std::string& flag = arguments[i];
    if (flag == "--help") {
      std::printf("%s", kHelp.data());
      return 0;
    }
    const std::string value = i + 1 < arguments.size() ? arguments[i + 1] : "";
    if (flag == "--out") {
      out = value;
    } else if (flag == "--from") {
      from = value;
    } else if (flag != "--seed" || !absl::SimpleAtoi(value, &seed)) {
      std::fprintf(stderr, "skein-mid-model: %s %s: not known; see --help\n", flag.c_str(),
                   value.c_str());
      return 2;
    }
  }
  if (out.empty()) {
    std::fprintf(stderr, "skein-mid-model: --out DIR is missing; see --help\n");
    return 2;
  }
  if (const absl::Status status = Write(out, from, seed); !status.ok()) {
    std::fprintf(stderr, "skein-mid-model: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace skein::tests

int main(int argc, char** argv) { return skein::tests::Main({argv + 1, argv + argc}); }
