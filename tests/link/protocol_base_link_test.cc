// Links protocol_base alone.
#include "protocol/base/log.h"

int main() {
  SKEIN_LOG(kDebug, "not shown");
  return skein::protocol::LogLinesSuppressed() == 0 ? 0 : 1;
}
