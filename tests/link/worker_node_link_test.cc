// Links worker_node alone.
#include "worker/node/commands/serve.h"

int main() { return skein::worker::OwnPaths().directory.empty() ? 1 : 0; }
