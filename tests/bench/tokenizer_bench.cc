// tokenizer_bench: throughput of Encode and Decode on text of the tree, one thread.
// Usage: tokenizer_bench --tokenizer FILE --encodings FILE [--seed N] [--reps N] [--mib N]
// [--commit ID]; runs from the source root. One JSON line per corpus on stdout, a table on stderr.
// Must never: print a figure when the recorded encodings do not match before and after.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "coordinator/text/tokenizer.h"
#include "tests/bench/bench_line.h"
#include "tests/conformance/tokenizer_cases.h"

namespace skein::tests {
namespace {

using coordinator::SpecialTokens;
using coordinator::Tokenizer;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string tokenizer;
  std::string encodings;
  bench::RunIdentity run{"tokenizer_bench", "unknown", 1, 9};
  size_t bytes = 4 << 20;
};

struct Corpus {
  std::string name;
  std::string text;
};

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Lines of all files under `folders` that end in `ending`.
std::vector<std::string> LinesOf(const std::vector<std::string>& folders, std::string_view ending) {
  std::vector<std::string> lines;
  for (const std::string& folder : folders) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (!entry.path().string().ends_with(ending)) continue;
      std::ifstream file(entry.path());
      for (std::string line; std::getline(file, line);) lines.push_back(line + "\n");
    }
  }
  std::sort(lines.begin(), lines.end());  // directory order is not fixed
  return lines;
}

// Lines drawn at random until `bytes` are there.
Corpus Draw(std::string name, const std::vector<std::string>& lines, size_t bytes,
            std::mt19937_64& random) {
  Corpus corpus{std::move(name), {}};
  while (!lines.empty() && corpus.text.size() < bytes) {
    corpus.text += lines[random() % lines.size()];
  }
  return corpus;
}

// Sentences of random frequent Han characters, of which lower code points are more frequent.
std::vector<std::string> HanLines(std::mt19937_64& random) {
  std::vector<std::string> lines;
  for (int i = 0; i < 4000; ++i) {
    std::string line;
    for (uint64_t left = 8 + random() % 40; left > 0; --left) {
      const uint32_t code = 0x4E00 + static_cast<uint32_t>(random() % (1 + random() % 8000));
      line += static_cast<char>(0xE0 | (code >> 12));
      line += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
      line += static_cast<char>(0x80 | (code & 0x3F));
      if (random() % 12 == 0) line += "，";
    }
    lines.push_back(line + "。\n");
  }
  return lines;
}

std::vector<Corpus> MakeCorpora(const Options& options) {
  std::mt19937_64 random(options.run.seed);
  const auto prose = LinesOf({"coordinator", "worker", "kernels", "scheduler", "protocol"}, ".md");
  const auto code = LinesOf({"coordinator", "worker", "kernels", "scheduler", "protocol"}, ".cc");
  const auto json = LinesOf({"tests/data/tokenizer-goldens"}, ".jsonl");
  std::vector<Corpus> corpora;
  corpora.push_back(Draw("prose", prose, options.bytes, random));
  corpora.push_back(Draw("code", code, options.bytes, random));
  corpora.push_back(Draw("multilingual", json, options.bytes, random));
  corpora.push_back(Draw("han", HanLines(random), options.bytes, random));
  return corpora;
}

bool GoldensMatch(const Options& options) {
  std::ostringstream report;
  const auto counts = RunTokenizerCases(options.tokenizer, options.encodings, report);
  if (counts.ok() && counts->AllPass()) return true;
  std::cerr << (counts.ok() ? report.str() : std::string(counts.status().message())) << "\n";
  return false;
}

// False when the text does not survive encoding and decoding.
bool RunCorpus(const Options& options, const Tokenizer& tokenizer, const Corpus& corpus) {
  std::vector<double> encode_s;
  std::vector<double> decode_s;
  size_t num_ids = 0;
  for (int rep = 0; rep < options.run.reps; ++rep) {
    Clock::time_point start = Clock::now();
    const auto ids = tokenizer.Encode(corpus.text, SpecialTokens::kPlain);
    encode_s.push_back(SecondsSince(start));
    if (!ids.ok()) return false;
    start = Clock::now();
    const auto text = tokenizer.Decode(*ids);
    decode_s.push_back(SecondsSince(start));
    if (!text.ok() || *text != corpus.text) return false;
    num_ids = ids->size();
  }
  const double mib = static_cast<double>(corpus.text.size()) / (1 << 20);
  const double encode = mib / bench::Percentile(encode_s, 50);
  const double decode = mib / bench::Percentile(decode_s, 50);
  bench::PrintCase(options.run, corpus.name,
                   {{"bytes", std::to_string(corpus.text.size())},
                    {"ids", std::to_string(num_ids)},
                    {"mib_s_encode", bench::JsonNumber(encode)},
                    {"mib_s_decode", bench::JsonNumber(decode)},
                    {"ids_match", "true"}},
                   true);
  std::cerr << corpus.name << ": encode " << encode << " MiB/s, decode " << decode << " MiB/s, "
            << static_cast<double>(corpus.text.size()) / static_cast<double>(num_ids)
            << " bytes per token\n";
  return true;
}

int Run(const Options& options) {
  if (!GoldensMatch(options)) return 1;
  const auto tokenizer = Tokenizer::Load(options.tokenizer);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status().message() << "\n";
    return 1;
  }
  for (const Corpus& corpus : MakeCorpora(options)) {
    if (!RunCorpus(options, **tokenizer, corpus)) {
      std::cerr << corpus.name << ": text changed by encoding and decoding\n";
      return 1;
    }
  }
  return GoldensMatch(options) ? 0 : 1;
}

// Flags come in pairs; anything else is a usage error.
bool ReadOptions(int argc, char** argv, Options* options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    const std::string value = argv[i + 1];
    uint64_t number = 0;
    if (flag == "--tokenizer") {
      options->tokenizer = value;
    } else if (flag == "--encodings") {
      options->encodings = value;
    } else if (flag == "--commit") {
      options->run.commit = value;
    } else if (!absl::SimpleAtoi(value, &number) || number == 0) {
      return false;
    } else if (flag == "--seed") {
      options->run.seed = number;
    } else if (flag == "--reps") {
      options->run.reps = static_cast<int>(number);
    } else if (flag == "--mib") {
      options->bytes = number << 20;
    } else {
      return false;
    }
  }
  return argc % 2 == 1 && !options->tokenizer.empty() && !options->encodings.empty();
}

}  // namespace
}  // namespace skein::tests

int main(int argc, char** argv) {
  skein::tests::Options options;
  if (!skein::tests::ReadOptions(argc, argv, &options)) {
    std::cerr << "usage: tokenizer_bench --tokenizer FILE --encodings FILE [--seed N] [--reps N] "
                 "[--mib N] [--commit ID]\n";
    return 64;
  }
  return skein::tests::Run(options);
}
