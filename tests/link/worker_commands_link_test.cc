// Links worker_commands alone.
#include "worker/node/commands/whoholds.h"

int main() { return skein::worker::HolderJson({}).empty() ? 1 : 0; }
