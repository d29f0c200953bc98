// A map with an order of use for each tenant's bound.
// Thread: one object is used by one thread.
// Must never: give a text for other arguments than its own.
#include "coordinator/text/call_texts.h"

#include <algorithm>
#include <utility>

#include "protocol/json/json.h"
#include "protocol/json/json_writer.h"

namespace skein::coordinator {
namespace {

// One text for all forms of the same value: members in the order of their keys.
std::string Canonical(const protocol::JsonValue& value) {
  if (value.IsArray()) {
    std::string text = "[";
    for (const protocol::JsonValue& element : value.elements()) text += Canonical(element) + ",";
    return text + "]";
  }
  if (!value.IsObject()) return protocol::WriteJson(value);
  std::vector<std::string> members;
  for (const protocol::JsonMember& member : value.members()) {
    std::string text;
    protocol::AppendJsonString(member.key, &text);
    members.push_back(text + ":" + Canonical(member.value) + ",");
  }
  std::sort(members.begin(), members.end());
  std::string text = "{";
  for (const std::string& member : members) text += member;
  return text + "}";
}

bool SameJson(std::string_view a, std::string_view b) {
  if (a == b) return true;
  const auto left = protocol::ParseJson(a), right = protocol::ParseJson(b);
  return left.ok() && right.ok() && Canonical(*left) == Canonical(*right);
}

size_t BytesOf(const ChatToolCall& call) {
  size_t bytes = sizeof(ChatToolCall) + call.id.size() + call.name.size() + call.arguments.size();
  for (const std::string& piece : call.original) bytes += sizeof(std::string) + piece.size();
  return bytes;
}

}  // namespace

std::string CallTexts::Key(std::string_view tenant, std::string_view id) {
  return std::to_string(tenant.size()) + ":" + std::string(tenant) + std::string(id);
}

void CallTexts::Keep(std::string_view tenant, ChatToolCall call) {
  const size_t bytes = BytesOf(call);
  std::string key = Key(tenant, call.id);
  if (bytes > bytes_max_ || by_key_.contains(key)) return;
  size_t& held = bytes_[std::string(tenant)];
  for (auto last = calls_.end(); held + bytes > bytes_max_ && last != calls_.begin();) {
    --last;
    if (last->tenant != tenant) continue;
    held -= last->bytes;
    by_key_.erase(last->key);
    last = calls_.erase(last);
  }
  held += bytes;
  calls_.push_front({key, std::string(tenant), std::move(call), bytes});
  by_key_.emplace(std::move(key), calls_.begin());
}

void CallTexts::Restore(std::string_view tenant, ChatToolCall* call) {
  const auto found = by_key_.find(Key(tenant, call->id));
  if (found == by_key_.end()) return;
  const ChatToolCall& kept = found->second->call;
  if (kept.name != call->name || !SameJson(kept.arguments, call->arguments)) return;
  calls_.splice(calls_.begin(), calls_, found->second);
  call->original = kept.original;
}

}  // namespace skein::coordinator
