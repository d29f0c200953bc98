// skein-conformance: recorded checkpoints and encodings through a named backend. One line per case,
// exit status 1 if one fails, 64 for a wrong command line.

#include <algorithm>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/register.h"
#include "kernels/cpu/thread_pool.h"
#include "protocol/base/status_macros.h"
#include "protocol/json/json.h"
#include "tests/conformance/dump.h"
#include "tests/conformance/golden_dir.h"
#include "tests/conformance/rules.h"
#include "tests/conformance/sequence_run.h"
#include "tests/conformance/tokenizer_cases.h"
#include "worker/gpu_backend.h"

namespace skein::tests {
namespace {

constexpr char kUsage[] =
    "usage: skein-conformance --backend NAME [--model DIR] [--threads N] [--baselines FILE] "
    "DIR...\n"
    "       skein-conformance --tokenizer FILE --encodings FILE.jsonl\n"
    "       skein-conformance --backend NAME --dump FILE | --compare FILE DIR...\n"
    "  DIR        a checkpoint with goldens.json and goldens.safetensors\n"
    "  --model    the checkpoint, where DIR holds goldens alone\n"
    "  --dump     store the outputs of operators and layers; --compare: run again and compare\n";

struct Options {
  std::string backend, model, tokenizer, encodings, dump, compare;
  std::string baselines = "tests/conformance/layer_baselines.json";
  int threads = 1;
  std::vector<std::string> dirs;
};

absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& args) {
  Options options;
  const std::map<std::string, std::string*> texts = {
      {"--backend", &options.backend},     {"--model", &options.model},
      {"--tokenizer", &options.tokenizer}, {"--encodings", &options.encodings},
      {"--dump", &options.dump},           {"--compare", &options.compare},
      {"--baselines", &options.baselines}};
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (!arg.starts_with("--")) {
      options.dirs.push_back(arg);
      continue;
    }
    auto text = texts.find(arg);
    if ((text == texts.end() && arg != "--threads") || i + 1 == args.size()) {
      return absl::InvalidArgumentError(absl::StrCat("unknown or incomplete option ", arg));
    }
    const std::string& value = args[++i];
    if (text != texts.end()) {
      *text->second = value;
    } else {
      options.threads = std::stoi(value);
    }
  }
  const bool tokenizer = !options.tokenizer.empty() && !options.encodings.empty();
  const bool model = !options.backend.empty() && !options.dirs.empty();
  if (!tokenizer && !model) return absl::InvalidArgumentError("nothing to run");
  return options;
}

std::map<std::string, double> ReadBaselines(const std::string& file) {
  std::map<std::string, double> out;
  std::ifstream stream(file);
  std::stringstream text;
  text << stream.rdbuf();
  auto root = protocol::ParseJson(text.str(), {});
  if (!root.ok()) return out;
  for (const protocol::JsonMember& member : root->members()) {
    out[member.key] = member.value.AsDouble(member.key).value_or(0);
  }
  return out;
}

class Conformance {
 public:
  explicit Conformance(const Options& options)
      : options_(options), pool_(options.threads), baselines_(ReadBaselines(options.baselines)) {}

  // Opens what the backend runs on.
  absl::Status OpenDevice() {
    if (worker::IsGpuBackend(options_.backend)) {
      SKEIN_ASSIGN_OR_RETURN(device_, worker::OpenGpu(options_.backend, 0));
      return absl::OkStatus();
    }
    kernels::DeviceStream stream;
    if (options_.backend == "cpu") stream.handle = &pool_;
    device_ = std::make_shared<kernels::HostDevice>(stream);
    return absl::OkStatus();
  }

  absl::Status RunDir(const std::string& dir) {
    SKEIN_ASSIGN_OR_RETURN(auto goldens, GoldenDir::Open(dir));
    const std::filesystem::path path(dir);
    name_ = (path.filename().empty() ? path.parent_path() : path).filename().string();
    if (options_.backend == "reference") {
      SKEIN_RETURN_IF_ERROR(RunEndToEnd(*goldens, dir, Mode::kNq));
      return RunEndToEnd(*goldens, dir, Mode::kQat);
    }
    SKEIN_RETURN_IF_ERROR(RunLayers(*goldens, dir));
    return goldens->tiny() ? RunForced(*goldens, dir) : absl::OkStatus();
  }

  const std::shared_ptr<kernels::Device>& device() const { return device_; }
  int passed() const { return passed_; }
  int failed() const { return failed_; }

 private:
  absl::StatusOr<std::unique_ptr<SequenceRun>> MakeRun(const GoldenDir& goldens,
                                                       const std::string& dir,
                                                       const worker::Numerics& numerics) {
    size_t longest = 0;
    for (const GoldenSequence& sequence : goldens.sequences()) {
      longest = std::max(longest, sequence.ids.size());
    }
    RunSetup setup;
    setup.backend = options_.backend;
    setup.numerics = numerics;
    setup.model_dir = options_.model.empty() ? dir : options_.model;
    // Room for the recorded continuation and the drafts beyond it.
    setup.max_rows = static_cast<int>(longest) + 80;
    setup.max_model_len = setup.max_rows + 16;
    setup.rope = goldens.rope();
    setup.device = device_;
    return SequenceRun::Create(setup);
  }

  CaseContext Context(const GoldenDir& goldens, const GoldenSequence& sequence) const {
    return {goldens, sequence, absl::StrCat(name_, " ", sequence.name), std::cout};
  }

  void Count(bool pass) { ++(pass ? passed_ : failed_); }

  // The trained model has recorded unrounded logits for some prompts only.
  static bool Recorded(const GoldenDir& goldens, const GoldenSequence& sequence, Mode mode) {
    return mode == Mode::kQat || !goldens.Find(sequence, "logits", -1, mode).absent();
  }

  absl::Status RunEndToEnd(const GoldenDir& goldens, const std::string& dir, Mode mode) {
    const worker::Numerics numerics =
        mode == Mode::kNq ? worker::Numerics::Unquantised() : worker::Numerics::Exact();
    SKEIN_ASSIGN_OR_RETURN(auto run, MakeRun(goldens, dir, numerics));
    for (const GoldenSequence& sequence : goldens.sequences()) {
      if (!Recorded(goldens, sequence, mode)) continue;
      SKEIN_ASSIGN_OR_RETURN(bool pass, CheckEndToEnd(Context(goldens, sequence), *run, mode));
      Count(pass);
    }
    return absl::OkStatus();
  }

  absl::Status RunLayers(const GoldenDir& goldens, const std::string& dir) {
    for (const GoldenSequence& sequence : goldens.sequences()) {
      if (goldens.Find(sequence, "stream", 0, Mode::kQat).absent()) continue;
      SKEIN_ASSIGN_OR_RETURN(auto run, MakeRun(goldens, dir, worker::Numerics::Model()));
      SKEIN_ASSIGN_OR_RETURN(LayerFigures figures, MeasureLayers(Context(goldens, sequence), *run));
      auto baseline = baselines_.find(name_);
      const bool measuring = options_.backend == "reference-float";
      if (baseline == baselines_.end() && !measuring) {
        return absl::NotFoundError(absl::StrCat(options_.baselines, ": has no entry \"", name_,
                                                "\"; measure it with --backend reference-float"));
      }
      Count(JudgeLayers(Context(goldens, sequence), figures,
                        baseline == baselines_.end() ? figures.share : baseline->second));
      return absl::OkStatus();
    }
    std::cout << "SKIP " << name_ << " layers: no recorded streams\n";
    return absl::OkStatus();
  }

  absl::Status RunForced(const GoldenDir& goldens, const std::string& dir) {
    SKEIN_ASSIGN_OR_RETURN(auto run, MakeRun(goldens, dir, worker::Numerics::Model()));
    for (const GoldenSequence& sequence : goldens.sequences()) {
      SKEIN_ASSIGN_OR_RETURN(ForcedFigures one, MeasureForced(Context(goldens, sequence), *run));
      Count(JudgeForced(Context(goldens, sequence), one));
    }
    return absl::OkStatus();
  }

  const Options& options_;
  kernels::cpu::ThreadPool pool_;
  std::shared_ptr<kernels::Device> device_;
  const std::map<std::string, double> baselines_;
  std::string name_;
  int passed_ = 0;
  int failed_ = 0;
};

int RunTokenizer(const Options& options) {
  auto counts = RunTokenizerCases(options.tokenizer, options.encodings, std::cout);
  if (!counts.ok()) {
    std::cerr << "skein-conformance: " << counts.status().message() << "\n";
    return 1;
  }
  return counts->AllPass() ? 0 : 1;
}

int RunMain(const std::vector<std::string>& args) {
  auto options = ParseOptions(args);
  if (!options.ok()) {
    std::cerr << "skein-conformance: " << options.status().message() << "\n" << kUsage;
    return 64;
  }
  if (!options->tokenizer.empty()) return RunTokenizer(*options);
  Conformance conformance(*options);
  if (const absl::Status status = conformance.OpenDevice(); !status.ok()) {
    std::cerr << "skein-conformance: " << status.message() << "\n";
    return 1;
  }
  if (!options->dump.empty() || !options->compare.empty()) {
    const DumpOptions dump{options->backend, options->model, options->dirs, conformance.device()};
    const absl::Status status = options->dump.empty()
                                    ? CompareDump(dump, options->compare, std::cout)
                                    : WriteDump(dump, options->dump);
    if (!status.ok()) std::cerr << "skein-conformance: " << status.message() << "\n";
    return status.ok() ? 0 : 1;
  }
  bool ran = true;
  for (const std::string& dir : options->dirs) {
    if (absl::Status status = conformance.RunDir(dir); !status.ok()) {
      std::cout << "FAIL " << dir << ": " << status.message() << "\n";
      ran = false;
    }
  }
  std::cout << options->backend << ": " << conformance.passed() << " passed, "
            << conformance.failed() << " failed\n";
  return ran && conformance.failed() == 0 && conformance.passed() > 0 ? 0 : 1;
}

}  // namespace
}  // namespace skein::tests

int main(int argc, char** argv) { return skein::tests::RunMain({argv + 1, argv + argc}); }
