// Links protocol_tensor alone.
#include "protocol/tensor/host_group.h"

int main() {
  const auto group = skein::protocol::HostGroup::Create({.name = "link", .size = 0});
  return group.ok() ? 1 : 0;
}
