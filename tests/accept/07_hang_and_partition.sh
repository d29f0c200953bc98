#!/bin/sh
# Check 7: workers stopped, networks that swallow everything in one direction or both, and both cores
# loaded, under streams that must stay exact.
# Usage: 07_hang_and_partition.sh [BUILD_DIRECTORY [ROUNDS [LOAD_SECONDS]]] (build/dev 2 20), from the
# root of the tree; ROUNDS 1: the short form. Exit 0: it holds. The last line has the figures.
set -eu
exec "${1:-build/dev}/bin/partition" --rounds "${2:-2}" --load-seconds "${3:-20}"
