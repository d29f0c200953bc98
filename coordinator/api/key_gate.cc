// Thread: the listener's.
// Must never: tell what is wrong with a key.
#include "coordinator/api/key_gate.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "protocol/base/strings.h"

namespace skein::coordinator {

using protocol::Concat;
using protocol::HttpRequest;

namespace {

constexpr double kMinute = 60;  // seconds
constexpr std::string_view kBearer = "Bearer ";
constexpr std::string_view kMessagesPrefix = "/v1/messages";

struct RouteRight {
  std::string_view path;  // or its beginning
  KeyRight right;
};

// The first that matches; what is not here needs a key and no right.
constexpr RouteRight kRights[] = {
    {"/v1/chat/", KeyRight::kChat},         {"/v1/completions", KeyRight::kCompletions},
    {kMessagesPrefix, KeyRight::kMessages}, {"/v1/models", KeyRight::kModels},
    {"/tokenize", KeyRight::kTokenize},     {"/detokenize", KeyRight::kTokenize},
    {"/metrics", KeyRight::kMetrics},
};

// The key that a client sent; empty: none. The header of the Anthropic form counts on its routes.
std::string_view SentKey(const HttpRequest& head) {
  const std::string_view credentials = head.Header("authorization");
  if (credentials.size() >= kBearer.size() &&
      protocol::HeaderNameEquals(credentials.substr(0, kBearer.size()), kBearer)) {
    return credentials.substr(kBearer.size());
  }
  return head.path.starts_with(kMessagesPrefix) ? head.Header("x-api-key") : std::string_view();
}

}  // namespace

bool IsOpenRoute(std::string_view path) {
  return path == "/health" || path == "/health/ready" || path == "/health/live" ||
         path == "/health/startup" || path == "/" || path == "/chat.css" || path == "/chat.js" ||
         path == "/live.js";
}

const ApiKey& KeyOf(const HttpRequest& request) {
  static const ApiKey* const anybody = [] {
    auto* key = new ApiKey;
    key->special_ids = true;
    return key;
  }();
  const auto* attached = static_cast<const ApiKey*>(request.attachment.get());
  return attached == nullptr ? *anybody : *attached;
}

double KeyGate::Fade(const Failures& failures, Clock::time_point now) const {
  const double seconds = std::chrono::duration<double>(now - failures.at).count();
  return std::max(0.0, failures.count - seconds / kMinute * failures_max_);
}

// Seconds until the address is heard again; nothing when it is heard now.
std::optional<double> KeyGate::WaitOf(const std::string& address, Clock::time_point now) const {
  const auto found = failures_.find(address);
  if (found == failures_.end()) return std::nullopt;
  const double above = Fade(found->second, now) - (failures_max_ - 1);
  if (above <= 0) return std::nullopt;
  return above * kMinute / failures_max_;
}

// The table has a bound: what has faded goes first, then whoever is next.
void KeyGate::CountFailure(const std::string& address, Clock::time_point now) {
  if (failures_.size() >= kAddressesMax && !failures_.contains(address)) {
    std::erase_if(failures_, [&](const auto& entry) { return Fade(entry.second, now) == 0; });
    if (failures_.size() >= kAddressesMax) failures_.erase(failures_.begin());
  }
  Failures& failures = failures_[address];
  failures.count = Fade(failures, now) + 1;
  failures.at = now;
}

std::optional<ApiError> KeyGate::Admit(HttpRequest& head, int64_t unix_seconds,
                                       Clock::time_point now) {
  if (keys_ == nullptr || IsOpenRoute(head.path)) return std::nullopt;
  if (const std::optional<double> wait = WaitOf(head.peer_address, now)) {
    return RateLimitExceeded("too many requests with a wrong API key came from this address",
                             *wait);
  }
  std::shared_ptr<const ApiKey> key = keys_->Find(SentKey(head), unix_seconds, now);
  if (key == nullptr) {
    CountFailure(head.peer_address, now);
    return InvalidApiKey();
  }
  for (const RouteRight& route : kRights) {
    if (!head.path.starts_with(route.path)) continue;
    if (!key->May(route.right)) {
      return Forbidden(Concat("this API key is not good for ", KeyRightName(route.right),
                              "; ask the operator for the right"));
    }
    break;
  }
  head.attachment = std::move(key);
  return std::nullopt;
}

}  // namespace skein::coordinator
