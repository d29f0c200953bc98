// Links coordinator_text alone.
// Thread: main.
// Must never: use another library of the tree.
#include "coordinator/text/tokenizer.h"

int main() { return skein::coordinator::Tokenizer::Create("{}").ok() ? 1 : 0; }
