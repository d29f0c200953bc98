#!/bin/sh
# Check 12: 0.5, 1, 2, 10 and 0.5 times the capacity by the clock: goodput, refusals, the way back.
# Usage: 12_overload.sh [BUILD_DIRECTORY [SECONDS [PHASE_SECONDS]]] (build/dev 30 8), from the root of
# the tree. Exit 0: it holds. The last line has the figures; below 10 s those of speed are not judged.
set -eu
exec "${1:-build/dev}/bin/overload" --seconds "${2:-30}" --phase-seconds "${3:-8}"
