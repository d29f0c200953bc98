#include "tests/conformance/golden_dir.h"

#include <fstream>
#include <numeric>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "protocol/base/status_macros.h"
#include "protocol/json/json.h"

namespace skein::tests {
namespace {

using protocol::JsonValue;

std::vector<int32_t> Ints(const JsonValue* list) {
  std::vector<int32_t> out;
  if (list == nullptr) return out;
  for (const JsonValue& value : list->elements()) {
    out.push_back(static_cast<int32_t>(value.AsInt64("goldens.json").value_or(-1)));
  }
  return out;
}

std::vector<double> Reals(const JsonValue* list) {
  std::vector<double> out;
  if (list == nullptr) return out;
  for (const JsonValue& value : list->elements()) {
    out.push_back(value.AsDouble("goldens.json").value_or(0));
  }
  return out;
}

std::vector<GoldenDraft> Drafts(const JsonValue* list) {
  std::vector<GoldenDraft> out;
  if (list == nullptr) return out;
  for (const JsonValue& entry : list->elements()) {
    GoldenDraft draft;
    draft.t = entry.Find("t")->AsInt64("t").value_or(-1);
    draft.b = static_cast<int32_t>(entry.Find("b")->AsInt64("b").value_or(-1));
    draft.draft = Ints(entry.Find("draft"));
    draft.confidence = Reals(entry.Find("conf"));
    draft.accepted = static_cast<int>(entry.Find("accepted")->AsInt64("accepted").value_or(0));
    out.push_back(std::move(draft));
  }
  return out;
}

double NoiseMean(const JsonValue& entry, bool tiny) {
  const JsonValue* noise = entry.Find("f32_noise");
  if (noise != nullptr && !tiny) noise = noise->Find("qat");
  const JsonValue* mean = noise == nullptr ? nullptr : noise->Find("mean");
  return mean == nullptr ? 0 : mean->AsDouble("mean").value_or(0);
}

GoldenSequence ReadSequence(const JsonValue& entry, size_t index, bool tiny) {
  GoldenSequence out;
  out.prefix = absl::StrCat(tiny ? "p" : "s", index);
  const JsonValue* name = entry.Find("name");
  out.name = name == nullptr ? out.prefix : std::string(name->string());
  out.ids = Ints(entry.Find("ids"));
  out.rows = Ints(entry.Find("rows"));
  if (out.rows.empty()) {
    out.rows.resize(out.ids.size());
    std::iota(out.rows.begin(), out.rows.end(), 0);
  }
  out.greedy = Ints(entry.Find(tiny ? "greedy" : "greedy_qat"));
  out.greedy_margin = Reals(entry.Find("greedy_margin"));
  out.drafts_nq = Drafts(entry.Find("dspark_nq"));
  out.drafts_qat = Drafts(entry.Find(tiny ? "dspark" : "dspark_qat"));
  out.qat_noise_mean = NoiseMean(entry, tiny);
  return out;
}

std::vector<float> Floats(const kernels::TensorView& view) {
  return {view.as<const float>(), view.as<const float>() + view.size()};
}

absl::StatusOr<std::shared_ptr<const worker::RecordedRope>> ReadRope(
    const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) return nullptr;
  SKEIN_ASSIGN_OR_RETURN(auto rows, worker::SafetensorsFile::Open(file));
  auto rope = std::make_shared<worker::RecordedRope>();
  rope->plain = Floats(rows->tensors().at("plain"));
  rope->compress = Floats(rows->tensors().at("compress"));
  rope->positions = rows->tensors().at("plain").dim(0);
  return rope;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GoldenDir>> GoldenDir::Open(const std::filesystem::path& dir) {
  const std::filesystem::path file = dir / "goldens.json";
  std::ifstream stream(file, std::ios::binary);
  if (!stream) return absl::NotFoundError(absl::StrCat(file.string(), ": cannot be read"));
  std::stringstream text;
  text << stream.rdbuf();
  SKEIN_ASSIGN_OR_RETURN(JsonValue root, protocol::ParseJson(text.str(), {}));
  std::unique_ptr<GoldenDir> out(new GoldenDir());
  const JsonValue* list = root.Find("sequences");
  if (list == nullptr) {
    list = root.Find("prompts");
    out->tiny_ = true;
  }
  if (list == nullptr || list->elements().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.string(), ": has neither sequences nor prompts"));
  }
  for (const JsonValue& entry : list->elements()) {
    out->sequences_.push_back(ReadSequence(entry, out->sequences_.size(), out->tiny_));
  }
  SKEIN_ASSIGN_OR_RETURN(out->tensors_, worker::SafetensorsFile::Open(dir / "goldens.safetensors"));
  SKEIN_ASSIGN_OR_RETURN(out->rope_, ReadRope(dir / "rope_rows.safetensors"));
  return out;
}

kernels::TensorView GoldenDir::Find(const GoldenSequence& sequence, const std::string& what,
                                    int layer, Mode mode) const {
  std::string name = absl::StrCat(sequence.prefix, ".", what);
  if (tiny_ && mode == Mode::kNq) absl::StrAppend(&name, "_nq");
  if (layer >= 0) absl::StrAppend(&name, ".", layer);
  if (!tiny_ && what != "engram") absl::StrAppend(&name, ".", ModeName(mode));
  auto found = tensors_->tensors().find(name);
  return found == tensors_->tensors().end() ? kernels::TensorView{} : found->second;
}

}  // namespace skein::tests
