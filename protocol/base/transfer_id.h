// The name of one copy of cache blocks from a worker to another: drawn at random by the
// coordinator, so that no name tells another, told to these two alone, and never used again. Who
// knows it may fetch what is lent under it.
#pragma once

#include "protocol/base/ids.h"

namespace skein::protocol {

using TransferId = StrongId<struct TransferIdTag, uint64_t>;

}  // namespace skein::protocol
