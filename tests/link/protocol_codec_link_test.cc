// Links protocol_codec alone.
#include "protocol/codec/codec.h"

int main() { return skein::protocol::EncodeMessage(skein::protocol::LeaseGrant{1}).ok() ? 0 : 1; }
