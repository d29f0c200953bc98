// Links protocol_config alone.
#include "protocol/config/config.h"

int main() { return skein::protocol::ConfigHash({}).size() == 16 ? 0 : 1; }
