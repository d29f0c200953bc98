#include "kernels/kernel_registry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace skein::kernels {
namespace {

// Distributions build Abseil with its own string_view.
absl::string_view Abseil(std::string_view text) { return {text.data(), text.size()}; }

std::string Joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += ", ";
    text += word;
  }
  return text.empty() ? "none" : text;
}

}  // namespace

KernelManifest KernelManifest::Uniform(std::string_view backend) {
  KernelManifest manifest;
  manifest.backend_.fill(std::string(backend));
  return manifest;
}

void KernelManifest::Set(OpId op, std::string_view backend) {
  backend_.at(static_cast<size_t>(op)) = std::string(backend);
}

void KernelManifest::Erase(OpId op) { backend_.at(static_cast<size_t>(op)).clear(); }

std::string_view KernelManifest::backend(OpId op) const {
  return backend_.at(static_cast<size_t>(op));
}

absl::StatusOr<KernelManifest> ParseManifest(
    std::string_view fallback, const std::vector<std::pair<std::string, std::string>>& overrides) {
  KernelManifest manifest = fallback.empty() ? KernelManifest() : KernelManifest::Uniform(fallback);
  std::string unknown;
  for (const auto& [name, backend] : overrides) {
    OpId op = OpId::kCount;
    if (ParseOpName(name, op)) {
      manifest.Set(op, backend);
    } else {
      absl::StrAppend(&unknown, unknown.empty() ? "" : ", ", name);
    }
  }
  if (unknown.empty()) return manifest;
  std::vector<std::string> known;
  for (int op = 0; op < kNumOps; ++op) known.emplace_back(OpName(static_cast<OpId>(op)));
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown operators in the kernel manifest: ", unknown, "; operators are: ", Joined(known)));
}

std::vector<std::string> KernelRegistry::Backends() const {
  std::vector<std::string> names;
  for (const auto& [key, entry] : entries_) names.push_back(key.second);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::vector<OpId> KernelRegistry::Operators(std::string_view backend) const {
  std::vector<OpId> operators;
  for (const auto& [key, entry] : entries_) {
    if (key.second == backend) operators.push_back(key.first);
  }
  return operators;
}

absl::Status KernelRegistry::Insert(OpId op, std::string_view backend, std::any variant) {
  const auto [place, inserted] =
      entries_.try_emplace({op, std::string(backend)}, std::move(variant));
  if (inserted) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat("operator ", Abseil(OpName(op)),
                                               " is registered twice for backend ", Abseil(backend),
                                               "; each backend registers an operator once"));
}

const std::any* KernelRegistry::FindEntry(OpId op, std::string_view backend) const {
  const auto place = entries_.find({op, std::string(backend)});
  return place == entries_.end() ? nullptr : &place->second;
}

absl::Status KernelRegistry::Incomplete(OpId op, std::string_view backend) {
  return absl::InvalidArgumentError(
      absl::StrCat("operator ", Abseil(OpName(op)), " of backend ", Abseil(backend),
                   " lacks one of supports, workspace_bytes, run; all three are required"));
}

std::string KernelRegistry::MissingText(OpId op, std::string_view backend) const {
  std::vector<std::string> having;
  for (const auto& [key, entry] : entries_) {
    if (key.first == op) having.push_back(key.second);
  }
  if (backend.empty()) {
    return absl::StrCat("operator ", Abseil(OpName(op)),
                        " has no backend in the manifest; name one of: ", Joined(having));
  }
  return absl::StrCat("operator ", Abseil(OpName(op)), " is not implemented by backend ",
                      Abseil(backend), "; backends that have it: ", Joined(having));
}

std::string KernelRegistry::UnsupportedText(OpId op, std::string_view backend,
                                            const absl::Status& status) {
  return absl::StrCat("operator ", Abseil(OpName(op)), " of backend ", Abseil(backend),
                      " cannot serve this model: ", status.message());
}

}  // namespace skein::kernels
