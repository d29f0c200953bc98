#include "protocol/config/fault_list.h"

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

absl::Status ParseFault(std::string_view entry, FaultList& faults) {
  const size_t colon = entry.find(':');
  const std::string_view name = entry.substr(0, colon);
  std::optional<int32_t>* fault = name == "abort_on_token"   ? &faults.abort_on_token
                                  : name == "hang_on_token"  ? &faults.hang_on_token
                                  : name == "exit_at_start"  ? &faults.exit_at_start
                                  : name == "lose_blocks"    ? &faults.lose_blocks
                                  : name == "wedge_on_token" ? &faults.wedge_on_token
                                                             : nullptr;
  if (fault == nullptr) {
    return absl::InvalidArgumentError(
        Concat("\"", entry, "\" is no fault; there are abort_on_token:ID, hang_on_token:ID, ",
               "exit_at_start:CODE, lose_blocks:WORKER and wedge_on_token:ID"));
  }
  if (fault->has_value()) return absl::InvalidArgumentError(Concat(name, " is given twice"));
  int32_t number = -1;
  if (colon == std::string_view::npos ||
      !absl::SimpleAtoi(ToAbsl(entry.substr(colon + 1)), &number) || number < 0) {
    return absl::InvalidArgumentError(
        Concat("\"", entry, "\" must be ", name, ":NUMBER, with a number from 0 on"));
  }
  *fault = number;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<FaultList> ParseFaults(std::string_view text) {
  FaultList faults;
  if (text.empty()) return faults;
  const std::vector<std::string> entries = absl::StrSplit(ToAbsl(text), ',');
  for (const std::string& entry : entries) SKEIN_RETURN_IF_ERROR(ParseFault(entry, faults));
  return faults;
}

}  // namespace skein::protocol
