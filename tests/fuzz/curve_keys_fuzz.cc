// Keys of the control plane. The input's first line are the coordinator's public keys, the lines up
// to an empty one the file of a pair, the rest an allow-list. What is accepted are keys; a refusal
// names the configuration's key. Thread: one. Must never: depend on anything but the input.
#include <sys/stat.h>

#include "protocol/base/strings.h"
#include "protocol/transport/curve_keys.h"
#include "tests/fuzz/fuzz_target.h"

namespace skein::tests {
namespace {

using protocol::CurveSide;
using protocol::StatusText;

constexpr size_t kKeyCharacters = 40;

void CheckList(std::string_view text) {
  const auto keys = protocol::ParseAllowedKeys(text);
  if (!keys.ok()) {
    return Require(StatusText(keys.status()).find("line ") != std::string_view::npos,
                   "a refusal names the line", StatusText(keys.status()));
  }
  std::string again = "# comment\n";
  for (const std::string& key : *keys) {
    Require(key.size() == kKeyCharacters, "a key has its length", key);
    again += "  " + key + "\n";
  }
  Require(protocol::ParseAllowedKeys(again).value() == *keys, "a list reads back");
}

// A new pair is one for both sides, and no file is written over.
void CheckNewPair() {
  char directory[] = "/tmp/skein_fuzz_XXXXXX";
  Require(::mkdtemp(directory) != nullptr, "a directory is made");
  const std::string path = std::string(directory) + "/pair";
  const auto made = protocol::WriteNewCurveKeys(path);
  Require(made.ok(), "a pair is made");
  const auto keys = protocol::LoadCurveKeys({*made, path, {}}, CurveSide::kWorker);
  Require(keys.ok() && keys->public_key == *made, "and reads back");
  Require(!protocol::LoadCurveKeys({{}, {}, {}}, CurveSide::kWorker).ok(), "no file is no pair");
  Require(!protocol::LoadCurveKeys({{}, path, {}}, CurveSide::kCoordinator).ok(), "nor a list");
  Require(absl::IsAlreadyExists(protocol::WriteNewCurveKeys(path).status()), "it stays");
  ::unlink(path.c_str());
  ::rmdir(directory);
}

// The text up to `end`, which is taken away with it.
std::string TakeUpTo(std::string_view end, std::string_view& text) {
  const size_t at = std::min(text.find(end), text.size());
  const std::string taken(text.substr(0, at));
  text.remove_prefix(std::min(text.size(), at + end.size()));
  return taken;
}

void Check(std::string_view text) {
  static const bool once = (CheckNewPair(), true);
  Require(once, "new pairs are looked at once");
  CheckList(text);
  const std::string server_key = TakeUpTo("\n", text);
  const MemoryFile pair(TakeUpTo("\n\n", text) + "\n");
  const MemoryFile list(text);
  CheckList(text);
  for (const mode_t mode : {0644, 0600}) {
    Require(::chmod(pair.path().c_str(), mode) == 0, "a file gets its mode");
    for (const CurveSide side : {CurveSide::kCoordinator, CurveSide::kWorker}) {
      const auto keys = protocol::LoadCurveKeys({server_key, pair.path(), list.path()}, side);
      Require(mode == 0600 || !keys.ok(), "a secret that others can read is none");
      if (keys.ok()) {
        Require(keys->secret_key.size() == kKeyCharacters, "a pair has both keys");
        continue;
      }
      Require(StatusText(keys.status()).find("transport.curve_") != std::string_view::npos,
              "a refusal names the key", StatusText(keys.status()));
    }
  }
}

}  // namespace
}  // namespace skein::tests

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  skein::tests::Check(skein::tests::TextOf(data, size));
  return 0;
}
