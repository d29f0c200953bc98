// config.json of a model: the input's members replace those of the demo model's text_config (null
// removes one), unless it has a text_config of its own. What is accepted is within its ranges and
// consistent; a refusal names the file.
// Thread: one.
// Must never: depend on anything but the input and the demo model.
#include <fstream>
#include <iterator>

#include "protocol/base/strings.h"
#include "protocol/json/json.h"
#include "tests/fuzz/fuzz_target.h"
#include "worker/model/model_spec.h"

namespace skein::tests {
namespace {

using protocol::JsonMember;
using protocol::JsonValue;
using worker::LayerSpec;
using worker::ModelSpec;

const JsonValue& Demo() {
  static const auto* const value = [] {
    std::ifstream file("deploy/models/tiny-v41/config.json");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    return new JsonValue(protocol::ParseJson(text).value());
  }();
  return *value;
}

JsonValue Replaced(const JsonValue& object, const JsonValue& by) {
  std::vector<JsonMember> members;
  for (const JsonMember& member : object.members()) {
    if (by.Find(member.key) == nullptr) members.push_back(member);
  }
  for (const JsonMember& member : by.members()) {
    if (!member.value.IsNull()) members.push_back(member);
  }
  return JsonValue(std::move(members));
}

JsonValue ConfigOf(const JsonValue& input) {
  if (input.Find("text_config") != nullptr || !input.IsObject()) return input;
  std::vector<JsonMember> text_config;
  text_config.push_back({"text_config", Replaced(*Demo().Find("text_config"), input)});
  return Replaced(Demo(), JsonValue(std::move(text_config)));
}

void CheckSpec(const ModelSpec& spec) {
  Require(spec.vocab > 0 && spec.vocab <= 1 << 20 && spec.num_layers > 0 &&
              spec.num_layers <= 512 && spec.num_experts <= 4096 && spec.hidden > 0,
          "sizes are within their ranges");
  Require(spec.layers.size() == static_cast<size_t>(spec.num_layers), "each layer is described");
  Require(spec.block_multiple() > 0, "blocks have a size");
  for (int i = 0; i < spec.num_layers; ++i) {
    const LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    Require(layer.ratio >= 0 && layer.kv_layer <= i, "a layer reads what is before it");
    Require(layer.engram_index < static_cast<int>(spec.engram.layers.size()) &&
                layer.tap_index < static_cast<int>(spec.dspark.target_layers.size()),
            "and what there is");
  }
  Require(spec.engram.rows.size() == spec.engram.layers.size(), "each memory has rows");
}

void Check(std::string_view text) {
  const auto input = protocol::ParseJson(text);
  if (!input.ok()) return;
  const auto spec = ModelSpec::FromJson(ConfigOf(*input), "config.json");
  if (spec.ok()) return CheckSpec(*spec);
  Require(protocol::StatusText(spec.status()).find("config.json") != std::string_view::npos,
          "a refusal names the file", protocol::StatusText(spec.status()));
}

}  // namespace
}  // namespace skein::tests

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  skein::tests::Check(skein::tests::TextOf(data, size));
  return 0;
}
