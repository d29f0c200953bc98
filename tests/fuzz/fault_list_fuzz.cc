// Lists of planted faults, and addresses and tokens of the operators' listener: what is accepted
// has a meaning of its own, a refusal has a reason. Thread: one. Must never: depend on anything but
// the input.
#include "protocol/base/strings.h"
#include "protocol/config/admin_address.h"
#include "protocol/config/fault_list.h"
#include "tests/fuzz/fuzz_target.h"

namespace skein::tests {
namespace {

using protocol::FaultList;
using protocol::StatusText;

std::string Written(const FaultList& list) {
  std::string text;
  const auto add = [&](std::string_view name, const std::optional<int32_t>& value) {
    if (value) text += protocol::Concat(text.empty() ? "" : ",", name, ":", *value);
  };
  add("abort_on_token", list.abort_on_token);
  add("hang_on_token", list.hang_on_token);
  add("exit_at_start", list.exit_at_start);
  add("lose_blocks", list.lose_blocks);
  add("wedge_on_token", list.wedge_on_token);
  return text;
}

void CheckFaults(std::string_view text) {
  const auto list = protocol::ParseFaults(text);
  if (!list.ok()) return Require(!StatusText(list.status()).empty(), "a refusal has a reason");
  const std::string written = Written(*list);
  const auto again = protocol::ParseFaults(written);
  Require(again.ok() && Written(*again) == written, "a list of faults reads back", written);
  Require(written.empty() == text.empty(), "an entry is a fault", written);
}

void CheckAddress(std::string_view text) {
  const auto address = protocol::ParseAdminAddress(text);
  if (!address.ok()) {
    return Require(!StatusText(address.status()).empty(), "a refusal has a reason");
  }
  Require(address->none() == text.empty(), "an address is one");
  if (address->port) {
    Require(protocol::IsLoopback(address->host), "of this host alone", address->host);
  }
  Require(!address->port || address->unix_path.empty(), "one kind at a time");
}

void CheckToken(std::string_view text) {
  const MemoryFile file(text);
  const auto token = protocol::ReadAdminToken("admin.token_file", file.path());
  if (token.ok()) return Require(*token == text.substr(0, text.find('\n')), "it is the first line");
  Require(StatusText(token.status()).starts_with("admin.token_file"), "a refusal names the key");
}

}  // namespace
}  // namespace skein::tests

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  skein::tests::CheckFaults(skein::tests::TextOf(data, size));
  skein::tests::CheckAddress(skein::tests::TextOf(data, size));
  skein::tests::CheckToken(skein::tests::TextOf(data, size));
  return 0;
}
