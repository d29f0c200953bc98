// Links coordinator_core alone.
// Thread: main.
// Must never: use another library of the tree.
#include "coordinator/api/chat_request.h"

int main() {
  const auto body = skein::protocol::ParseJson("{}");
  const auto parsed = skein::coordinator::ParseChatRequest(*body, {});
  return std::holds_alternative<skein::coordinator::ApiError>(parsed) ? 0 : 1;
}
