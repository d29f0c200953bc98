// Exit codes of every program (serving.md 17). Constants; nothing to own, no thread.
// Must never be renumbered: process managers and the supervisor act on them.
#pragma once

namespace skein::protocol {

inline constexpr int kExitOk = 0;
inline constexpr int kExitUsage = 64;
inline constexpr int kExitModel = 65;
inline constexpr int kExitInternal = 70;
inline constexpr int kExitParentGone = kExitInternal;  // the supervisor of this process is gone
inline constexpr int kExitRestart = 75;                // a lease, the coordinator or a peer is gone
inline constexpr int kExitStepDeadline = 76;           // the worker's step ran past its deadline
inline constexpr int kExitConfig = 78;

}  // namespace skein::protocol
