// Links protocol_json alone.
// Thread: main.
// Must never: use another library of the tree.
#include "protocol/json/json.h"

int main() { return skein::protocol::ParseJson("{\"a\":[1]}").ok() ? 0 : 1; }
