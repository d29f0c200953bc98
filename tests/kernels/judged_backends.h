// The backends that a conformance program judges: which there are, on what stream they run, and
// what ends a call. One implementation per program; the cases and promises are the same for all.
#pragma once

#include "absl/status/status.h"
#include "kernels/kernel_registry.h"

namespace skein::kernels {

// Registers the judged backends beside the reference.
absl::Status RegisterJudged(KernelRegistry& registry);
// Where a backend runs unless a test says otherwise.
DeviceStream JudgedStream(std::string_view backend);
// Waits for what a call queued; Internal when it found a defect.
absl::Status FinishCall(std::string_view backend);

}  // namespace skein::kernels
